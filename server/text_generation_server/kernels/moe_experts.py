"""The experts of a mixture: gated MLPs, of which each token is computed by a few (Shazeer et al., 2017).

    out[t] = sum over j of weights[t, j] * (down[e] @ act(gate_up[e] @ x[t] + gate_up_bias[e]) + down_bias[e])
    where e = ids[t, j]

Layouts: `x`, `out` `[tokens, hidden]`; `gate_up` `[experts, 2 * inner, hidden]`, gate rows first; `down`
`[experts, hidden, inner]`; biases `[experts, 2 * inner]` and `[experts, hidden]`, or None; one floating type for all of
these. `ids` `[tokens, slots]` int32, each in 0 .. experts - 1, and `weights` `[tokens, slots]` float32, as `moe_route`
writes them. All contiguous. Activations: keys of `GATED` in `_activations.py`.
Sums are float32; what is rounded is the activation, each expert's weighted output and their sum, which is taken in the
order of the slots: no result depends on which program is first. With `deterministic`, a token's result does not depend
on the other tokens either, to the bit.

Called once a layer. Rows are sorted by expert (`moe_align.py`), then both products go over tiles of rows of one expert
(`_moe_product.py`), then each token's slots are added up. A few tokens are not sorted. Nothing is read on the host.
Bytes floor: 3 * experts hit * inner * hidden * element size.
"""

# pyright: basic, reportArgumentType=false, reportCallIssue=false
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from ._activations import GATED
from ._config import nearest
from ._device import shared_kib
from ._launch import Launcher, let_next_start, rehearsing, wait_for_previous
from ._moe_product import moe_product
from ._register import register
from ._triton import tl, triton
from .moe_align import moe_align_triton

_DIRECT = 1
"""Rows of a tile that is not sorted."""
_HEIGHTS = (_DIRECT, 16, 64, 128)
"""Rows of a tile: every one that may be chosen."""
_DETERMINISTIC = 64
"""Rows of a tile, and of a product of torch, in deterministic mode, whatever is in the step."""
_SMALLEST_TILE = 16
"""Rows that a matrix instruction takes at least."""
_COMBINE_BLOCK = 1024


class Tiles(NamedTuple):
    """How both products are launched."""

    height: int
    up: Mapping[str, int]
    down: Mapping[str, int]


