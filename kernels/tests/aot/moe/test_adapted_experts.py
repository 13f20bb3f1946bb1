"""Kernels of adapters of experts compile for every card, without a GPU."""

import pytest
import torch
from kernel_support.aot import SM_90, Compiled, compile_offline
from kernel_support.expert_adapters import Mixture
from kernel_support.variants import dry_run_variants, launched_variants, pretend_a_device
from triton.backends.compiler import GPUTarget

from text_generation_kernels import adapted_experts
from text_generation_kernels.moe.expert_expand import expert_expand_kernel
from text_generation_kernels.moe.expert_shrink import expert_shrink_kernel

TABLES = dict.fromkeys(("spans_ptr", "numbers_ptr", "order_ptr", "tiles_ptr", "num_tiles_ptr", "rows"), "*i32")
TABLES |= {"rows": "i32", "v_ptr": "*fp32"}
CONSTANTS = {"SPLITS": 4, "SLOTS": 8, "UNITS": 16, "WIDTH": 32}
CARDS = [GPUTarget("cuda", capability, 32) for capability in (80, 86, 89)]


def _shrink(dtype: str, height: int, up: bool, target: GPUTarget = SM_90) -> Compiled:
    types = TABLES | {"x_ptr": f"*{dtype}", "a_ptr": f"*{dtype}", "scale_ptr": "*fp32"}
    types |= dict.fromkeys(("inputs", "inputs_of_split", "experts", "stride_x_row"), "i32")
    constants = CONSTANTS | {"UP": up, "MASK_K": False, "BLOCK_M": height, "BLOCK_K": 32 if dtype == "fp32" else 64}
    return compile_offline(expert_shrink_kernel, types, constants, 4, 3, target)


def _expand(dtype: str, height: int, target: GPUTarget = SM_90) -> Compiled:
    types = TABLES | {"b_ptr": f"*{dtype}", "delta_ptr": f"*{dtype}", "outputs": "i32", "experts": "i32"}
    return compile_offline(expert_expand_kernel, types, CONSTANTS | {"BLOCK_M": height, "BLOCK_N": 64}, 4, 1, target)


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("height", [16, 64, 128])
def test_no_spills_and_wide_accesses(height: int, dtype: str) -> None:
    for compiled in (_shrink(dtype, height, True), _shrink(dtype, height, False)):
        compiled.check(max_spills=0 if dtype == "bf16" else 16)
        assert "LDGSTS.E.BYPASS.128" in compiled.sass
    compiled = _expand(dtype, height)
    compiled.check(max_spills=16)
    assert "LDG.E.128" in compiled.sass


@pytest.mark.parametrize("target", CARDS, ids=lambda target: f"sm_{target.arch}")
def test_other_cards(target: GPUTarget) -> None:
    for compiled in (_shrink("bf16", 128, True, target), _expand("bf16", 128, target)):
        compiled.check(max_spills=16)


def test_warm_up_names_what_steps_need(monkeypatch: pytest.MonkeyPatch) -> None:
    """One step of a layer names the variants of all steps."""
    steps = [Mixture.of(numbers, torch.float16, 64, 32) for numbers in ([1], [2] * 40 + [0] * 3, [0, 4] * 128)]
    pretend_a_device(monkeypatch)
    with dry_run_variants() as warmed:
        steps[1].run(adapted_experts)
    for step in steps:
        with launched_variants() as needed:
            step.run(adapted_experts)
        assert needed <= warmed
