"""The choice among the survivors, and its log-probability.

    greedy    the best score, ties to the lowest id
    sampled   argmax(-u + G) with G standard Gumbel noise of the key (seed, tokens generated, id): a draw from the
              softmax of the survivors, exactly (`gumbel`)
    logprob   -u(token) - log(sum over survivors of exp(-u))

Layouts: `logits`, `scores`, `best`, `best_id`, `total` as in `logits_process`; `bounds` as in `survivors`. Outputs `[N]`
with any stride: `tokens` int64, `logprobs` float32, `valid` int32 (1: the scores were sound); `log_total` float32 `[N]`:
the logarithm in the last line above. Where the scores hold NaN or are infinite, `valid` is 0, the token 0, which is
legal everywhere, and the log-probability NaN.

Called once a step. Bytes floor: nothing for rows that are greedy and have no filter, which `logits_process` has read
already; N * vocab * element size for the others.
"""

# pyright: basic, reportArgumentType=false
import torch
from torch import Tensor

from ._register import register
from ._sampling import Flags, Floats, Ints, distance, survives
from .gumbel import gumbel_noise


def sample_torch(
    logits: Tensor,
    scores: Tensor,
    best: Tensor,
    best_id: Tensor,
    total: Tensor,
    bounds: Tensor,
    rows: Tensor,
    generated: Tensor,
    seed: Tensor,
    floats: Tensor,
    ints: Tensor,
    tokens: Tensor,
    logprobs: Tensor,
    valid: Tensor,
    log_total: Tensor,
) -> None:
    """Torch implementation: the CPU path and the reference of the tests."""
    temperature, flags = floats[rows, Floats.TEMPERATURE], ints[rows, Ints.FLAGS]
    highest = best.amax(dim=1)
    split = (best == highest.unsqueeze(1)).byte().argmax(dim=1, keepdim=True)
    tokens.copy_(best_id.gather(1, split).squeeze(1))
    weights = distance(best, highest, temperature).neg_().exp_()
    log_total.copy_((total * weights).sum(dim=1).log_())
    torch.neg(log_total, out=logprobs)
    chosen = (flags & (Flags.SAMPLE | Flags.FILTERS)).nonzero().squeeze(1)
    if chosen.numel():
        r = rows[chosen]
        uses_scores = (flags[chosen] & Flags.SCORES != 0).unsqueeze(1)
        x = torch.where(uses_scores, scores[chosen], logits[chosen].float())
        u = distance(x, highest[chosen], temperature[chosen])
        u.masked_fill_(~survives(u, bounds[chosen]), torch.inf)
        noisy = -u
        drawn = (flags[chosen] & Flags.SAMPLE).nonzero().squeeze(1)
        if drawn.numel():
            noisy[drawn] += gumbel_noise(seed[r[drawn]], generated[r[drawn]], u.shape[1])
        token = noisy.argmax(dim=1)
        sums = u.neg().exp_().sum(dim=1).log_()
        tokens[chosen] = token
        log_total[chosen] = sums
        logprobs[chosen] = -u.gather(1, token.unsqueeze(1)).squeeze(1) - sums
    sound = highest.isfinite() & logprobs.isfinite()
    valid.copy_(sound)
    tokens.masked_fill_(~sound, 0)
    logprobs.masked_fill_(~sound, torch.nan)


sample = register(sample_torch, mutates=("tokens", "logprobs", "valid", "log_total"))
"""sample(logits, scores, best, best_id, total, bounds, rows, generated, seed, floats, ints, tokens, logprobs, valid,
log_total)"""
