"""Drafts from the row's own text: what followed the last time that its newest tokens stood there.

Of all earlier positions, that with the longest match of at most `MAX_MATCH` tokens with the end of the text, at least
`least`, and of several the latest (prompt lookup decoding, Saxena, 2023). Drafts are the tokens behind it; where they
reach the end of the text, they go on as if it repeated itself.

    ids[r, j] = tokens[r, p + 1 + j mod (L - 1 - p)],  counts[r] = most

Rows without a match, rows at their limit and padding get no drafts: counts[r] = 0, or, with `keeps`, those that they
have. Only the row's own tokens are read.

Layouts: `values.py`.

Called once a step. Bytes floor: 4 for each token of the text; one thread block reads those of a row.
"""

# pyright: basic, reportArgumentType=false
import torch
from torch import Tensor

from ..runtime.launch import Launcher, wait_for_previous
from ..runtime.register import by_device
from ..runtime.triton import tl, triton
from .values import Drafts, Sequences, Windows

MIN_MATCH = 2
MAX_MATCH = 8

_MOST = tl.constexpr(MAX_MATCH)
_BLOCK = 1024


@triton.jit(do_not_specialize_on_alignment=["rows_ptr"])
def ngram_draft_kernel(
    rows_ptr,  # [D]
    length_ptr,  # [rows]
    tokens_ptr,  # [rows, positions]
    drafts_ptr,  # [rows, most]
    counts_ptr,  # [rows]
    limits_ptr,  # [rows]
    positions,
    most,
    BLOCK_M: tl.constexpr,  # power of two, at least most
    BLOCK: tl.constexpr,
    LEAST: tl.constexpr,
    KEEPS: tl.constexpr,
    PDL: tl.constexpr,
):
    """One thread block searches the text of one row."""
    wait_for_previous(PDL)
    place = tl.program_id(0).to(tl.int64)
    row = tl.load(rows_ptr + place)
    length = tl.load(length_ptr + row)
    ends = (length < 1) | (length >= tl.load(limits_ptr + row))
    text_ptr = tokens_ptr + row * positions
    # A match of m tokens that ends at position p counts as m * 2**32 + p.
    best = tl.full([BLOCK], -1, dtype=tl.int64)
    searched = tl.where(ends, 0, length - 1)
    for start in range(0, searched, BLOCK):
        p = start + tl.arange(0, BLOCK)
        alive = p < length - 1
        matched = tl.zeros([BLOCK], dtype=tl.int64)
        for k in tl.static_range(_MOST):
            wanted = tl.load(text_ptr + length - 1 - k, mask=k < length, other=-1)
            found = tl.load(text_ptr + p - k, mask=alive & (p >= k), other=-2)
            alive = alive & (found == wanted)
            matched += alive.to(tl.int64)
        best = tl.maximum(best, tl.where(matched >= LEAST, matched * 4294967296 + p, -1))
    found = tl.max(best, axis=0)
    number = tl.where(found >= 0, most, 0).to(tl.int64)
    first = (found % 4294967296) + 1
    period = tl.maximum(length - first, 1)
    j = tl.arange(0, BLOCK_M)
    drafted = tl.load(text_ptr + first + j % period, mask=j < number, other=0)
    tl.store(drafts_ptr + row * most + j, drafted.to(tl.int64), mask=j < number)
    tl.store(counts_ptr + row, number, mask=(number > 0) if KEEPS else (length > 0))


_launch = Launcher(ngram_draft_kernel, writes=("drafts", "counts"), dependents="at the end")


def ngram_draft_triton(
    windows: Windows, sequences: Sequences, drafts: Drafts, least: int = MIN_MATCH, keeps: bool = False
) -> None:
    """Triton implementation."""
    batch = windows.rows.shape[0]
    if batch == 0:
        return
    _launch(
        (batch,),
        (windows.rows, sequences.length, drafts.tokens, drafts.ids, drafts.counts, drafts.limits),
        (drafts.tokens.stride(0), drafts.most),
        BLOCK_M=triton.next_power_of_2(drafts.most),
        BLOCK=_BLOCK,
        LEAST=least,
        KEEPS=keeps,
        num_warps=4,
    )


def ngram_draft_torch(
    windows: Windows, sequences: Sequences, drafts: Drafts, least: int = MIN_MATCH, keeps: bool = False
) -> None:
    """Torch implementation: the CPU path and the reference of the tests."""
    for row in windows.rows.tolist():
        length = int(sequences.length[row])
        found = -1
        if 0 < length < int(drafts.limits[row]):
            found = _latest_match(drafts.tokens[row, :length], least)
        if found >= 0:
            behind = torch.arange(drafts.most, device=drafts.ids.device) % (length - 1 - found)
            drafts.ids[row] = drafts.tokens[row, found + 1 + behind].to(torch.int64)
        if found >= 0 or (length > 0 and not keeps):
            drafts.counts[row] = drafts.most if found >= 0 else 0


def _latest_match(text: Tensor, least: int) -> int:
    """Returns the position at which the longest match ends, the latest of several; -1 without one of `least` tokens."""
    length = len(text)
    matched = torch.zeros(length - 1, dtype=torch.int64, device=text.device)
    alive = torch.ones(length - 1, dtype=torch.bool, device=text.device)
    for k in range(min(MAX_MATCH, length)):
        alive[:k] = False
        alive[k:] &= text[: length - 1 - k] == text[length - 1 - k]
        matched += alive
    if length < 2 or int(matched.max()) < least:
        return -1
    longest = (matched == matched.max()).nonzero()
    return int(longest[-1])


ngram_draft = by_device(ngram_draft_torch, ngram_draft_triton)
