"""The experts of a mixture with adapters (`moe_experts.py`, `expert_factors.py`).

    out[t] = sum over j of weights[t, j] * (down'[e] @ act(gate_up'[e] @ x[t] + gate_up_bias[e]) + down_bias[e])
    where e = ids[t, j] and W' = W + scale * B A of expert e and the adapter of token t

Layouts, activations and errors are those of `moe_experts`; `numbers` `[tokens]` int32 is the number of each token's
adapter, 0 for none; `up` and `down_factors` are what adapters add to both matrices, None where none adds anything.
ValueError for shapes that do not fit.

What adapters add is rounded once, and added to float32 sums of the base's GEMM before its epilogue. So with
`deterministic` a token without adapter has the bits that `moe_experts` gives.

A layer calls it once in a step whose tokens use adapters. Rows are always sorted by expert; for each of both GEMMs
shrink and expand run before it, over the same tiles. Bytes floor: that of `moe_experts` and of both.
"""

# pyright: basic, reportArgumentType=false, reportCallIssue=false
from functools import partial

from torch import Tensor

from ..matmul.ladder import sizes_to_launch
from ..runtime.register import by_device
from ._experts_torch import activated_rows, gemm_in_blocks, gemm_of_expert, sum_of_slots
from .expert_expand import expert_expand_triton
from .expert_factors import ExpertFactors, check_factors
from .expert_matrix import ExpertMatrix
from .expert_shrink import expert_shrink_triton
from .experts_ladder import heights_of, tile_height
from .moe_experts import check_experts, inner_of, run_experts, tiles_of

_LEAST_HEIGHT = 16
"""Rows of a tile: what a matrix instruction takes."""


def adapted_experts(
    x: Tensor,
    ids: Tensor,
    weights: Tensor,
    gate_up: ExpertMatrix,
    down: ExpertMatrix,
    activation: str,
    deterministic: bool,
    out: Tensor,
    numbers: Tensor,
    up_factors: ExpertFactors | None,
    down_factors: ExpertFactors | None,
    all_experts: int | None = None,
    adds: bool = False,
) -> None:
    """Writes `out`, or adds to it. `all_experts`: how many the mixture has, where other ranks have some of them. Raises
    ValueError for shapes and layouts that do not fit.
    """
    check_experts(x, ids, weights, gate_up, down, activation, out)
    inner = inner_of(gate_up, activation)
    for factors, matrix, inputs in ((up_factors, gate_up, down.outputs), (down_factors, down, inner)):
        if factors is not None:
            check_factors("adapted_experts", factors, down.experts, matrix.outputs, inputs)
    if len(numbers) != len(x):
        raise ValueError(f"adapted_experts: {len(x)} tokens have {len(numbers)} adapters")
    if len(x):
        matrices, factors = (gate_up, down), (up_factors, down_factors)
        every = all_experts or down.experts
        _adapted_experts(x, ids, weights, matrices, activation, deterministic, out, numbers, factors, every, adds)


def adapted_experts_triton(
    x: Tensor,
    ids: Tensor,
    weights: Tensor,
    matrices: tuple[ExpertMatrix, ExpertMatrix],
    activation: str,
    deterministic: bool,
    out: Tensor,
    numbers: Tensor,
    factors: tuple[ExpertFactors | None, ExpertFactors | None],
    all_experts: int,
    adds: bool = False,
) -> None:
    """Triton implementation."""
    gate_up, down = matrices
    chosen = max(_LEAST_HEIGHT, tile_height(*ids.shape, all_experts, down.bits, deterministic))
    held = down.experts if down.experts < all_experts else None
    every = {max(_LEAST_HEIGHT, height) for height in heights_of(down.bits)}
    for height in sizes_to_launch(chosen, (chosen,) if deterministic else sorted(every)):
        tiles = tiles_of(height, gate_up, down, activation)
        deltas = partial(adapter_deltas, factors, numbers, ids.shape[1], height)
        run_experts(x, ids, weights, gate_up, down, activation, tiles, out, held, adds, deltas)


def adapter_deltas(
    factors: tuple[ExpertFactors | None, ExpertFactors | None],
    numbers: Tensor,
    slots: int,
    height: int,
    x: Tensor,
    alignment: tuple[Tensor, Tensor, Tensor],
    is_up: bool,
) -> Tensor | None:
    """See `Deltas`."""
    own = factors[0 if is_up else 1]
    if own is None:
        return None
    v = expert_shrink_triton(x, own, numbers, alignment, slots, height, is_up)
    return expert_expand_triton(v, own, numbers, alignment, slots, height)


def adapted_experts_torch(
    x: Tensor,
    ids: Tensor,
    weights: Tensor,
    matrices: tuple[ExpertMatrix, ExpertMatrix],
    activation: str,
    deterministic: bool,
    out: Tensor,
    numbers: Tensor,
    factors: tuple[ExpertFactors | None, ExpertFactors | None],
    all_experts: int,
    adds: bool = False,
) -> None:
    """Torch implementation: the CPU path and the reference of the tests. Reads on the host which experts are hit."""
    (gate_up, down), slots = matrices, ids.shape[1]
    alone = deterministic and not x.is_cuda

    def rows_of(own: Tensor, expert: int) -> Tensor:
        tokens = own // slots
        read, used = x[tokens], numbers[tokens]
        result = gemm_of_expert(read, gate_up, expert, deterministic)
        result = _changed(result, read, factors[0], expert, used, deterministic)
        activated = activated_rows(result, activation, alone).to(x.dtype)
        output = gemm_of_expert(activated, down, expert, deterministic)
        return _changed(output, activated, factors[1], expert, used, deterministic)

    sum_of_slots(x, ids, weights, down.experts, all_experts, rows_of, out, adds)


def _changed(
    result: Tensor, x: Tensor, factors: ExpertFactors | None, expert: int, numbers: Tensor, deterministic: bool
) -> Tensor:
    """Returns the result of an expert's GEMM with what the rows' adapters add."""
    if factors is None:
        return result
    made = result.clone()
    for number in numbers.unique().tolist():
        first, count = factors.spans[number].tolist()
        if count == 0:
            continue
        pages, rows = slice(first, first + count), (numbers == number).nonzero()[:, 0]
        a = factors.a[pages, expert].flatten(0, 1).float()
        b = factors.b[pages, expert].transpose(0, 1).flatten(1).float()
        v = gemm_in_blocks(x[rows].float(), a, None, deterministic) * factors.scale[pages, expert].flatten()
        delta = gemm_in_blocks(v, b, None, deterministic)
        made[rows] = (result[rows].float() + delta).to(result.dtype)
    return made


_adapted_experts = by_device(adapted_experts_torch, adapted_experts_triton)
