"""Every production variant of the kernel compiles for sm_90, without a GPU."""

import pytest
import triton
from kernel_support.aot import compile_offline
from kernel_support.aot_quantised import no_eight

from text_generation_kernels.norm.rms_norm import rms_norm_kernel
from text_generation_kernels.runtime.settings import nearest


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
@pytest.mark.parametrize("hidden", [2048, 4096, 5120, 8192, 16384])
def test_no_spills_and_wide_memory_accesses(hidden: int, dtype: str) -> None:
    pointers = dict.fromkeys(("x_ptr", "weight_ptr", "out_ptr"), f"*{dtype}")
    integers = dict.fromkeys(("hidden", "stride_x_token", "stride_out_token"), "i32")
    block = triton.next_power_of_2(hidden)
    more_types, more = no_eight()
    compiled = compile_offline(
        rms_norm_kernel,
        {**pointers, **integers, **more_types, "eps": "fp32"},
        {"BLOCK": block, **more},
        nearest("rms_norm", block=block)["num_warps"],
    )
    compiled.check()
    assert "LDG.E.128" in compiled.sass
    assert "STG.E.128" in compiled.sass
