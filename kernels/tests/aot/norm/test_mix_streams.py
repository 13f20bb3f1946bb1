"""Production variants of the kernel compile for every card, without a GPU."""

import pytest
from kernel_support.aot import compile_offline
from triton.backends.compiler import GPUTarget

from text_generation_kernels.norm.mix_streams import mix_streams_kernel
from text_generation_kernels.runtime.settings import nearest


@pytest.mark.parametrize("read", [4, 1])
@pytest.mark.parametrize(
    ("capability", "dtype"), [(80, "bf16"), (86, "bf16"), (89, "fp16"), (90, "bf16"), (90, "fp32")]
)
def test_no_spills_and_wide_memory_accesses(capability: int, dtype: str, read: int) -> None:
    types = dict.fromkeys(("base_ptr", "x_ptr", "out_ptr"), f"*{dtype}") | {"coefs_ptr": "*fp32"}
    strides = (f"stride_{name}_{of}" for name in ("base", "x", "out") for of in ("token", "stream"))
    types |= dict.fromkeys(("n", *strides), "i32")
    config = nearest("act_and_mul", n=2048)
    constants = {"M": 4, "K": read, "BLOCK": config["BLOCK"]}
    target = GPUTarget("cuda", capability, 32)
    compiled = compile_offline(mix_streams_kernel, types, constants, config["num_warps"], target=target)
    compiled.check()
    assert "LDG.E.128" in compiled.sass
    assert "STG.E.128" in compiled.sass
