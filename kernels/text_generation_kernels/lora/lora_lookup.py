"""Shrink of an adapter of an embedding: the column of A that belongs to each token's id, instead of a GEMM.

    v[0, w, 0, m] = a[page, ids[token]] * scale[page]

where work item w has a page and a tile, whose m-th token it is. `lora_expand` adds B of it to what was looked up.

Layouts: `ids` `[tokens]` int64, which must lie in the table; `a` `[pages, vocabulary, RANK_UNITS]` floating, contiguous
within a page; `scale` `[pages]` float32; `order`, `tiles`, `work`: `adapter_tiles.py`; `v` `[1, items of work, 1,
tokens of a tile, RANK_UNITS]` float32, contiguous. Rows of `v` that no token has are unspecified. ValueError for shapes
that do not fit.

A step calls it once. Bytes floor: for each token and page of its adapter RANK_UNITS elements, read and written.
"""

# pyright: basic, reportArgumentType=false, reportCallIssue=false
import torch
from torch import Tensor

from ..runtime.launch import Launcher, launch_dependents, wait_for_previous
from ..runtime.register import register
from ..runtime.shapes import shapes_error
from ..runtime.triton import tl, triton
from .rank_pages import RANK_UNITS, check_tables


@triton.jit(do_not_specialize_on_alignment=["ids_ptr", "order_ptr", "tiles_ptr", "work_ptr"])
def lora_lookup_kernel(
    ids_ptr,  # [tokens] int64
    a_ptr,  # [pages, vocabulary, UNITS]
    scale_ptr,  # [pages] float32
    order_ptr,  # [tokens] int32
    tiles_ptr,  # [tiles, 4] int32
    work_ptr,  # [items, 2] int32
    v_ptr,  # [items, BLOCK_M, UNITS] float32
    stride_a_page,
    UNITS: tl.constexpr,
    BLOCK_M: tl.constexpr,  # tokens of a tile
    PDL: tl.constexpr,
):
    """One thread block looks up the tokens of one work item."""
    wait_for_previous(PDL)
    launch_dependents(PDL)
    item = tl.program_id(0)
    page = tl.load(work_ptr + item * 2).to(tl.int64)
    tile = tl.load(work_ptr + item * 2 + 1)
    if tile < 0:
        return
    members = tl.arange(0, BLOCK_M)
    here = members < tl.load(tiles_ptr + tile * 4 + 1)
    tokens = tl.load(order_ptr + tl.load(tiles_ptr + tile * 4) + members, mask=here, other=0)
    ids = tl.load(ids_ptr + tokens, mask=here, other=0)
    units = tl.arange(0, UNITS)[None, :]
    a_ptrs = a_ptr + page * stride_a_page + ids[:, None] * UNITS + units
    a = tl.load(a_ptrs, mask=here[:, None], other=0.0).to(tl.float32)
    v_ptrs = v_ptr + item * (BLOCK_M * UNITS) + members[:, None] * UNITS + units
    tl.store(v_ptrs, a * tl.load(scale_ptr + page), mask=here[:, None])


_launch = Launcher(lora_lookup_kernel, writes=("v",), dependents="after the wait")


def _check(ids: Tensor, a: Tensor, scale: Tensor, order: Tensor, tiles: Tensor, work: Tensor, v: Tensor) -> None:
    if a.dim() != 3 or a.shape[2] != RANK_UNITS or scale.shape != a.shape[:1] or len(v) != 1 or len(order) != len(ids):
        raise shapes_error("lora_lookup", ids=ids, a=a, scale=scale, order=order, v=v)
    if not (a[:1].is_contiguous() and scale.is_contiguous() and ids.is_contiguous()):
        raise ValueError("lora_lookup: ids, pages of a, and scale must be contiguous")
    check_tables("lora_lookup", order, tiles, work, v, 1)


def lora_lookup_triton(
    ids: Tensor, a: Tensor, scale: Tensor, order: Tensor, tiles: Tensor, work: Tensor, v: Tensor
) -> None:
    """Triton implementation. Raises ValueError for shapes and layouts that do not fit."""
    _check(ids, a, scale, order, tiles, work, v)
    if len(work) == 0 or len(ids) == 0:
        return
    _launch(
        (len(work),),
        (ids, a, scale, order, tiles, work, v),
        (a.stride(0),),
        UNITS=RANK_UNITS,
        BLOCK_M=v.shape[3],
        num_warps=1,
    )


def lora_lookup_torch(
    ids: Tensor, a: Tensor, scale: Tensor, order: Tensor, tiles: Tensor, work: Tensor, v: Tensor
) -> None:
    """Torch implementation: the CPU path and the reference of the tests."""
    _check(ids, a, scale, order, tiles, work, v)
    if len(work) == 0 or len(ids) == 0:
        return
    page, tile = work.long().clamp(min=0).unbind(1)
    places = tiles.long()[tile, :1] + torch.arange(v.shape[3], device=v.device)
    read = ids[order.long()[places.clamp(max=len(order) - 1)]]
    v[0, :, 0] = a[page[:, None], read].float() * scale[page][:, None, None]


lora_lookup = register(lora_lookup_torch, mutates=("v",), triton=lora_lookup_triton)
