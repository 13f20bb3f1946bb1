"""Every production variant of the kernel compiles for sm_90, without a GPU."""

import pytest
import triton
from kernel_support.aot import compile_offline
from kernel_support.aot_quantised import eight, no_eight

from text_generation_kernels.norm.add_rms_norm import add_rms_norm_kernel
from text_generation_kernels.runtime.settings import nearest

_INTEGERS = ("hidden", "stride_x_partial", "stride_x_token", "stride_residual_token", "stride_out_token")


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
@pytest.mark.parametrize("hidden", [2048, 4096, 5120, 8192, 16384])
def test_no_spills_and_wide_memory_accesses(hidden: int, dtype: str) -> None:
    pointers = dict.fromkeys(("x_ptr", "residual_ptr", "weight_ptr", "out_ptr"), f"*{dtype}")
    integers = dict.fromkeys(_INTEGERS, "i32")
    block = triton.next_power_of_2(hidden)
    more_types, more = no_eight()
    compiled = compile_offline(
        add_rms_norm_kernel,
        {**pointers, **integers, **more_types, "eps": "fp32"},
        {"BLOCK": block, "x_weight_ptr": None, "PARTIALS": 0, "X_SCALE": 1.0, **more},
        nearest("add_rms_norm", block=block)["num_warps"],
    )
    compiled.check()
    assert "LDG.E.128" in compiled.sass
    assert "STG.E.128" in compiled.sass


def test_sandwich_norms_with_weights_in_float32() -> None:
    pointers = dict.fromkeys(("x_ptr", "residual_ptr", "out_ptr"), "*bf16")
    pointers |= dict.fromkeys(("weight_ptr", "x_weight_ptr"), "*fp32")
    integers = dict.fromkeys(_INTEGERS, "i32")
    more_types, more = no_eight()
    types = {**pointers, **integers, **more_types, "eps": "fp32"}
    warps = nearest("add_rms_norm", block=4096)["num_warps"]
    compile_offline(add_rms_norm_kernel, types, {"BLOCK": 4096, "PARTIALS": 0, "X_SCALE": 0.22, **more}, warps).check()


@pytest.mark.parametrize("partials", [2, 4])
def test_split_k_partials(partials: int) -> None:
    more_types, more = eight(add_rms_norm_kernel, "fp8e4nv", 0)
    pointers = dict.fromkeys(("residual_ptr", "weight_ptr", "out_ptr"), "*bf16") | {"x_ptr": "*fp32"}
    types = {**pointers, **dict.fromkeys(_INTEGERS, "i32"), **more_types, "eps": "fp32"}
    constants = {"BLOCK": 4096, "PARTIALS": partials, "x_weight_ptr": None, "X_SCALE": 1.0, **more}
    warps = nearest("add_rms_norm", block=4096)["num_warps"]
    compile_offline(add_rms_norm_kernel, types, constants, warps).check()
