"""From logits to scores, and what each part of the vocabulary says of the row: best score and sum of exponentials.

In this order, each where the row asks for it:

    logit bias     x <- x + bias[v]
    watermark      x <- x + delta where v is on the green list of the previous token (`watermark`)
    repetition     x <- x / r where x >= 0, x * r where x < 0, for each id seen (Keskar et al., "CTRL", 2019)
    frequency      x <- x - f * (times v was counted)          (OpenAI's API)
    presence       x <- x - p where v was counted at all       (OpenAI's API)
    minimum        x <- -inf for end-of-sequence ids while fewer than `min_new_tokens` were generated

Layouts: `logits` `[N, vocab]` of any floating type, unit stride in the last dimension; `scores` `[N, vocab]` float32,
may be `logits`. A row of `scores` is written only where the row's flags hold `Flags.SCORES`: what is plain and greedy
costs one read of its logits. Parameters are columns by row, batch position i uses row `rows[i]`.

The vocabulary is cut into splits of equal size. `best` `[N, splits]` float32: largest score of the split, NaN where it
holds a NaN or an infinite score; `best_id` int32: its lowest id; `total` float32: sum of exp((x - best) / t).

Called once a step. Bytes floor: N * vocab * element size; for rows that write scores 4 more a token, and 4 for counts.
"""

# pyright: basic, reportArgumentType=false
import torch
from torch import Tensor

from ._register import register
from ._sampling import LARGEST, Flags, Floats, Ints
from .watermark import green_list


def logits_process_torch(
    logits: Tensor,
    rows: Tensor,
    last_token: Tensor,
    generated: Tensor,
    floats: Tensor,
    ints: Tensor,
    bias_ids: Tensor,
    bias_values: Tensor,
    counts: Tensor,
    eos_token_ids: Tensor,
    gamma: float,
    delta: float,
    scores: Tensor,
    best: Tensor,
    best_id: Tensor,
    total: Tensor,
) -> None:
    """Torch implementation: the CPU path and the reference of the tests. Writes every row of `scores`."""
    if scores.data_ptr() != logits.data_ptr():
        scores.copy_(logits)
    flags = ints[rows, Ints.FLAGS]

    def positions(flag: Flags) -> Tensor:
        return (flags & flag).nonzero().squeeze(1)

    for position in positions(Flags.BIAS).tolist():
        row = rows[position]
        number = ints[row, Ints.NUM_BIAS]
        scores[position].index_add_(0, bias_ids[row, :number], bias_values[row, :number])
    if (chosen := positions(Flags.WATERMARK)).numel():
        scores[chosen] += delta * green_list(last_token[rows[chosen]], gamma, scores.shape[1])
    if (chosen := positions(Flags.PENALTIES)).numel():
        scores[chosen] = _penalise(scores[chosen], counts[rows[chosen]], floats[rows[chosen]])
    broken = (
        scores.isnan().any(dim=1) | scores.isposinf().any(dim=1) if scores.amax().isfinite().logical_not() else None
    )
    if (chosen := positions(Flags.MIN_NEW_TOKENS)).numel():
        chosen = chosen[generated[rows[chosen]] < ints[rows[chosen], Ints.MIN_NEW_TOKENS]]
        scores[chosen.unsqueeze(1), eos_token_ids.unsqueeze(0)] = -torch.inf
    _statistics(scores, floats[rows, Floats.TEMPERATURE], best, best_id, total)
    if broken is not None:
        best[broken] = torch.nan


def _penalise(scores: Tensor, counts: Tensor, floats: Tensor) -> Tensor:
    """`counts` int32 [N, vocab]: twice the number of times counted, plus one where seen."""
    repetition, frequency, presence = (
        floats[:, column].unsqueeze(1) for column in (Floats.REPETITION, Floats.FREQUENCY, Floats.PRESENCE)
    )
    repeated = torch.where(scores < 0, scores * repetition, scores / repetition)
    scores = torch.where(counts & 1 != 0, repeated, scores)
    number = counts >> 1
    return scores - (frequency * number + presence * (number > 0))


def _statistics(scores: Tensor, temperature: Tensor, best: Tensor, best_id: Tensor, total: Tensor) -> None:
    """Fills the statistics, split by split."""
    inverse = (1.0 / temperature).clamp(max=LARGEST).unsqueeze(1)
    splits = best.shape[1]
    size = -(-scores.shape[1] // splits)
    for split, part in enumerate(scores.split(size, dim=1)):
        index = part.argmax(dim=1, keepdim=True)
        highest = part.gather(1, index)
        best[:, split] = highest.squeeze(1)
        best_id[:, split] = index.squeeze(1) + split * size
        # A split that is excluded as a whole has no mass.
        u = (highest - part).mul_(inverse).nan_to_num_(nan=torch.inf, posinf=torch.inf)
        total[:, split] = u.neg_().exp_().sum(dim=1)


logits_process = register(
    logits_process_torch,
    mutates=("scores", "best", "best_id", "total"),
)
"""logits_process(logits, rows, last_token, generated, floats, ints, bias_ids, bias_values, counts, eos_token_ids, gamma,
delta, scores, best, best_id, total)"""
