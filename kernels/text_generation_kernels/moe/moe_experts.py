"""The experts of a mixture: MLPs, gated or not, of which each token has its top-k (Shazeer et al., 2017).

    out[t] = sum over j of weights[t, j] * (down[e] @ act(gate_up[e] @ x[t] + gate_up_bias[e]) + down_bias[e])
    where e = ids[t, j]

Layouts: `x`, `out` `[tokens, hidden]`, one floating type; `experts` (`ExpertMlps`) in the type of `x` or as codes, with
biases in the type of `x` or none; ids and weights as `moe_route` writes them (`Routing`). All contiguous.

A rank may have only some of a mixture's experts (`all_experts`): ids of those of other ranks add nothing to `out`.
Otherwise all ids must be inside. ValueError for an unknown activation, and for shapes and layouts that do not fit.

Sums are float32; what is rounded is the activation, each expert's weighted output and their sum, which is taken in the
order of the slots, and with `adds` the sum of that and of what was in `out`: no result depends on which thread block
is first. With `deterministic`, a token's result does not depend on the other tokens either, to the bit.

A layer calls it once. Rows are sorted by expert (`moe_align.py`), then the up and down GEMMs go over tiles of rows of
one expert, then each token's slots are added up; `experts_ladder.py` chooses the kernels. Few tokens are not sorted,
and with 16-bit weights their down GEMV adds up the slots itself (`experts_gemv.py`). The host reads nothing back.
Bytes floor: 3 * experts hit * inner * hidden * bytes of a weight, 2
without a gate. On an H200 64 tokens of Qwen3-30B-A3B take 284 us in bfloat16.
Lab: docs/lab/2026-11-mixture-of-experts.md.
"""

# pyright: basic, reportArgumentType=false, reportCallIssue=false
from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

from ..matmul.bf16_gemv import load_residual, store_with_residual
from ..matmul.group_quantisation import BLOCK
from ..matmul.ladder import MatmulKernel, Settings, sizes_to_launch
from ..norm.activations import ALONE, GATED
from ..runtime.launch import Launcher, launch_dependents, wait_for_previous
from ..runtime.register import register
from ..runtime.triton import tl, triton
from ._experts_torch import moe_experts_torch
from ._grouped_gemm_tiles import is_here
from .expert_matrix import ExpertMatrix
from .expert_mlps import ExpertMlps
from .expert_rows import ExpertRows
from .experts_ladder import DIRECT, EXPERT_GEMV_SUM, EXPERTS, ExpertProblem, heights_of, tile_height
from .moe_align import moe_align_triton
from .routing import Routing

_COMBINE_BLOCK = 1024


Deltas = Callable[[Tensor, tuple[Tensor, Tensor, Tensor], bool], Tensor | None]
"""Makes what adapters add to a GEMM (`ExpertRows.delta`), of its inputs, the alignment, and whether it is up."""


class Tiles(NamedTuple):
    """Launch settings of the up and the down GEMM."""

    height: int
    up: Settings
    down: Settings


