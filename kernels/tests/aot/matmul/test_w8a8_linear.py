"""Every production variant of the kernels compiles for sm_90, without a GPU, and some for other cards."""

import json
from importlib import resources

import pytest
from kernel_support.aot import SM_90, Compiled, compile_offline
from triton.backends.compiler import GPUTarget

from text_generation_kernels.matmul.ladder import SMALL_BATCH
from text_generation_kernels.matmul.w8a8_gemm import w8a8_gemm_kernel
from text_generation_kernels.matmul.w8a8_library import scale_sums_kernel

_ENTRIES = json.loads(
    (resources.files("text_generation_kernels") / "tuned" / "w8a8_linear.json").read_text(encoding="utf-8")
)
Variant = tuple[int, ...]
"""BLOCK_M, BLOCK_N, BLOCK_K, AHEAD, num_warps, num_stages."""


def _variants(shared_kib: int, by_block: bool) -> list[Variant]:
    names = ("BLOCK_M", "BLOCK_N", "BLOCK_K", "AHEAD", "num_warps", "num_stages")
    return sorted(
        {
            tuple(entry["config"][name] for name in names)
            for entry in _ENTRIES
            if entry["key"]["shared_kib"] == shared_kib and entry["key"]["by_block"] == by_block
        }
    )


def _compile(
    variant: Variant,
    dtype: str,
    by_block: bool,
    mask: bool = False,
    with_bias: bool = False,
    target: GPUTarget = SM_90,
    activation: str | None = None,
    keeps_partials: bool = False,
) -> Compiled:
    block_m, block_n, block_k, ahead, num_warps, num_stages = variant
    names = w8a8_gemm_kernel.arg_names
    types = {name: "i32" for name in names if name.islower() and not name.endswith("_ptr")}
    types |= {"x_ptr": f"*{dtype}", "weight_ptr": f"*{dtype}", "out_ptr": "*bf16", "arrived_ptr": "*i32"}
    types |= dict.fromkeys(("x_scale_ptr", "weight_scale_ptr", "partial_ptr"), "*fp32")
    types |= {"bias_ptr": "*bf16"} if with_bias else {}
    types |= {"largest_ptr": "*fp32"} if activation else {}
    types |= {"out_ptr": "*fp32"} if keeps_partials else {}
    constants: dict[str, int | str | None] = {name: None for name in ("bias_ptr", "largest_ptr") if name not in types}
    constants |= {"X_BLOCKS": by_block, "WEIGHT_BLOCKS": by_block, "SCALE_ROWS": 128 if by_block else 1}
    constants |= {"MASK_K": mask, "BLOCK_M": block_m, "BLOCK_N": block_n, "BLOCK_K": block_k, "AHEAD": ahead}
    constants |= {"ACTIVATION": activation, "SPLIT_K_PARTIALS": keeps_partials}
    constants["STAGES"] = num_stages if by_block and block_m <= 32 else None
    return compile_offline(w8a8_gemm_kernel, types, constants, num_warps, num_stages, target)


def test_few_variants_serve_everything() -> None:
    assert len(_variants(227, by_block=False)) <= 10
    assert len(_variants(227, by_block=True)) <= 8


@pytest.mark.parametrize("dtype", ["fp8e4nv", "i8"])
@pytest.mark.parametrize("variant", _variants(227, by_block=False), ids=str)
def test_no_spills_and_wide_copies(variant: Variant, dtype: str) -> None:
    compiled = _compile(variant, dtype, by_block=False)
    compiled.check()
    assert compiled.count("QGMMA" if dtype == "fp8e4nv" else "IGMMA")
    assert "LDGSTS.E.BYPASS.128" in compiled.sass


@pytest.mark.parametrize("dtype", ["fp8e4nv", "i8"])
@pytest.mark.parametrize(
    "variant", [variant for variant in _variants(227, by_block=False) if variant[0] <= SMALL_BATCH], ids=str
)
def test_what_other_kernels_go_on_with(variant: Variant, dtype: str) -> None:
    _compile(variant, dtype, by_block=False, activation="silu").check()
    _compile(variant, dtype, by_block=False, keeps_partials=True).check()


@pytest.mark.parametrize("variant", _variants(227, by_block=True), ids=str)
def test_scales_by_block(variant: Variant) -> None:
    compiled = _compile(variant, "fp8e4nv", by_block=True)
    # Many tokens are for a library; two sums of 128 x 128 do not fit into registers.
    compiled.check() if variant[0] <= SMALL_BATCH else compiled.check_shared()
    assert compiled.count("QGMMA")


def test_odd_sizes_with_bias() -> None:
    _compile(max(_variants(227, by_block=False)), "fp8e4nv", by_block=False, mask=True, with_bias=True).check_shared()


# A card of 163 KiB takes the variants of the nearest class, 227; one of 99 has its own. Only int8 runs before sm_89.
@pytest.mark.parametrize(
    ("capability", "dtype", "variant", "by_block"),
    [
        *((80, "i8", extreme(_variants(227, by_block=False)), False) for extreme in (min, max)),
        *((89, "fp8e4nv", variant, False) for variant in _variants(99, by_block=False)),
        *((89, "fp8e4nv", variant, True) for variant in _variants(99, by_block=True)),
        (86, "i8", max(_variants(99, by_block=False)), False),
    ],
    ids=str,
)
def test_other_cards(capability: int, dtype: str, variant: Variant, by_block: bool) -> None:
    _compile(variant, dtype, by_block, target=GPUTarget("cuda", capability, 32)).check_shared()


@pytest.mark.parametrize("sums", ["fp32", "i32"])
def test_scaling_of_sums(sums: str) -> None:
    types = {"sums_ptr": f"*{sums}", "x_scale_ptr": "*fp32", "weight_scale_ptr": "*fp32", "out_ptr": "*bf16"}
    types |= dict.fromkeys(("outputs", "stride_x_scale_token", "stride_out_token"), "i32")
    compiled = compile_offline(scale_sums_kernel, types, {"bias_ptr": None, "BLOCK_N": 1024}, num_warps=4)
    compiled.check()
    assert "LDG.E.128" in compiled.sass
