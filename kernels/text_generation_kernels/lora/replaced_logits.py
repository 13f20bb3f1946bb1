"""Logits of rows of the head that adapters replace: those of tokens that they have trained, or of all.

    out[t, ids[r]] = x[t] . rows[r] (+ bias[ids[r]])      for r in first .. first + count - 1

where `spans[numbers[t]]` is (first, count); elsewhere `out` stays. So a token without adapter keeps its bits.

Layouts: `x` `[tokens, hidden]`, unit stride in the last dimension; `bias` `[columns]` in any type, or None; `order`,
`tiles`: `adapter_tiles.py`, with tiles of `tile_tokens`; `numbers` `[tokens]` int32; `out` `[tokens, columns]`, unit
stride in the last dimension. ValueError for shapes that do not fit.

Sums are float32, and rounded once. A token has the same bits whichever others are there. A step calls it once, behind
the GEMM of the base. Bytes floor: hidden * element size for each row of an adapter in use.
"""

# pyright: basic, reportArgumentType=false, reportCallIssue=false
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from ..runtime.launch import Launcher, launch_dependents, wait_for_previous
from ..runtime.register import register
from ..runtime.shapes import shapes_error
from ..runtime.triton import tl, triton
from .adapter_tiles import TILE_TOKENS

_BLOCK_N = 64
_STEP = 128
"""Inputs of a 16-bit type in one step of the loop."""
_WARPS, _STAGES = 2, 3
"""Two warps: from four on, the compiler would take other matrix instructions for tiles of 64 tokens than for 16."""


@dataclass(frozen=True, slots=True, eq=False)
class ReplacedRows:
    """The rows that adapters have for some columns of the logits. All are contiguous."""

    rows: Tensor
    """[any, hidden], of the type of the hidden states."""
    ids: Tensor
    """[any] int32: the column of each row, of one adapter each once."""
    spans: Tensor
    """[adapters + 1, 2] int32: first row and count of each adapter's."""
    most: int
    """At least the largest count; it sizes the grid."""


@triton.jit(do_not_specialize_on_alignment=["order_ptr", "tiles_ptr", "numbers_ptr"])
def replaced_logits_kernel(
    x_ptr,  # [tokens, hidden]
    rows_ptr,  # [any, hidden]
    ids_ptr,  # [any] int32
    spans_ptr,  # [adapters + 1, 2] int32
    bias_ptr,  # [columns] or None
    order_ptr,  # [tokens] int32
    tiles_ptr,  # [tiles, 4] int32
    numbers_ptr,  # [tokens] int32
    out_ptr,  # [tokens, columns]
    hidden,
    blocks,  # of the rows of one adapter
    stride_x_token,
    stride_out_token,
    MASK_K: tl.constexpr,  # whether BLOCK_K does not divide `hidden`
    BLOCK_M: tl.constexpr,  # tokens of a tile
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PDL: tl.constexpr,
):
    """One thread block computes BLOCK_N rows for the tokens of one tile."""
    wait_for_previous(PDL)
    launch_dependents(PDL)
    tile = tl.program_id(0) // blocks
    place = tl.program_id(0) % blocks * BLOCK_N + tl.arange(0, BLOCK_N)
    first = tl.load(tiles_ptr + tile * 4)
    count = tl.load(tiles_ptr + tile * 4 + 1)
    if count == 0:
        return
    number = tl.load(numbers_ptr + tl.load(order_ptr + first))
    there = place < tl.load(spans_ptr + number * 2 + 1)
    if tl.max(there.to(tl.int32), axis=0) == 0:
        return
    members = tl.arange(0, BLOCK_M)
    here = members < count
    tokens = tl.load(order_ptr + first + members, mask=here, other=0).to(tl.int64)
    rows = (tl.load(spans_ptr + number * 2) + place).to(tl.int64)
    ids = tl.load(ids_ptr + rows, mask=there, other=0)
    columns = tl.arange(0, BLOCK_K)
    x_ptrs = x_ptr + tokens[:, None] * stride_x_token + columns[None, :]
    row_ptrs = rows_ptr + rows[:, None] * hidden + columns[None, :]
    acc = tl.zeros([BLOCK_M, BLOCK_N], dtype=tl.float32)
    for start in range(0, hidden, BLOCK_K):
        x_mask, row_mask = here[:, None], there[:, None]
        if MASK_K:
            inside = (columns < hidden - start)[None, :]
            x_mask, row_mask = x_mask & inside, row_mask & inside
        x = tl.load(x_ptrs + start, mask=x_mask, other=0.0)
        row = tl.load(row_ptrs + start, mask=row_mask, other=0.0)
        acc = tl.dot(x, row.T, acc, input_precision="ieee")
    if bias_ptr is not None:
        acc += tl.load(bias_ptr + ids).to(tl.float32)[None, :]
    out_ptrs = out_ptr + tokens[:, None] * stride_out_token + ids[None, :]
    tl.store(out_ptrs, acc.to(out_ptr.dtype.element_ty), mask=here[:, None] & there[None, :])


