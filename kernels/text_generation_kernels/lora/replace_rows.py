"""Rows of an embedding that adapters replace: those of tokens that they have trained, or of all.

    out[t] = rows[places[numbers[t], ids[t]]]      where that place is not negative; elsewhere out[t] stays

Layouts: `ids` `[tokens]` int64, columns of `places`; `numbers` `[tokens]` int32, rows of `places`, 0 for tokens without
adapter; `places` `[adapters + 1, ids]` int32, contiguous; `rows` `[any, hidden]`, `out` `[tokens, hidden]`, contiguous,
of one floating type. ValueError for shapes that do not fit.

A step calls it once, behind `embed`. Bytes floor: 2 * hidden * element size for each row that is replaced.
"""

# pyright: basic, reportArgumentType=false
import torch
from torch import Tensor

from ..runtime.launch import Launcher, launch_dependents, wait_for_previous
from ..runtime.register import register
from ..runtime.shapes import shapes_error
from ..runtime.triton import tl, triton

_BLOCK = 1024


@triton.jit(do_not_specialize_on_alignment=["ids_ptr", "numbers_ptr"])
def replace_rows_kernel(
    ids_ptr,  # [tokens] int64
    numbers_ptr,  # [tokens] int32
    places_ptr,  # [adapters + 1, ids] int32
    rows_ptr,  # [any, hidden]
    out_ptr,  # [tokens, hidden]
    hidden,
    stride_places,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    """One thread block copies BLOCK elements of one row, where it is replaced."""
    wait_for_previous(PDL)
    launch_dependents(PDL)
    token = tl.program_id(0).to(tl.int64)
    number = tl.load(numbers_ptr + token).to(tl.int64)
    place = tl.load(places_ptr + number * stride_places + tl.load(ids_ptr + token)).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    stored = (columns < hidden) & (place >= 0)
    values = tl.load(rows_ptr + place * hidden + columns, mask=stored)
    tl.store(out_ptr + token * hidden + columns, values, mask=stored)


_launch = Launcher(replace_rows_kernel, writes=("out",), dependents="after the wait")


def _check(ids: Tensor, numbers: Tensor, places: Tensor, rows: Tensor, out: Tensor) -> None:
    fits = out.shape == (len(ids), rows.shape[1]) and numbers.shape == ids.shape and places.dim() == 2
    if not fits or rows.dtype != out.dtype:
        raise shapes_error("replace_rows", ids=ids, numbers=numbers, places=places, rows=rows, out=out)
    if not all(each.is_contiguous() for each in (ids, numbers, places, rows, out)):
        raise ValueError("replace_rows: every tensor must be contiguous")


def replace_rows_triton(ids: Tensor, numbers: Tensor, places: Tensor, rows: Tensor, out: Tensor) -> None:
    """Triton implementation. Raises ValueError for shapes and layouts that do not fit."""
    _check(ids, numbers, places, rows, out)
    if len(ids) == 0:
        return
    hidden = rows.shape[1]
    grid = (len(ids), triton.cdiv(hidden, _BLOCK))
    _launch(grid, (ids, numbers, places, rows, out), (hidden, places.stride(0)), BLOCK=_BLOCK, num_warps=4)


def replace_rows_torch(ids: Tensor, numbers: Tensor, places: Tensor, rows: Tensor, out: Tensor) -> None:
    """Torch implementation: the CPU path and the reference of the tests."""
    _check(ids, numbers, places, rows, out)
    if len(rows) == 0:
        return
    place = places[numbers.long(), ids].long()
    torch.where((place >= 0)[:, None], rows[place.clamp(min=0)], out, out=out)


replace_rows = register(replace_rows_torch, mutates=("out",), triton=replace_rows_triton)
