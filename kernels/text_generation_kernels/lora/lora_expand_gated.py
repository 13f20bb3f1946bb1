"""Expand of adapters of a gated MLP, and the activation behind it: gate and up are read once more, not twice.

    out = activation(gate) * up, where gate and up are the halves of base + delta

`delta` is what `lora_expand` computes, in the same kernel; operands are those of `lora_expand`, `base` `[tokens,
outputs]` and `out` `[tokens, outputs / 2]`, both of the model's type, in which gate and up are rounded before the
activation (`activations.py`), so that the result is that of `lora_expand` with `add` and `act_and_mul`, bit for bit.

A layer calls it once, behind the GEMM of the base and `lora_shrink`.
Bytes floor: 3 * tokens * outputs / 2 * element size, and the pages in use.
Lab: docs/lab/2026-11-adapters-on-a-card.md.
"""

from torch import Tensor

from ..norm.act_and_mul import act_and_mul_torch
from ..norm.activations import GATED
from ..runtime.register import register
from ..runtime.shapes import shapes_error
from .lora_expand import check_expand, launch_expand, lora_expand_torch
from .rank_pages import OUTPUT_BLOCK


def _check(base: Tensor, activation: str, out: Tensor) -> None:
    if activation not in GATED:
        raise ValueError(f"lora_expand_gated: unknown activation {activation!r}, use one of {', '.join(GATED)}")
    if base.shape != (len(out), 2 * out.shape[1]) or out.stride(1) != 1:
        raise shapes_error("lora_expand_gated", base=base, out=out)


def lora_expand_gated_triton(
    v: Tensor,
    b: Tensor,
    part_of_block: Tensor | None,
    order: Tensor,
    tiles: Tensor,
    work: Tensor,
    base: Tensor,
    activation: str,
    out: Tensor,
    run: int = OUTPUT_BLOCK,
) -> None:
    """Triton implementation. Raises ValueError for an unknown activation, shapes and layouts that do not fit."""
    check_expand("lora_expand_gated", v, b, part_of_block, order, tiles, work, base, run)
    _check(base, activation, out)
    launch_expand(v, b, part_of_block, order, tiles, work, base, activation, out, run)


def lora_expand_gated_torch(
    v: Tensor,
    b: Tensor,
    part_of_block: Tensor | None,
    order: Tensor,
    tiles: Tensor,
    work: Tensor,
    base: Tensor,
    activation: str,
    out: Tensor,
    run: int = OUTPUT_BLOCK,
) -> None:
    """Torch implementation: the CPU path and the reference of the tests."""
    check_expand("lora_expand_gated", v, b, part_of_block, order, tiles, work, base, run)
    _check(base, activation, out)
    sums = base.clone()
    lora_expand_torch(v, b, part_of_block, order, tiles, work, sums, True)
    act_and_mul_torch(sums, activation, out)


lora_expand_gated = register(lora_expand_gated_torch, mutates=("out",), triton=lora_expand_gated_triton)
