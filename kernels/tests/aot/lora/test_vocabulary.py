"""Kernels of adapters of embedding and head compile for every card, without a GPU."""

import pytest
from kernel_support.aot import SM_90, Compiled, compile_offline
from triton.backends.compiler import GPUTarget

from text_generation_kernels.lora.lora_lookup import lora_lookup_kernel
from text_generation_kernels.lora.replace_rows import replace_rows_kernel
from text_generation_kernels.lora.replaced_logits import replaced_logits_kernel

TABLES = {"order_ptr": "*i32", "tiles_ptr": "*i32", "work_ptr": "*i32", "numbers_ptr": "*i32", "ids_ptr": "*i64"}
CARDS = [SM_90, *(GPUTarget("cuda", capability, 32) for capability in (80, 86, 89))]


def _logits(dtype: str, tile_tokens: int, has_bias: bool, target: GPUTarget = SM_90) -> Compiled:
    types = TABLES | dict.fromkeys(("x_ptr", "rows_ptr", "out_ptr"), f"*{dtype}") | {"ids_ptr": "*i32"}
    types |= {"spans_ptr": "*i32"} | dict.fromkeys(("hidden", "blocks", "stride_x_token", "stride_out_token"), "i32")
    types |= {"bias_ptr": f"*{dtype}"} if has_bias else {}
    constants = {"MASK_K": False, "BLOCK_M": tile_tokens, "BLOCK_N": 64, "BLOCK_K": 32 if dtype == "fp32" else 128}
    constants |= {} if has_bias else {"bias_ptr": None}
    return compile_offline(replaced_logits_kernel, types, constants, 2, 3, target)


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("tile_tokens", [16, 64])
def test_replaced_logits_have_no_spills_and_wide_loads(tile_tokens: int, dtype: str) -> None:
    """One kind of matrix instruction computes both sizes of tiles, so that they give a token the same bits."""
    compiled = _logits(dtype, tile_tokens, has_bias=True)
    compiled.check(max_spills=0 if dtype == "bf16" else 16)
    assert "LDGSTS.E.BYPASS.128" in compiled.sass
    assert not compiled.count("HGMMA")
    if dtype == "bf16":
        assert "HMMA.16816" in compiled.sass


@pytest.mark.parametrize("target", CARDS, ids=lambda target: f"sm_{target.arch}")
def test_every_card(target: GPUTarget) -> None:
    _logits("bf16", 64, False, target).check(max_spills=16)
    lookup = TABLES | {"a_ptr": "*bf16", "scale_ptr": "*fp32", "v_ptr": "*fp32", "stride_a_page": "i32"}
    compile_offline(lora_lookup_kernel, lookup, {"UNITS": 16, "BLOCK_M": 64}, 1, 3, target).check()
    rows = TABLES | {"places_ptr": "*i32", "rows_ptr": "*bf16", "out_ptr": "*bf16"}
    rows |= {"hidden": "i32", "stride_places": "i32"}
    compiled = compile_offline(replace_rows_kernel, rows, {"BLOCK": 1024}, 4, 3, target)
    compiled.check()
    assert "STG.E.128" in compiled.sass or "STG.E.64" in compiled.sass