@triton.jit
def moe_combine_kernel(
    rows_ptr,  # [tokens, SLOTS, hidden]
    ids_ptr,  # [tokens, SLOTS] int32
    out_ptr,  # [tokens, hidden]
    hidden,
    SLOTS: tl.constexpr,
    HELD: tl.constexpr,  # experts of this rank, where other ranks have some; else None
    ADDS: tl.constexpr,  # whether the result is added to what is in `out`
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    """One thread block adds up BLOCK columns of one token."""
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    valid = columns < hidden
    launch_dependents(PDL)
    wait_for_previous(PDL)
    total = tl.zeros([BLOCK], tl.float32)
    for slot in tl.static_range(SLOTS):
        row = token * SLOTS + slot
        here = valid
        if HELD is not None:
            here = valid & is_here(tl.load(ids_ptr + row), HELD)
        total += tl.load(rows_ptr + row * hidden + columns, mask=here, other=0.0).to(tl.float32)
    out_ptrs = out_ptr + token * hidden + columns
    store_with_residual(out_ptrs, total, load_residual(out_ptrs, valid, ADDS), valid, ADDS)


_launch_combine = Launcher(moe_combine_kernel, writes=("out",))


def tiles_of(height: int, experts: ExpertMlps) -> Tiles:
    """Launch settings for tiles of `height` rows, which is chosen for the down weight: where that has 4 bits and the up
    weight 8, as in checkpoints with exceptions, the latter gets the height that is chosen for 4.
    """
    up = ExpertProblem.of(experts.gate_up, experts.hidden, height, is_down=False)
    last = ExpertProblem.of(experts.down, experts.inner, height, is_down=True)
    return Tiles(height, EXPERTS.pick(up).settings, EXPERTS.pick(last).settings)


def moe_experts(
    x: Tensor, routing: Routing, experts: ExpertMlps, deterministic: bool, out: Tensor, adds: bool = False
) -> None:
    """Writes `out`, or adds to it. Raises ValueError for shapes and layouts that do not fit."""
    check_experts(x, routing, experts, out)
    if len(x):
        _moe_experts(x, routing, experts, deterministic, out, adds)


def moe_experts_triton(
    x: Tensor, routing: Routing, experts: ExpertMlps, deterministic: bool, out: Tensor, adds: bool = False
) -> None:
    """Triton implementation."""
    bits = experts.down.bits
    chosen = tile_height(*routing.ids.shape, experts.total, bits, deterministic)
    every = (chosen,) if deterministic else heights_of(bits)
    for height in sizes_to_launch(chosen, every):
        run_experts(x, routing, experts, tiles_of(height, experts), out, adds)


def run_experts(
    x: Tensor,
    routing: Routing,
    experts: ExpertMlps,
    tiles: Tiles,
    out: Tensor,
    adds: bool = False,
    deltas: Deltas | None = None,
) -> None:
    """Launches the kernels with these tiles, which are not direct with `deltas`."""
    ids, down, held = routing.ids, experts.down, experts.held
    tokens, slots = ids.shape
    hidden, inner = experts.hidden, experts.inner
    alignment = None if tiles.height == DIRECT else moe_align_triton(ids, down.experts, tiles.height, held)
    activated = x.new_empty(tokens * slots, inner)
    delta = None if deltas is None or alignment is None else deltas(x, alignment, True)
    up_rows = ExpertRows(ids, alignment, None, experts.activation, tiles.height, held, delta=delta)
    expert_gemm(x, experts.gate_up, up_rows, activated, tiles.up)
    delta = None if deltas is None or alignment is None else deltas(activated, alignment, False)
    down_rows = ExpertRows(ids, alignment, routing.weights, None, tiles.height, held, adds, delta)
    if kernel_of(down, inner, down_rows) is EXPERT_GEMV_SUM:
        expert_gemm(activated, down, down_rows, out, tiles.down)
        return
    rows = x.new_empty(tokens * slots, hidden)
    expert_gemm(activated, down, down_rows, rows, tiles.down)
    _launch_combine(
        (tokens, triton.cdiv(hidden, _COMBINE_BLOCK)),
        (rows, ids, out),
        (hidden,),
        SLOTS=slots,
        HELD=held,
        ADDS=adds,
        BLOCK=_COMBINE_BLOCK,
        num_warps=4,
    )


def kernel_of(matrix: ExpertMatrix, inputs: int, rows: ExpertRows) -> MatmulKernel[ExpertProblem]:
    """The kernel of the up or the down GEMM."""
    return EXPERTS.pick(ExpertProblem.of(matrix, inputs, rows.height, rows.weights is not None)).kernel


def expert_gemm(x: Tensor, matrix: ExpertMatrix, rows: ExpertRows, out: Tensor, settings: Settings) -> None:
    """Launches the up or the down GEMM. Where `kernel_of` says `expert_gemv_sum`, `out` has a row for each token, else
    for each row.
    """
    kernel_of(matrix, x.shape[1], rows).launch(x, matrix, rows, out, settings)


def check_experts(x: Tensor, routing: Routing, experts: ExpertMlps, out: Tensor) -> None:
    """Raises ValueError for what does not fit."""
    activation, gate_up, down = experts.activation, experts.gate_up, experts.down
    if activation not in GATED | ALONE:
        raise ValueError(f"moe_experts: unknown activation {activation!r}, use one of {', '.join(GATED | ALONE)}")
    hidden, inner = experts.hidden, experts.inner
    outputs = 2 * inner if activation in GATED else inner
    expected = [
        (x, (len(x), hidden)),
        (out, (len(x), hidden)),
        (routing.ids, (len(x), routing.ids.shape[1])),
        (routing.weights, tuple(routing.ids.shape)),
        (gate_up.weight, (down.experts, outputs, _width(gate_up, hidden))),
        (gate_up.bias, (down.experts, outputs)),
        (down.weight, (down.experts, hidden, _width(down, inner))),
        (down.bias, (down.experts, hidden)),
        (gate_up.factors, (down.experts * outputs,)),
        (down.factors, (down.experts * hidden,)),
    ]
    if any(tensor is not None and tensor.shape != shape for tensor, shape in expected):
        shapes = [tuple(tensor.shape) for tensor, _ in expected if tensor is not None]
        raise ValueError(f"moe_experts: shapes do not fit: {shapes}")
    held = [tensor for tensor, _ in expected] + [gate_up.scales, gate_up.zeros, down.scales, down.zeros]
    if not all(tensor.is_contiguous() for tensor in held if tensor is not None):
        raise ValueError("moe_experts: every tensor must be contiguous")


def _width(matrix: ExpertMatrix, inputs: int) -> int:
    """The last dimension of a stored weight with `inputs` inputs."""
    return -(-inputs // BLOCK) * BLOCK // 8 if matrix.is_packed and matrix.bits == 4 else inputs


_moe_experts = register(moe_experts_torch, mutates=("out",), triton=moe_experts_triton)
