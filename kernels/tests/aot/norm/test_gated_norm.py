"""Production variants of the kernel compile for every card, without a GPU."""

import pytest
from kernel_support.aot import compile_offline
from triton.backends.compiler import GPUTarget

from text_generation_kernels.norm.gated_norm import _blocks_of, gated_norm_kernel


@pytest.mark.parametrize(
    ("groups", "size", "own_weights", "gate_first", "opening"),
    [
        (32, 128, False, False, "silu"),
        (32, 128, False, False, "sigmoid"),
        (1, 8192, False, True, "silu"),
        (8, 1024, True, True, "silu"),
        (1, 12288, False, True, "silu"),
    ],
)
@pytest.mark.parametrize(
    ("capability", "dtype"), [(80, "bf16"), (86, "bf16"), (89, "fp16"), (90, "bf16"), (90, "fp32")]
)
def test_no_spills_and_wide_memory_accesses(
    capability: int, dtype: str, groups: int, size: int, own_weights: bool, gate_first: bool, opening: str
) -> None:
    constants = {"GROUPS": groups, "SIZE": size, "OF_EACH_GROUP": own_weights, "GATE_FIRST": gate_first}
    constants |= {"OPENING": opening, "stride_gate_token": 3352} | _blocks_of(size)
    warps = constants.pop("num_warps")
    types = dict.fromkeys(("x_ptr", "gate_ptr", "weight_ptr", "out_ptr"), f"*{dtype}") | {"eps": "fp32"}
    types |= dict.fromkeys(("stride_x_token", "stride_out_token", "tokens"), "i32")
    target = GPUTarget("cuda", capability, 32)
    compiled = compile_offline(gated_norm_kernel, types, constants, warps, target=target)
    compiled.check()
    assert "LDG.E.128" in compiled.sass
    assert "STG.E.128" in compiled.sass
    # Only the weight of many groups is so short that a thread reads one element of it.
    assert compiled.count("LDG.E.U16") <= 1
