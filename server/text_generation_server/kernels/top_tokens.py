"""The n most likely survivors of a row with their log-probabilities, for reporting, and every tie of the n-th.

Layouts: inputs as in `sample`, `valid` and `log_total` as it wrote them. `top_ids` int32 and `top_logprobs` float32
`[N, MAX_TOP]`, best first, ties by id, with any stride between rows; `num_top` int32 `[N]`: entries that were written,
0 for rows that ask for none or are not valid. Of more than MAX_TOP, the ties of the highest ids are left out.

Called once a step. Bytes floor: N * vocab * element size for the rows that ask.
"""

# pyright: basic, reportArgumentType=false
import torch
from torch import Tensor

from ._register import register
from ._sampling import MAX_TOP, Flags, Floats, Ints, distance, survives


def top_tokens_torch(
    logits: Tensor,
    scores: Tensor,
    best: Tensor,
    bounds: Tensor,
    rows: Tensor,
    floats: Tensor,
    ints: Tensor,
    valid: Tensor,
    log_total: Tensor,
    top_ids: Tensor,
    top_logprobs: Tensor,
    num_top: Tensor,
) -> None:
    """Torch implementation: the CPU path and the reference of the tests."""
    wanted = ints[rows, Ints.TOP_N] * valid
    num_top.zero_()
    for i in wanted.nonzero().squeeze(1).tolist():
        row = rows[i]
        source = scores if ints[row, Ints.FLAGS] & Flags.SCORES else logits
        u = distance(
            source[i : i + 1].float(), best[i].amax().unsqueeze(0), floats[row, Floats.TEMPERATURE].unsqueeze(0)
        )
        kept = u.masked_fill_(~survives(u, bounds[i : i + 1]), torch.inf)[0]
        nth = kept.topk(min(int(wanted[i]), kept.shape[0]), largest=False).values[-1]
        ids = ((kept <= nth) & kept.isfinite()).nonzero().squeeze(1)
        ids = ids[kept[ids].argsort(stable=True)][:MAX_TOP]
        num_top[i] = ids.shape[0]
        top_ids[i, : ids.shape[0]] = ids.to(torch.int32)
        top_logprobs[i, : ids.shape[0]] = -kept[ids] - log_total[i]


top_tokens = register(top_tokens_torch, mutates=("top_ids", "top_logprobs", "num_top"))
"""top_tokens(logits, scores, best, bounds, rows, floats, ints, valid, log_total, top_ids, top_logprobs, num_top)"""