@triton.jit
def moe_combine_kernel(
    rows_ptr,  # [tokens, SLOTS, hidden]
    out_ptr,  # [tokens, hidden]
    hidden,
    SLOTS: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    """One program adds up BLOCK columns of one token."""
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    valid = columns < hidden
    let_next_start(PDL)
    wait_for_previous(PDL)
    total = tl.zeros([BLOCK], tl.float32)
    for slot in tl.static_range(SLOTS):
        row_ptr = rows_ptr + (token * SLOTS + slot) * hidden
        total += tl.load(row_ptr + columns, mask=valid, other=0.0).to(tl.float32)
    tl.store(out_ptr + token * hidden + columns, total.to(out_ptr.dtype.element_ty), mask=valid)


_launch_combine = Launcher(moe_combine_kernel)


def tiles_of(height: int, gate_up: Tensor, down: Tensor) -> Tiles:
    """The launch settings for tiles of so many rows."""
    card = {"shared_kib": shared_kib(down.device), "block_m": height}
    up, back = (nearest("moe_product", **card, outputs=each.shape[1], inputs=each.shape[2]) for each in (gate_up, down))
    return Tiles(height, up, back)


def tile_height(tokens: int, slots: int, experts: int, deterministic: bool) -> int:
    """How many rows a tile has, by how many rows an expert has.

    Where few of the experts are hit, hardly two tokens share one: each row is a tile.
    """
    if deterministic:
        return _DETERMINISTIC
    if tokens == 1 or 8 * tokens * slots <= experts:
        return _DIRECT
    return nearest("moe_align", rows=max(1, tokens * slots // experts))["BLOCK_M"]


def moe_experts_triton(
    x: Tensor,
    ids: Tensor,
    weights: Tensor,
    gate_up: Tensor,
    gate_up_bias: Tensor | None,
    down: Tensor,
    down_bias: Tensor | None,
    activation: str,
    deterministic: bool,
    out: Tensor,
) -> None:
    """Triton implementation. Raises ValueError for shapes and layouts that do not fit."""
    _check(x, ids, weights, gate_up, gate_up_bias, down, down_bias, activation, out)
    if not len(x):
        return
    chosen = tile_height(*ids.shape, len(down), deterministic)
    # Tiles follow from the number of tokens, and a rehearsal does not meet all of those.
    heights = _HEIGHTS if rehearsing() and not deterministic else (chosen,)
    for height in heights:
        tiles = tiles_of(height, gate_up, down)
        run_experts(x, ids, weights, gate_up, gate_up_bias, down, down_bias, activation, tiles, out)


def run_experts(
    x: Tensor,
    ids: Tensor,
    weights: Tensor,
    gate_up: Tensor,
    gate_up_bias: Tensor | None,
    down: Tensor,
    down_bias: Tensor | None,
    activation: str,
    tiles: Tiles,
    out: Tensor,
) -> None:
    """Launches the kernels with these tiles."""
    tokens, slots = ids.shape
    experts, hidden, inner = down.shape
    alignment = None if tiles.height == _DIRECT else moe_align_triton(ids, experts, tiles.height)
    block_m = max(tiles.height, _SMALLEST_TILE)
    activated, rows = x.new_empty(tokens * slots, inner), x.new_empty(tokens * slots, hidden)
    moe_product(x, gate_up, gate_up_bias, ids, alignment, None, activation, block_m, tiles.up, activated)
    moe_product(activated, down, down_bias, ids, alignment, weights, None, block_m, tiles.down, rows)
    _launch_combine(
        (tokens, triton.cdiv(hidden, _COMBINE_BLOCK)),
        (rows, out),
        (hidden,),
        SLOTS=slots,
        BLOCK=_COMBINE_BLOCK,
        num_warps=4,
    )


def _check(
    x: Tensor,
    ids: Tensor,
    weights: Tensor,
    gate_up: Tensor,
    gate_up_bias: Tensor | None,
    down: Tensor,
    down_bias: Tensor | None,
    activation: str,
    out: Tensor,
) -> None:
    if activation not in GATED:
        raise ValueError(f"moe_experts: unknown activation {activation!r}, use one of {', '.join(GATED)}")
    experts, hidden, inner = down.shape
    expected = [
        (x, (len(x), hidden)),
        (out, (len(x), hidden)),
        (ids, (len(x), ids.shape[1])),
        (weights, tuple(ids.shape)),
        (gate_up, (experts, 2 * inner, hidden)),
        (gate_up_bias, (experts, 2 * inner)),
        (down_bias, (experts, hidden)),
    ]
    if any(tensor is not None and tensor.shape != shape for tensor, shape in expected):
        shapes = [tuple(tensor.shape) for tensor, _ in [*expected, (down, ())] if tensor is not None]
        raise ValueError(f"moe_experts: shapes do not fit: {shapes}")
    if not all(tensor.is_contiguous() for tensor, _ in [*expected, (down, ())] if tensor is not None):
        raise ValueError("moe_experts: every tensor must be contiguous")


def moe_experts_torch(
    x: Tensor,
    ids: Tensor,
    weights: Tensor,
    gate_up: Tensor,
    gate_up_bias: Tensor | None,
    down: Tensor,
    down_bias: Tensor | None,
    activation: str,
    deterministic: bool,
    out: Tensor,
) -> None:
    """Torch implementation: the CPU path and the reference of the tests. Reads on the host which experts are hit."""
    tokens, slots = ids.shape
    flat = ids.flatten()
    order = flat.argsort(stable=True)
    counts = torch.bincount(flat, minlength=len(down)).tolist()
    rows = x.new_empty(tokens * slots, x.shape[1])
    for expert, own in enumerate(order.split(counts)):
        if len(own):
            biases = [None if bias is None else bias[expert] for bias in (gate_up_bias, down_bias)]
            gate, up = _product(x[own // slots], gate_up[expert], biases[0], deterministic).chunk(2, dim=1)
            activated = GATED[activation](gate.float(), up).to(x.dtype)
            output = _product(activated, down[expert], biases[1], deterministic)
            rows[own] = (output * weights.flatten()[own, None]).to(x.dtype)
    out.copy_(rows.view(tokens, slots, -1).sum(dim=1, dtype=torch.float32))


def _product(x: Tensor, weight: Tensor, bias: Tensor | None, deterministic: bool) -> Tensor:
    """`x @ weight.T + bias`; with `deterministic` for a fixed number of tokens at a time, because libraries choose
    their way of adding up by that number.
    """
    if not deterministic:
        return functional.linear(x, weight, bias)
    padded = functional.pad(x, (0, 0, 0, -len(x) % _DETERMINISTIC))
    parts = [functional.linear(part, weight, bias) for part in padded.split(_DETERMINISTIC)]
    return torch.cat(parts)[: len(x)]


moe_experts = register(moe_experts_torch, mutates=("out",), triton=moe_experts_triton)
