"""Production variants of the kernel compile for every card, without a GPU."""

import pytest
from kernel_support.aot import compile_offline
from triton.backends.compiler import GPUTarget

from text_generation_kernels.attention.rotate_heads import rotate_heads_kernel


@pytest.mark.parametrize(
    ("capability", "dtype"), [(80, "bf16"), (86, "bf16"), (89, "fp16"), (90, "bf16"), (90, "fp32")]
)
@pytest.mark.parametrize(("heads", "half"), [(32, 64), (64, 64)])
def test_no_spills(heads: int, half: int, capability: int, dtype: str) -> None:
    types = {"heads_ptr": f"*{dtype}", "cos_ptr": "*fp32", "sin_ptr": "*fp32"}
    types |= dict.fromkeys(("heads", "half", "stride_token", "stride_head"), "i32")
    constants = {"HEADS": heads, "HALF": half}
    compile_offline(rotate_heads_kernel, types, constants, 4, target=GPUTarget("cuda", capability, 32)).check()