_launch = Launcher(replaced_logits_kernel, writes=("out",), dependents="after the wait")


def _check(
    x: Tensor,
    replaced: ReplacedRows,
    bias: Tensor | None,
    order: Tensor,
    tiles: Tensor,
    numbers: Tensor,
    out: Tensor,
) -> None:
    rows, ids, spans = replaced.rows, replaced.ids, replaced.spans
    if (
        rows.shape != (len(ids), x.shape[1])
        or spans.shape[1:] != (2,)
        or len(out) != len(x)
        or len(order) != len(x)
        or numbers.shape != order.shape
        or tiles.shape[1:] != (4,)
        or (bias is not None and len(bias) < out.shape[1])
    ):
        raise shapes_error(
            "replaced_logits", x=x, rows=rows, ids=ids, spans=spans, bias=bias, order=order, tiles=tiles, out=out
        )
    held = (rows, ids, spans, order, tiles, numbers)
    if x.stride(1) != 1 or out.stride(1) != 1 or not all(each.is_contiguous() for each in held):
        raise ValueError("replaced_logits: tokens of x and out, rows, ids, spans and the tables must be contiguous")


def replaced_logits_triton(
    x: Tensor,
    replaced: ReplacedRows,
    bias: Tensor | None,
    order: Tensor,
    tiles: Tensor,
    numbers: Tensor,
    tile_tokens: int,
    out: Tensor,
) -> None:
    """Triton implementation. Raises ValueError for shapes and layouts that do not fit."""
    _check(x, replaced, bias, order, tiles, numbers, out)
    hidden, blocks = x.shape[1], triton.cdiv(replaced.most, _BLOCK_N)
    block_k = _STEP if x.element_size() == 2 else _STEP // 4
    if len(x) == 0 or replaced.most == 0:
        return
    _launch(
        (len(tiles) * blocks,),
        (x, replaced.rows, replaced.ids, replaced.spans, bias, order, tiles, numbers, out),
        (hidden, blocks, x.stride(0), out.stride(0)),
        MASK_K=hidden % block_k != 0,
        BLOCK_M=tile_tokens,
        BLOCK_N=_BLOCK_N,
        BLOCK_K=block_k,
        num_warps=_WARPS,
        num_stages=_STAGES,
    )


def replaced_logits_torch(
    x: Tensor,
    replaced: ReplacedRows,
    bias: Tensor | None,
    order: Tensor,
    tiles: Tensor,
    numbers: Tensor,
    tile_tokens: int,  # noqa: ARG001 - the tiles have their own lengths
    out: Tensor,
) -> None:
    """Torch implementation: the CPU path and the reference of the tests. Each GEMM has as many tokens."""
    _check(x, replaced, bias, order, tiles, numbers, out)
    rows, ids, of_number = replaced.rows, replaced.ids, replaced.spans.tolist()
    for first, count, _, _ in tiles.tolist():
        if count == 0:
            continue
        tokens = order[first : first + count].long()
        start, length = of_number[int(numbers[tokens[0]])]
        if length == 0:
            continue
        columns = ids[start : start + length].long()
        read = functional.pad(x[tokens], (0, 0, 0, -count % TILE_TOKENS)).split(TILE_TOKENS)
        made = torch.cat([functional.linear(part, rows[start : start + length]) for part in read])[:count]
        if bias is not None:
            made = made + bias[columns].to(made.dtype)
        out[tokens[:, None], columns] = made.to(out.dtype)


replaced_logits = register(replaced_logits_torch, mutates=("out",), triton=replaced_logits_triton)
