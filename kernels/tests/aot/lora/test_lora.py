"""Production variants of the kernels compile for every card, without a GPU."""

import pytest
import torch
import triton
from kernel_support.adapters import Range, Site
from kernel_support.aot import SM_90, Compiled, compile_offline
from kernel_support.variants import dry_run_variants, launched_variants, pretend_a_device
from triton.backends.compiler import GPUTarget

from text_generation_kernels.lora.lora_expand import lora_expand_kernel, lora_expand_triton
from text_generation_kernels.lora.lora_shrink import lora_shrink_kernel, lora_shrink_triton

TABLES = {"order_ptr": "*i32", "tiles_ptr": "*i32", "work_ptr": "*i32", "v_ptr": "*fp32", "items": "i32"}
QKV: list[Range] = [(0, 64, 0), (64, 80, 1), (80, 96, 2)]
CARDS = [GPUTarget("cuda", capability, 32) for capability in (80, 86, 89)]
TILES = {16: (16, 128, 2), 64: (32, 64, 4)}
"""Tokens, outputs and warps of a thread block of expand, by tokens of a tile."""


def _shrink(dtype: str, parts: int, tile_tokens: int, target: GPUTarget = SM_90) -> Compiled:
    types = TABLES | {"x_ptr": f"*{dtype}", "a_ptr": f"*{dtype}", "scale_ptr": "*fp32"}
    types |= dict.fromkeys(("inputs", "inputs_of_split", "stride_x_token"), "i32")
    types |= dict.fromkeys(("stride_a_page", "stride_scale_page"), "i32")
    constants = {"SPLITS": 8, "PARTS": parts, "UNITS": 16, "MASK_K": False, "BLOCK_M": tile_tokens}
    constants |= {"BLOCK_N": triton.next_power_of_2(parts * 16), "BLOCK_K": 32 if dtype == "fp32" else 128}
    return compile_offline(lora_shrink_kernel, types, constants, 2, 3, target)


def _expand(
    dtype: str,
    parts: int,
    tile_tokens: int,
    add: bool = False,
    activation: str | None = None,
    target: GPUTarget = SM_90,
) -> Compiled:
    tokens, outputs, warps = TILES[tile_tokens]
    types = TABLES | {"b_ptr": f"*{dtype}", "out_ptr": f"*{dtype}" if add else "*fp32"}
    types |= dict.fromkeys(("outputs", "stride_b_page", "stride_base_token", "stride_out_token"), "i32")
    types |= {"part_of_block_ptr": "*i32"} if parts > 1 else {}
    types |= {"base_ptr": f"*{dtype}"} if add else {}
    splits = 8 if tile_tokens == 16 else 1
    constants = {"ACTIVATION": activation, "IN_PLACE": add and activation is None, "SPLITS": splits, "PARTS": parts}
    constants |= {"UNITS": 16, "OUTPUT_BLOCK": 16, "BLOCK_M": tile_tokens, "TOKENS": tokens, "BLOCK_N": outputs}
    constants |= {"ONE_PART": parts < 3}
    constants |= {} if parts > 1 else {"part_of_block_ptr": None}
    constants |= {} if add else {"base_ptr": None}
    return compile_offline(lora_expand_kernel, types, constants, warps, 1, target)


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
@pytest.mark.parametrize("parts", [1, 2, 3])
@pytest.mark.parametrize("tile_tokens", list(TILES))
def test_shrink_has_no_spills_and_wide_accesses(tile_tokens: int, parts: int, dtype: str) -> None:
    """One kind of matrix instruction computes both sizes of tiles, so that they give a token the same bits."""
    compiled = _shrink(dtype, parts, tile_tokens)
    compiled.check()
    assert "LDGSTS.E.BYPASS.128" in compiled.sass
    assert "STG.E.128" in compiled.sass
    assert not compiled.count("HGMMA")
    assert compiled.count("CCTL"), "A is prefetched before the wait"
    assert compiled.sass.index("CCTL.E.PF2") < compiled.sass.index("LDGSTS")
    if dtype != "fp32":
        assert "HMMA.16816" in compiled.sass


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("add", [False, True])
@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("tile_tokens", list(TILES))
def test_expand_has_no_spills_and_wide_accesses(tile_tokens: int, parts: int, add: bool, dtype: str) -> None:
    compiled = _expand(dtype, parts, tile_tokens, add)
    compiled.check(max_spills=16 if dtype == "fp32" else 4 if parts == 3 else 0)
    for access in ("LDG.E.128", "STG.E.128", "CCTL.E.PF2", "HMMA.1688.F32.TF32"):
        assert access in compiled.sass
    assert not compiled.count("HGMMA")


@pytest.mark.parametrize("tile_tokens", list(TILES))
def test_expand_before_an_activation_has_no_spills(tile_tokens: int) -> None:
    compiled = _expand("bf16", 2, tile_tokens, True, "silu")
    compiled.check()
    assert not compiled.count("HGMMA")


@pytest.mark.parametrize("target", CARDS, ids=lambda target: f"sm_{target.arch}")
@pytest.mark.parametrize("tile_tokens", list(TILES))
def test_other_cards(tile_tokens: int, target: GPUTarget) -> None:
    for compiled in (_shrink("bf16", 3, tile_tokens, target), _expand("bf16", 3, tile_tokens, True, target=target)):
        compiled.check(max_spills=16)
        assert not compiled.count("CCTL")


def test_one_variant_serves_all_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Warm-up that ran one step of a site has compiled all that its later steps need, but for the other tiles."""
    site = Site.of((16, 40), QKV, 256, torch.float16, "cpu")
    steps = [(site.step(adapters), len(adapters)) for adapters in ([0], [1] * 40 + [-1] * 3, [-1] * 256)]
    pretend_a_device(monkeypatch)

    def run(step: tuple[object, int]) -> None:
        tables, tokens = step
        x, out = torch.empty(tokens, 256, dtype=torch.float16), torch.empty(2, tokens, 96)
        tables.run(x, out[1], False, lora_shrink_triton, lora_expand_triton)  # type: ignore[attr-defined]

    with dry_run_variants() as warmed:
        run(steps[1])
    assert len(warmed) == 2
    for step in steps:
        with launched_variants() as needed:
            run(step)
        assert needed <= warmed
