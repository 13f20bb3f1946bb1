"""Chooses drafts from the logits of a drafter, with the noise by which the model will choose.

    token[d] = ids[argmax over i of x[d, i] / t + G(seed, generated[r] + offset, ids[i])]    for rows r that sample
    token[d] = ids[argmax over i of x[d, i]]                                                 for greedy ones

with r = rows[d], of equal scores the first. The noise is that of the token's id in the model (`gumbel.py`): two choices
by the same noise agree as often as choices that know nothing of each other nearly can (Daliri, Musco, Suresh, 2024).
Filters, penalties and masks are left out: a draft that they would exclude is rejected.

    drafts[r, offset] = token[d]

Layouts: `logits` [D, draft vocabulary] of any floating type, unit stride in the last dimension; `ids` int64 [draft
vocabulary]; `rows` int64 [D]; `generated` int64 by row, `offset` tokens before the one that is drafted; `tokens` int64
[D] and `drafts` (`values.py`) are written.

Called for each draft. Bytes floor: the logits, once; one thread block reads those of a row.
"""

# pyright: basic, reportArgumentType=false
import torch
from torch import Tensor

from ..runtime.launch import Launcher, compiling_only, wait_for_previous
from ..runtime.register import by_device
from ..runtime.triton import tl, triton
from ..sampling.columns import FLAGS, FLOATS, INTS, SAMPLES, TEMPERATURE, Flags, Floats, Ints, inverse
from ..sampling.gumbel import gumbel, gumbel_of
from ..sampling.philox import DOMAIN_GUMBEL, philox_4x32
from ..sampling.values import SamplingColumns
from .values import Drafts

_BLOCK = 1024
_DOMAIN = tl.constexpr(DOMAIN_GUMBEL)
_MASK = 0xFFFFFFFF


@triton.jit(do_not_specialize_on_alignment=["rows_ptr"])
def choose_draft_kernel(
    logits_ptr,  # [D, number]
    ids_ptr,  # [number]
    rows_ptr,  # [D]
    generated_ptr,  # [rows]
    floats_ptr,  # [rows, FLOATS]
    ints_ptr,  # [rows, INTS]
    seed_ptr,  # [rows]
    tokens_ptr,  # [D]
    drafts_ptr,  # [rows, most]
    number,
    stride_logits,
    most,
    OFFSET: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    """One thread block chooses for one row."""
    wait_for_previous(PDL)
    place = tl.program_id(0).to(tl.int64)
    row = tl.load(rows_ptr + place)
    samples = (tl.load(ints_ptr + row * INTS + FLAGS) & SAMPLES) != 0
    temperature = tl.load(floats_ptr + row * FLOATS + TEMPERATURE)
    scale = tl.minimum(tl.maximum(tl.div_rn(1.0, temperature), 1.1754943508222875e-38), 3.4028234663852886e38)
    key = tl.load(seed_ptr + row)
    step = (tl.load(generated_ptr + row) + OFFSET).to(tl.int32)
    best = tl.full([BLOCK], float("-inf"), dtype=tl.float32)
    where = tl.zeros([BLOCK], dtype=tl.int32)
    for start in range(0, number, BLOCK):
        index = start + tl.arange(0, BLOCK)
        exists = index < number
        score = tl.load(logits_ptr + place * stride_logits + index, mask=exists, other=float("-inf")).to(tl.float32)
        if samples:
            id = tl.load(ids_ptr + index, mask=exists, other=0)
            counter = (id // 4).to(tl.int32)
            zero = counter * 0
            word0, word1, word2, word3 = tl.philox(key, counter, zero + step, zero, zero + _DOMAIN)
            lower = tl.where(id % 4 == 0, word0, word1)
            upper = tl.where(id % 4 == 2, word2, word3)
            score = score * scale + gumbel_of(tl.where(id % 4 < 2, lower, upper))
        is_better = exists & (score > best)
        best = tl.where(is_better, score, best)
        where = tl.where(is_better, index, where)
    highest = tl.max(best, axis=0)
    chosen = tl.min(tl.where(best == highest, where, number), axis=0)
    token = tl.load(ids_ptr + tl.where(chosen < number, chosen, 0))
    tl.store(tokens_ptr + place, token)
    tl.store(drafts_ptr + row * most + OFFSET, token)


_launch = Launcher(choose_draft_kernel, writes=("tokens", "drafts"), dependents="at the end")


def choose_draft_triton(
    logits: Tensor,
    ids: Tensor,
    rows: Tensor,
    generated: Tensor,
    offset: int,
    columns: SamplingColumns,
    drafts: Drafts,
    tokens: Tensor,
) -> None:
    """Triton implementation."""
    batch, number = logits.shape
    if batch == 0:
        return
    if compiling_only():
        # Operators of torch that follow compute in a compile dry run too, and index with these.
        tokens.zero_()
    _launch(
        (batch,),
        (logits, ids, rows, generated, columns.floats, columns.ints, columns.seed, tokens, drafts.ids),
        (number, logits.stride(0), drafts.most),
        OFFSET=offset,
        BLOCK=_BLOCK,
        num_warps=4,
    )


def choose_draft_torch(
    logits: Tensor,
    ids: Tensor,
    rows: Tensor,
    generated: Tensor,
    offset: int,
    columns: SamplingColumns,
    drafts: Drafts,
    tokens: Tensor,
) -> None:
    """Torch implementation: the CPU path and the reference of the tests."""
    scores = logits.float()
    sampled = (columns.ints[rows, Ints.FLAGS] & int(Flags.SAMPLE) != 0).nonzero().flatten()
    if len(sampled):
        of = rows[sampled]
        scale = inverse(columns.floats[of, Floats.TEMPERATURE])[:, None]
        noise = _noise(columns.seed[of], generated[of] + offset, ids)
        scores = scores.index_copy(0, sampled, scores[sampled] * scale + noise)
    tokens.copy_(ids[scores.argmax(dim=1)])
    drafts.ids[rows, offset] = tokens


def _noise(seed: Tensor, step: Tensor, ids: Tensor) -> Tensor:
    """The noise float32 [N, ids] of some ids of the vocabulary."""
    counter = (ids // 4)[None]
    zero = torch.zeros_like(counter)
    words = philox_4x32(
        (counter, (step & _MASK)[:, None], zero, zero + DOMAIN_GUMBEL),
        ((seed & _MASK)[:, None], ((seed >> 32) & _MASK)[:, None]),
    )
    return gumbel(torch.stack(words, dim=-1).gather(-1, (ids % 4).expand(len(seed), -1)[..., None])[..., 0])


choose_draft = by_device(choose_draft_torch, choose_draft_triton)
