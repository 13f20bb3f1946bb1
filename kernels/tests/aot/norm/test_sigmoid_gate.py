"""Production variants of the kernel compile for every card, without a GPU."""

import pytest
from kernel_support.aot import compile_offline
from triton.backends.compiler import GPUTarget

from text_generation_kernels.norm.sigmoid_gate import sigmoid_gate_kernel
from text_generation_kernels.runtime.settings import nearest


@pytest.mark.parametrize(
    ("capability", "dtype"), [(80, "bf16"), (86, "bf16"), (89, "fp16"), (90, "bf16"), (90, "fp32")]
)
def test_no_spills_and_wide_memory_accesses(capability: int, dtype: str) -> None:
    types = dict.fromkeys(("x_ptr", "gate_ptr", "out_ptr"), f"*{dtype}")
    types |= dict.fromkeys(("n", "stride_x_token", "stride_gate_token", "stride_out_token"), "i32")
    config = nearest("act_and_mul", n=4096)
    target = GPUTarget("cuda", capability, 32)
    constants = {"BLOCK": config["BLOCK"]}
    compiled = compile_offline(sigmoid_gate_kernel, types, constants, config["num_warps"], target=target)
    compiled.check()
    assert "LDG.E.128" in compiled.sass
    assert "STG.E.128" in compiled.sass
