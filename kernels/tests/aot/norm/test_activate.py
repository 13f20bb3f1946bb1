"""Production variants of the kernel compile for sm_90, without a GPU."""

import pytest
from kernel_support.aot import compile_offline

from text_generation_kernels.norm.activate import activate_kernel
from text_generation_kernels.norm.activations import ACTIVATIONS
from text_generation_kernels.runtime.settings import nearest


@pytest.mark.parametrize("activation", list(ACTIVATIONS))
def test_no_spills_and_wide_memory_accesses(activation: str) -> None:
    types = dict.fromkeys(("x_ptr", "out_ptr"), "*bf16") | dict.fromkeys(
        ("n", "stride_x_token", "stride_out_token"), "i32"
    )
    config = nearest("act_and_mul", n=10240)
    constants = {"ACTIVATION": activation, "BLOCK": config["BLOCK"]}
    compiled = compile_offline(activate_kernel, types, constants, config["num_warps"])
    compiled.check()
    assert "LDG.E.128" in compiled.sass
    assert "STG.E.128" in compiled.sass
