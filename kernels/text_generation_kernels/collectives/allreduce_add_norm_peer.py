"""Fused epilogue of overlapped all-reduces: adds the inputs that peers copy here, then residual add + RMSNorm.

    x = sum of x and others in the order of the ranks, in float32, rounded to the storage type
    residual, out = add_rms_norm(x, residual, weight, eps, x_scale, x_weight)

Layouts, types and bits as in `allreduce_add_norm`. `others` `[ranks - 1, tokens, hidden]`, contiguous, is memory that
the other ranks copy to, in their order. `flag` `[1]` int32 counts the copies that have arrived; it is 0 afterwards.

Called by `CopiedAllReduce` at the end of an all-reduce that copy engines overlap with GEMMs. Bytes floor: (ranks + 1
reads, 2 writes) * tokens * hidden * element size.
"""

# pyright: basic, reportArgumentType=false, reportGeneralTypeIssues=false
from torch import Tensor

from ..runtime.launch import Launcher, arrivals, is_last, launch_dependents, wait_for_previous
from ..runtime.settings import nearest
from ..runtime.triton import tl, triton
from ._add_norm_row import constants_of, finish_row, residual_of
from .exchange import CHECKED, Exchange, announce_kernel, wait_for_flag


@triton.jit
def allreduce_add_norm_peer_kernel(
    x_ptr,  # [tokens, hidden]
    others_ptr,  # [WORLD - 1, tokens, hidden]
    residual_ptr,  # [tokens, hidden], updated in place, or None
    weight_ptr,  # [hidden] or None
    x_weight_ptr,  # [hidden] or None
    out_ptr,  # [tokens, hidden], may be x
    flag_ptr,  # [1] int32
    control_ptr,
    arrived_ptr,  # [1] int32, zero before and after
    hidden,
    eps,
    X_SCALE: tl.constexpr,
    RANK: tl.constexpr,
    WORLD: tl.constexpr,
    BLOCK: tl.constexpr,  # power of two, at least hidden
    CHECKED: tl.constexpr,
    PDL: tl.constexpr,
):
    """One thread block finishes one token."""
    columns = tl.arange(0, BLOCK)
    valid = columns < hidden
    weight, x_weight = constants_of(weight_ptr, x_weight_ptr, columns, valid)
    launch_dependents(PDL)
    wait_for_previous(PDL)
    at = tl.program_id(0).to(tl.int64) * hidden + columns
    residual = residual_of(residual_ptr, at, valid)
    own = tl.load(x_ptr + at, mask=valid, other=0.0).to(tl.float32)
    wait_for_flag(flag_ptr, WORLD - 1, control_ptr, CHECKED)
    size = tl.num_programs(0).to(tl.int64) * hidden
    x = tl.zeros([BLOCK], dtype=tl.float32)
    for rank in tl.static_range(WORLD):
        if rank == RANK:
            x += own
        else:
            x += tl.load(others_ptr + (rank - (rank > RANK)) * size + at, mask=valid, other=0.0).to(tl.float32)
    finish_row(
        x, residual, weight, x_weight, at, valid,
        residual_ptr, weight_ptr, x_weight_ptr, out_ptr, hidden, eps, X_SCALE,
    )  # fmt: skip
    if is_last(arrived_ptr, tl.num_programs(0)):
        tl.store(flag_ptr, 0)


_launch = Launcher(
    allreduce_add_norm_peer_kernel,
    writes=("out", "residual", "flag", "control:turn", "arrived"),
    reads_early=("weight", "x_weight"),
)
_launch_announce = Launcher(announce_kernel, writes=("flag",), dependents="at the end")


def allreduce_add_norm_peer(
    x: Tensor,
    others: Tensor,
    residual: Tensor | None,
    weight: Tensor | None,
    eps: float,
    x_scale: float,
    x_weight: Tensor | None,
    flag: Tensor,
    exchange: Exchange,
) -> None:
    """Writes `x` and `residual`, which are contiguous; without `weight`, `x` is the reduced input. Triton only."""
    tokens, hidden = x.shape
    block = triton.next_power_of_2(hidden)
    _launch(
        (tokens,),
        (x, others, residual, weight, x_weight, x, flag, exchange.control, arrivals(x.device, 1)),
        (hidden,),
        (eps,),
        X_SCALE=x_scale,
        RANK=exchange.rank,
        WORLD=exchange.world_size,
        BLOCK=block,
        CHECKED=CHECKED if x.is_cuda else 0,
        **nearest("add_rms_norm", block=block),
    )


def announce(flag: Tensor) -> None:
    """Increments the flag of another rank once the earlier copies of this stream have arrived there."""
    _launch_announce((1,), (flag,))
