"""Receiving half of the single-token all-reduce that `send_linear` begins, fused with residual add + RMSNorm.

    x = sum of what all ranks sent, in their order, in float32, rounded to the storage type
    residual, out = add_rms_norm(x, residual, weight, eps, x_scale, x_weight)      (where there is a weight)
    out = x                                                                        (where there is none)

Layouts `[1, hidden]`, types and bits as in `allreduce_add_norm`. It follows `send_linear`, with nothing of the same
exchange between. Values themselves signal their arrival (`exchange.py`), so this kernel waits for no other and is
resident while the last thread blocks of the GEMV run. Called by `SentAllReduce` in steps of one token.
A step of one stream of 8B on two H200 takes 2.60 ms, 0.02 less than without. Measurements:
docs/lab/2026-11-all-reduce-kernels.md.
"""

# pyright: basic, reportArgumentType=false, reportGeneralTypeIssues=false
from torch import Tensor

from ..runtime.launch import Launcher, launch_dependents, wait_for_previous
from ..runtime.settings import nearest
from ..runtime.triton import tl, triton
from ._add_norm_row import constants_of, finish_row
from .allreduce_add_norm import CLEAR, reduce_ranks
from .exchange import CHECKED, Exchange, address_of, buffer_at, clear_last, pass_turn, receive, turn_of


@triton.jit
def receive_kernel(
    out_ptr,  # [1, hidden]
    residual_ptr,  # [1, hidden], updated in place, or None
    weight_ptr,  # [hidden] or None
    x_weight_ptr,  # [hidden] or None
    control_ptr,
    hidden,
    eps,
    X_SCALE: tl.constexpr,
    RANK: tl.constexpr,
    WORLD: tl.constexpr,
    RANKS: tl.constexpr,  # power of two, at least WORLD
    BLOCK: tl.constexpr,  # power of two, at least hidden
    SET_BYTES: tl.constexpr,
    BITS: tl.constexpr,
    NOTHING: tl.constexpr,
    CLEAR: tl.constexpr,
    CHECKED: tl.constexpr,
    PDL: tl.constexpr,
):
    """One thread block does everything.

    The GEMV's thread blocks have waited for all kernels before it, so those are finished; loads of what they wrote
    bypass L1, which may hold older lines. The GEMV has read all of its input once this rank's own results are here, so
    `out` may be the memory of that input.
    """
    launch_dependents(PDL)
    turn = turn_of(control_ptr)
    own = address_of(control_ptr, RANK)
    columns = tl.arange(0, BLOCK)
    stored = columns < hidden
    residual = tl.zeros([BLOCK], dtype=tl.float32)
    if residual_ptr is not None:
        residual = tl.load(residual_ptr + columns, mask=stored, other=0.0, cache_modifier=".cg").to(tl.float32)
    weight, x_weight = constants_of(weight_ptr, x_weight_ptr, columns, stored)
    clear_last(control_ptr, own, turn, (hidden * WORLD * BITS.primitive_bitwidth + 31) // 32, SET_BYTES, CLEAR)

    ranks = tl.arange(0, RANKS)[:, None]
    valid = (ranks < WORLD) & stored[None, :]
    source_ptr = buffer_at(own, turn, SET_BYTES, BITS)
    words = receive(source_ptr + ranks * hidden + columns[None, :], valid, control_ptr, NOTHING, CHECKED)
    pass_turn(control_ptr)
    x = reduce_ranks(words, valid, out_ptr.dtype.element_ty, WORLD, RANKS)
    finish_row(
        x, residual, weight, x_weight, columns, stored,
        residual_ptr, weight_ptr, x_weight_ptr, out_ptr, hidden, eps, X_SCALE,
    )  # fmt: skip
    # Kernels that wait for this one rely on the GEMV being finished as well.
    wait_for_previous(PDL)


_launch = Launcher(
    receive_kernel, writes=("out", "residual", "control"), reads_early=("residual", "weight", "x_weight", "control")
)


def allreduce_add_norm_receive(
    out: Tensor,
    residual: Tensor | None,
    weight: Tensor | None,
    eps: float,
    x_scale: float,
    x_weight: Tensor | None,
    exchange: Exchange,
) -> None:
    """Every rank calls it after `send_linear`. `out` and `residual` are contiguous. Triton only."""
    hidden = out.shape[-1]
    block = triton.next_power_of_2(hidden)
    _launch(
        (1,),
        (out, residual, weight, x_weight, exchange.control),
        (hidden,),
        (eps,),
        X_SCALE=x_scale,
        RANK=exchange.rank,
        RANKS=triton.next_power_of_2(exchange.world_size),
        BLOCK=block,
        CLEAR=CLEAR,
        CHECKED=CHECKED if out.is_cuda else 0,
        **exchange.constants(out),
        **nearest("add_rms_norm", block=block),
    )
