"""Drafts from hints: what a caller expects the text of a row to be, from some position on.

With L = length[r] and the hint's ids h_0 .. h_{c-1} for positions f, f + 1, ..., the hint fits where 0 <= L - f < c and
all tokens since agree: tokens[r, f + i] = h_i for i < L - f. Then

    ids[r, j] = h_{L - f + j},  counts[r] = min(most, c - (L - f)),  hinted[r] = 1

Where it does not fit, and for rows at their limit, the drafts stay as they are. A hint may come late, be wrong or end
early: it is a source of drafts, and only the model's own choice accepts one (`accept_tokens`).

Layouts: `values.py`.

Called once before each step of decodes. Bytes floor: about 16 a token of the hint; the launch dominates.
"""

# pyright: basic, reportArgumentType=false
import torch

from ..runtime.launch import Launcher, wait_for_previous
from ..runtime.register import by_device
from ..runtime.triton import tl, triton
from .values import Drafts, Hints, Sequences, Windows


@triton.jit(do_not_specialize_on_alignment=["rows_ptr"])
def hint_draft_kernel(
    rows_ptr,  # [D]
    length_ptr,  # [rows]
    tokens_ptr,  # [rows, positions]
    drafts_ptr,  # [rows, most]
    counts_ptr,  # [rows]
    limits_ptr,  # [rows]
    hinted_ptr,  # [rows]
    hints_ptr,  # [rows, BLOCK_H]
    first_ptr,  # [rows]
    hint_counts_ptr,  # [rows]
    positions,
    most,
    BLOCK_M: tl.constexpr,  # power of two, at least most
    BLOCK_H: tl.constexpr,  # the most ids of a hint
    PDL: tl.constexpr,
):
    """One thread block drafts for one row."""
    wait_for_previous(PDL)
    place = tl.program_id(0).to(tl.int64)
    row = tl.load(rows_ptr + place)
    length = tl.load(length_ptr + row)
    count = tl.load(hint_counts_ptr + row)
    first = tl.load(first_ptr + row)
    since = length - first
    alive = (length > 0) & (length < tl.load(limits_ptr + row)) & (since >= 0) & (since < count)
    i = tl.arange(0, BLOCK_H)
    seen = alive & (i < since)
    expected = tl.load(hints_ptr + row * BLOCK_H + i, mask=seen, other=0)
    actual = tl.load(tokens_ptr + row * positions + first + i, mask=seen, other=0)
    fits = alive & (tl.sum((expected != actual).to(tl.int32), axis=0) == 0)
    number = tl.minimum(most, count - since)
    j = tl.arange(0, BLOCK_M)
    drafted = tl.load(hints_ptr + row * BLOCK_H + since + j, mask=fits & (j < number), other=0)
    tl.store(drafts_ptr + row * most + j, drafted.to(tl.int64), mask=fits & (j < number))
    tl.store(counts_ptr + row, number, mask=fits)
    tl.store(hinted_ptr + row, 1, mask=fits)


_launch = Launcher(hint_draft_kernel, writes=("drafts", "counts", "hinted"), dependents="at the end")


def hint_draft_triton(windows: Windows, sequences: Sequences, hints: Hints, drafts: Drafts) -> None:
    """Triton implementation."""
    batch = windows.rows.shape[0]
    if batch == 0:
        return
    _launch(
        (batch,),
        (
            windows.rows, sequences.length, drafts.tokens, drafts.ids, drafts.counts, drafts.limits, drafts.hinted,
            hints.ids, hints.first, hints.counts,
        ),
        (drafts.tokens.stride(0), drafts.most),
        BLOCK_M=triton.next_power_of_2(drafts.most),
        BLOCK_H=hints.most,
        num_warps=1,
    )  # fmt: skip


def hint_draft_torch(windows: Windows, sequences: Sequences, hints: Hints, drafts: Drafts) -> None:
    """Torch implementation: the CPU path and the reference of the tests."""
    for row in windows.rows.tolist():
        length, first, count = int(sequences.length[row]), int(hints.first[row]), int(hints.counts[row])
        since = length - first
        if not 0 < length < int(drafts.limits[row]) or not 0 <= since < count:
            continue
        if not torch.equal(drafts.tokens[row, first:length], hints.ids[row, :since]):
            continue
        ids = hints.ids[row, since : min(count, since + drafts.most)]
        drafts.ids[row, : len(ids)] = ids.to(torch.int64)
        drafts.counts[row], drafts.hinted[row] = len(ids), 1


hint_draft = by_device(hint_draft_torch, hint_draft_triton)
