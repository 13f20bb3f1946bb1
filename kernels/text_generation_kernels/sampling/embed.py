"""Embedding lookup: rows of a table by their ids.

    out[i] = table[ids[i]]

Layouts: `ids` int64 `[N]`; `table` `[rows, hidden]`, unit stride in the last dimension; `out` `[N, hidden]`,
contiguous, of the same type. Ids must lie in the table.

Called once a step. It launches dependents early, so that the first GEMV prefetches its weights, as it cannot after the
library's kernel. Raises ValueError for layouts that the kernel does not read. Bytes floor: 2 * N * hidden * element
size. Measurements: docs/lab/2026-11-single-token-decode.md.
"""

# pyright: basic, reportArgumentType=false
import torch
from torch import Tensor

from ..runtime.launch import Launcher, launch_dependents, wait_for_previous
from ..runtime.register import register
from ..runtime.triton import tl, triton

_BLOCK = 1024


@triton.jit(do_not_specialize_on_alignment=["ids_ptr"])
def embed_kernel(
    ids_ptr,  # [N]
    table_ptr,  # [rows, hidden]
    out_ptr,  # [N, hidden]
    hidden,
    stride_table_row,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    """One thread block copies BLOCK elements of one row."""
    wait_for_previous(PDL)
    launch_dependents(PDL)
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    row = tl.load(ids_ptr + token)
    values = tl.load(table_ptr + row * stride_table_row + columns, mask=columns < hidden)
    tl.store(out_ptr + token * hidden + columns, values, mask=columns < hidden)


_launch = Launcher(embed_kernel, writes=("out",), dependents="after the wait")


def embed_triton(ids: Tensor, table: Tensor, out: Tensor) -> None:
    """Triton implementation. Raises ValueError for layouts that the kernel does not read."""
    if out.shape != (len(ids), table.shape[1]) or table.stride(1) != 1 or not out.is_contiguous():
        raise ValueError("embed: out must be contiguous with a row for each id, and table rows must have stride 1")
    if len(ids) == 0:
        return
    hidden = table.shape[1]
    _launch(
        (len(ids), triton.cdiv(hidden, _BLOCK)),
        (ids, table, out),
        (hidden, table.stride(0)),
        BLOCK=_BLOCK,
        num_warps=4,
    )


def embed_torch(ids: Tensor, table: Tensor, out: Tensor) -> None:
    """Torch implementation: the CPU path and the reference of the tests."""
    torch.index_select(table, 0, ids, out=out)


embed = register(embed_torch, mutates=("out",), triton=embed_triton)
