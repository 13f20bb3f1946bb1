"""The merge of what several ranks attended to, each over its own positions (context parallelism).

    out[t, h] = sum over r of exp2(log_sums[r, t, h] - log_sum[t, h]) * results[r, t, h]
    log_sum[t, h] = log2(sum over r of exp2(log_sums[r, t, h]))

A rank that saw no position has -inf for its logarithm; where no rank saw any (a padded row), `out` is zero.

Layouts: `shares` (`Shares`), contiguous; `out` `[T, heads, size]` of its type, contiguous. Computed in float32.

Called once a layer in steps with decodes. Bytes floor: (ranks + 1) * T * heads * size * element size.
"""

# pyright: basic, reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false
from dataclasses import dataclass

import torch
from torch import Tensor

from ..runtime.launch import Launcher, launch_dependents, wait_for_previous
from ..runtime.register import register
from ..runtime.shapes import shapes_error
from ..runtime.triton import tl, triton

_ALIGNMENT = 16
"""Bytes of which a row of a message has a multiple."""


@dataclass(frozen=True, slots=True, eq=False)
class Shares:
    """Results of attention over the positions of each of several ranks, and the logarithms of their sums, as one
    message.
    """

    rows: Tensor
    """[ranks, T, heads, size + room for a float32], contiguous: the result, and in the last four bytes of a row the
    logarithm to base 2 of the sum of exp(scores).
    """

    @classmethod
    def empty(cls, like: Tensor, ranks: int, tokens: int, heads: int, size: int) -> "Shares":
        """Returns room for results of `size` elements of the type of `like`."""
        row = triton.cdiv(size * like.element_size() + torch.float32.itemsize, _ALIGNMENT) * _ALIGNMENT
        return cls(like.new_empty(ranks, tokens, heads, row // like.element_size()))

    @property
    def is_cuda(self) -> bool:
        """Whether they are on a GPU."""
        return self.rows.is_cuda

    def results(self, size: int) -> Tensor:
        """Returns [ranks, T, heads, size]."""
        return self.rows[..., :size]

    @property
    def log_sums(self) -> Tensor:
        """[ranks, T, heads] float32"""
        return self.rows.view(torch.float32)[..., -1]


@triton.jit
def merge_shares_kernel(
    rows_ptr,  # [RANKS, tokens, heads, ROW]
    log_sum_ptr,  # the same as float32
    out_ptr,  # [tokens, heads, SIZE]
    RANKS: tl.constexpr,
    ROW: tl.constexpr,
    LOG_ROW: tl.constexpr,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,  # power of two, at least SIZE
    PDL: tl.constexpr,
):
    """One thread block merges one head of one token."""
    launch_dependents(PDL)
    wait_for_previous(PDL)
    row = tl.program_id(1).to(tl.int64) * tl.num_programs(0) + tl.program_id(0)
    rows = tl.num_programs(0).to(tl.int64) * tl.num_programs(1)
    maximum = float("-inf")
    for rank in tl.static_range(RANKS):
        maximum = tl.maximum(maximum, tl.load(log_sum_ptr + (rank * rows + row + 1) * LOG_ROW - 1))
    base = tl.where(maximum == float("-inf"), 0.0, maximum)
    elements = tl.arange(0, BLOCK)
    acc = tl.zeros([BLOCK], dtype=tl.float32)
    total = 0.0
    for rank in tl.static_range(RANKS):
        weight = tl.exp2(tl.load(log_sum_ptr + (rank * rows + row + 1) * LOG_ROW - 1) - base)
        part = tl.load(rows_ptr + (rank * rows + row) * ROW + elements, mask=elements < SIZE, other=0.0)
        acc += weight * part.to(tl.float32)
        total += weight
    out = acc / tl.where(total == 0.0, 1.0, total)
    tl.store(out_ptr + row * SIZE + elements, out.to(out_ptr.dtype.element_ty), mask=elements < SIZE)


_launch = Launcher(merge_shares_kernel, writes=("out",))


def merge_shares_triton(shares: Shares, out: Tensor) -> None:
    """Triton implementation. Raises ValueError for layouts that the kernel does not read."""
    rows = shares.rows
    if rows.shape[1:3] != out.shape[:2] or out.shape[2] >= rows.shape[3] or rows.dtype != out.dtype:
        raise shapes_error("merge_shares", rows=rows, out=out)
    if not rows.is_contiguous() or not out.is_contiguous():
        raise ValueError("merge_shares: rows and out must be contiguous")
    ranks, tokens, heads, row = rows.shape
    if tokens == 0:
        return
    _launch(
        (heads, tokens),
        (rows, rows.view(torch.float32), out),
        RANKS=ranks,
        ROW=row,
        LOG_ROW=row * rows.element_size() // torch.float32.itemsize,
        SIZE=out.shape[2],
        BLOCK=triton.next_power_of_2(out.shape[2]),
        num_warps=2,
    )


def merge_shares_torch(shares: Shares, out: Tensor) -> None:
    """Torch implementation: the CPU path and the reference of the tests."""
    log_sums = shares.log_sums
    base = log_sums.amax(0)
    weights = torch.exp2(log_sums - torch.where(base.isinf(), 0.0, base))
    total = weights.sum(0)
    merged = (weights[..., None] * shares.results(out.shape[2]).float()).sum(0)
    out.copy_(merged / torch.where(total == 0, 1.0, total)[..., None])


merge_shares = register(merge_shares_torch, mutates=("out",), triton=merge_shares_triton)
