"""Every production variant of the kernel compiles for sm_90, without a GPU."""

import json
from importlib import resources

import pytest
from kernel_support.aot import SM_90, Compiled, compile_offline
from triton.backends.compiler import GPUTarget

from text_generation_kernels.matmul.skinny_linear import skinny_linear_kernel

_TUNED = resources.files("text_generation_kernels") / "tuned"
# Variants: what is compiled. Sizes and the number of splits are arguments.
Variant = tuple[int, ...]
"""Tokens, BLOCK_N, BLOCK_K, num_warps, num_stages."""


def _variants(operator: str, shared_kib: int, least_splits: int = 1) -> list[Variant]:
    entries = json.loads((_TUNED / f"{operator}.json").read_text(encoding="utf-8"))
    names = ("BLOCK_N", "BLOCK_K", "num_warps", "num_stages")
    return sorted(
        {
            (entry["key"]["tokens"], *(entry["config"][name] for name in names))
            for entry in entries
            if "config" in entry
            and entry["config"]["splits"] >= least_splits
            and entry["key"]["shared_kib"] == shared_kib
        }
    )


VARIANTS = _variants("skinny_linear", 227)
SPLIT_K_VARIANTS = _variants("linear_split_k", 227, least_splits=2)


def _compile(
    variant: Variant,
    dtype: str,
    with_bias: bool,
    target: GPUTarget = SM_90,
    activation: str | None = None,
    keeps_partials: bool = False,
    with_delta: bool = False,
) -> Compiled:
    tokens, block_n, block_k, num_warps, num_stages = variant
    sizes = ("inputs", "outputs", "tokens", "splits")
    sizes += ("stride_x_token", "stride_weight_output", "stride_out_partial", "stride_out_token")
    types = dict.fromkeys(("x_ptr", "weight_ptr", "out_ptr"), f"*{dtype}") | dict.fromkeys(sizes, "i32")
    types |= {"partial_ptr": "*fp32", "arrived_ptr": "*i32"} | ({"bias_ptr": f"*{dtype}"} if with_bias else {})
    types |= {"out_ptr": "*fp32"} if keeps_partials else {}
    constants = {"BLOCK_M": tokens, "BLOCK_N": block_n, "BLOCK_K": block_k, "ACTIVATION": activation}
    constants["SPLIT_K_PARTIALS"] = keeps_partials
    constants |= ({} if with_delta else {"delta_ptr": None}) | ({} if with_bias else {"bias_ptr": None})
    types |= {"delta_ptr": "*fp32"} if with_delta else {}
    return compile_offline(skinny_linear_kernel, types, constants, num_warps, num_stages, target)


def test_few_variants_serve_everything() -> None:
    assert len(VARIANTS) <= 8
    assert len(SPLIT_K_VARIANTS) <= 6


@pytest.mark.parametrize(
    ("dtype", "with_bias", "activation"),
    [("bf16", False, None), ("bf16", True, None), ("fp16", False, None), ("fp16", True, None), ("bf16", False, "silu")],
)
@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_no_spills_and_wide_copies(variant: Variant, activation: str | None, with_bias: bool, dtype: str) -> None:
    compiled = _compile(variant, dtype, with_bias, activation=activation)
    compiled.check()
    assert compiled.count("HGMMA")
    assert "LDGSTS.E.BYPASS" in compiled.sass


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_what_adapters_add_is_waited_for_at_the_end(variant: Variant) -> None:
    compiled = _compile(variant, "bf16", with_bias=False, activation="silu", with_delta=True)
    compiled.check()
    before, _, after = compiled.sass.partition("ACQBULK")
    assert "LDGSTS.E.BYPASS" in before
    assert "HGMMA" in before
    assert "LDGSTS" not in after


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize("variant", SPLIT_K_VARIANTS, ids=str)
def test_matrix_instructions_of_split_k_do_not_wait_for_each_other(variant: Variant, dtype: str) -> None:
    compiled = _compile(variant, dtype, with_bias=False, keeps_partials=True)
    compiled.check()
    assert compiled.count("HGMMA") > compiled.count("WARPGROUP.DEPBAR")
    assert "STG.E.128" in compiled.sass


# A card of 163 KiB takes the variants of the nearest class, 227; one of 99 has its own.
@pytest.mark.parametrize(
    ("capability", "variant"),
    [
        (80, max(VARIANTS)),
        (80, min(VARIANTS)),
        *((capability, variant) for capability in (86, 89) for variant in _variants("skinny_linear", 99)),
    ],
    ids=str,
)
def test_cards_with_less_shared_memory(capability: int, variant: Variant) -> None:
    _compile(variant, "bf16", with_bias=True, target=GPUTarget("cuda", capability, 32)).check()
