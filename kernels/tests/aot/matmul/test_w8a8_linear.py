"""Every production form of the kernels compiles for sm_90, without a GPU, and some for other cards."""

import json
from importlib import resources

import pytest
from kernel_support.aot import SM_90, Compiled, compile_offline
from triton.backends.compiler import GPUTarget

from text_generation_kernels.matmul.w8a8_gemm import w8a8_gemm_kernel
from text_generation_kernels.matmul.w8a8_library import scale_sums_kernel
from text_generation_kernels.matmul.w8a8_linear import MAX_TOKENS

_ENTRIES = json.loads(
    (resources.files("text_generation_kernels") / "tuned" / "w8a8_linear.json").read_text(encoding="utf-8")
)
Form = tuple[int, ...]
"""BLOCK_M, BLOCK_N, BLOCK_K, AHEAD, num_warps, num_stages."""


def _forms(shared_kib: int, by_block: bool) -> list[Form]:
    names = ("BLOCK_M", "BLOCK_N", "BLOCK_K", "AHEAD", "num_warps", "num_stages")
    return sorted(
        {
            tuple(entry["config"][name] for name in names)
            for entry in _ENTRIES
            if entry["key"]["shared_kib"] == shared_kib and entry["key"]["by_block"] == 1 + by_block
        }
    )


def _compile(
    form: Form,
    dtype: str,
    by_block: bool,
    mask: bool = False,
    with_bias: bool = False,
    target: GPUTarget = SM_90,
    activation: str | None = None,
    in_parts: bool = False,
) -> Compiled:
    block_m, block_n, block_k, ahead, num_warps, num_stages = form
    names = w8a8_gemm_kernel.arg_names
    types = {name: "i32" for name in names if name.islower() and not name.endswith("_ptr")}
    types |= {"x_ptr": f"*{dtype}", "weight_ptr": f"*{dtype}", "out_ptr": "*bf16", "arrived_ptr": "*i32"}
    types |= dict.fromkeys(("x_scale_ptr", "weight_scale_ptr", "partial_ptr"), "*fp32")
    types |= {"bias_ptr": "*bf16"} if with_bias else {}
    types |= {"largest_ptr": "*fp32"} if activation else {}
    types |= {"out_ptr": "*fp32"} if in_parts else {}
    constants: dict[str, int | str | None] = {name: None for name in ("bias_ptr", "largest_ptr") if name not in types}
    constants |= {"X_BLOCKS": by_block, "WEIGHT_BLOCKS": by_block, "SCALE_ROWS": 128 if by_block else 1}
    constants |= {"MASK_K": mask, "BLOCK_M": block_m, "BLOCK_N": block_n, "BLOCK_K": block_k, "AHEAD": ahead}
    constants |= {"ACTIVATION": activation, "IN_PARTS": in_parts}
    constants["STAGES"] = num_stages if by_block and block_m <= 32 else None
    return compile_offline(w8a8_gemm_kernel, types, constants, num_warps, num_stages, target)


def test_few_forms_serve_everything() -> None:
    assert len(_forms(227, by_block=False)) <= 10
    assert len(_forms(227, by_block=True)) <= 8


@pytest.mark.parametrize("dtype", ["fp8e4nv", "i8"])
@pytest.mark.parametrize("form", _forms(227, by_block=False), ids=str)
def test_no_spills_and_wide_copies(form: Form, dtype: str) -> None:
    compiled = _compile(form, dtype, by_block=False)
    compiled.check()
    assert compiled.count("QGMMA" if dtype == "fp8e4nv" else "IGMMA")
    assert "LDGSTS.E.BYPASS.128" in compiled.sass


@pytest.mark.parametrize("dtype", ["fp8e4nv", "i8"])
@pytest.mark.parametrize("form", [form for form in _forms(227, by_block=False) if form[0] <= MAX_TOKENS], ids=str)
def test_what_other_kernels_go_on_with(form: Form, dtype: str) -> None:
    _compile(form, dtype, by_block=False, activation="silu").check()
    _compile(form, dtype, by_block=False, in_parts=True).check()


@pytest.mark.parametrize("form", _forms(227, by_block=True), ids=str)
def test_scales_by_block(form: Form) -> None:
    compiled = _compile(form, "fp8e4nv", by_block=True)
    # Many tokens are for a library; two sums of 128 x 128 do not fit into registers.
    compiled.check() if form[0] <= MAX_TOKENS else compiled.check_shared()
    assert compiled.count("QGMMA")


def test_odd_sizes_with_bias() -> None:
    _compile(max(_forms(227, by_block=False)), "fp8e4nv", by_block=False, mask=True, with_bias=True).check_shared()


# A card of 163 KiB takes the forms of the nearest class, 227; one of 99 has its own. Only int8 runs before sm_89.
@pytest.mark.parametrize(
    ("capability", "dtype", "form", "by_block"),
    [
        *((80, "i8", extreme(_forms(227, by_block=False)), False) for extreme in (min, max)),
        *((89, "fp8e4nv", form, False) for form in _forms(99, by_block=False)),
        *((89, "fp8e4nv", form, True) for form in _forms(99, by_block=True)),
        (86, "i8", max(_forms(99, by_block=False)), False),
    ],
    ids=str,
)
def test_other_cards(capability: int, dtype: str, form: Form, by_block: bool) -> None:
    _compile(form, dtype, by_block, target=GPUTarget("cuda", capability, 32)).check_shared()


@pytest.mark.parametrize("sums", ["fp32", "i32"])
def test_scaling_of_sums(sums: str) -> None:
    types = {"sums_ptr": f"*{sums}", "x_scale_ptr": "*fp32", "weight_scale_ptr": "*fp32", "out_ptr": "*bf16"}
    types |= dict.fromkeys(("outputs", "stride_x_scale_token", "stride_out_token"), "i32")
    compiled = compile_offline(scale_sums_kernel, types, {"bias_ptr": None, "BLOCK_N": 1024}, num_warps=4)
    compiled.check()
    assert "LDG.E.128" in compiled.sass
