"""Production variants of the kernels compile for sm_90, without a GPU."""

import pytest
import triton
from kernel_support.aot import compile_offline

from text_generation_kernels.norm.add_layer_norm import add_layer_norm_kernel
from text_generation_kernels.norm.layer_norm import layer_norm_kernel
from text_generation_kernels.runtime.settings import nearest


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("hidden", [2560, 12288])
@pytest.mark.parametrize(
    ("kernel", "operator"), [(layer_norm_kernel, "rms_norm"), (add_layer_norm_kernel, "add_rms_norm")]
)
def test_no_spills_and_wide_memory_accesses(
    kernel: triton.JITFunction, operator: str, hidden: int, with_bias: bool
) -> None:
    block = triton.next_power_of_2(hidden)
    constants = {"BLOCK": block} if with_bias else {"BLOCK": block, "bias_ptr": None}
    types = {name: "*bf16" for name in kernel.arg_names if name.endswith("_ptr") and name not in constants}
    types |= {name: "i32" for name in kernel.arg_names if name.startswith("stride_")}
    warps = nearest(operator, block=block)["num_warps"]
    compiled = compile_offline(kernel, {**types, "hidden": "i32", "eps": "fp32"}, constants, warps)
    compiled.check()
    assert "LDG.E.128" in compiled.sass
    assert "STG.E.128" in compiled.sass
