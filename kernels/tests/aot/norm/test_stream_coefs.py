"""Production variants of the kernel compile for every card, without a GPU."""

import pytest
from kernel_support.aot import compile_offline
from triton.backends.compiler import GPUTarget

from text_generation_kernels.norm.stream_coefs import stream_coefs_kernel


@pytest.mark.parametrize("capability", [80, 86, 89, 90])
def test_no_spills(capability: int) -> None:
    types = dict.fromkeys(("mixes_ptr", "base_ptr", "scale_ptr", "into_ptr", "back_ptr"), "*fp32")
    types |= {"eps": "fp32", "iterations": "i32"}
    target = GPUTarget("cuda", capability, 32)
    compile_offline(stream_coefs_kernel, types, {"N": 4, "BLOCK": 4}, 1, target=target).check()
