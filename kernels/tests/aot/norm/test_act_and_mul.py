"""Every production variant of the kernel compiles for sm_90, without a GPU."""

import pytest
from kernel_support.aot import compile_offline
from kernel_support.aot_quantised import no_eight

from text_generation_kernels.norm.act_and_mul import act_and_mul_kernel
from text_generation_kernels.runtime.settings import nearest


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
@pytest.mark.parametrize("n", [1792, 5632, 14336, 28672])
@pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_tanh"])
def test_no_spills_and_wide_memory_accesses(activation: str, n: int, dtype: str) -> None:
    pointers = dict.fromkeys(("gate_up_ptr", "out_ptr"), f"*{dtype}")
    integers = dict.fromkeys(("n", "stride_gate_up_token", "stride_out_token"), "i32")
    config = nearest("act_and_mul", n=n)
    more_types, more = no_eight()
    compiled = compile_offline(
        act_and_mul_kernel,
        {**pointers, **integers, **more_types},
        {"ACTIVATION": activation, "BLOCK": config["BLOCK"], **more},
        config["num_warps"],
    )
    compiled.check()
    assert "LDG.E.128" in compiled.sass
    assert "STG.E.128" in compiled.sass


@pytest.mark.parametrize("activation", ["clamped_swiglu", "silu_within_7", "silu_below_10"])
def test_bounded_activations(activation: str) -> None:
    types = dict.fromkeys(("gate_up_ptr", "out_ptr"), "*bf16")
    types |= dict.fromkeys(("n", "stride_gate_up_token", "stride_out_token"), "i32")
    config = nearest("act_and_mul", n=2880)
    more_types, more = no_eight()
    constants = {"ACTIVATION": activation, "BLOCK": config["BLOCK"], **more}
    compile_offline(act_and_mul_kernel, types | more_types, constants, config["num_warps"]).check()
