"""The kernel of norms that adapters replace compiles for every card, without a GPU."""

import pytest
from kernel_support.aot import SM_90, compile_offline
from triton.backends.compiler import GPUTarget

from text_generation_kernels.lora.replace_norm import replace_norm_kernel

CARDS = [SM_90, *(GPUTarget("cuda", capability, 32) for capability in (80, 86, 89))]


@pytest.mark.parametrize("target", CARDS, ids=lambda target: f"sm_{target.arch}")
@pytest.mark.parametrize(("weights", "is_rms"), [("bf16", True), ("fp32", True), ("bf16", False)])
def test_norm_has_no_spills_and_wide_accesses(weights: str, is_rms: bool, target: GPUTarget) -> None:
    types = {"x_ptr": "*bf16", "out_ptr": "*bf16", "weights_ptr": f"*{weights}"}
    types |= {"numbers_ptr": "*i32", "places_ptr": "*i32", "eps": "fp32"}
    types |= dict.fromkeys(("hidden", "stride_x_token", "stride_out_token"), "i32")
    types |= {} if is_rms else {"biases_ptr": f"*{weights}"}
    constants = {"IS_RMS": is_rms, "BLOCK": 4096} | ({"biases_ptr": None} if is_rms else {})
    compiled = compile_offline(replace_norm_kernel, types, constants, 8, 3, target)
    compiled.check()
    assert "STG.E.128" in compiled.sass
