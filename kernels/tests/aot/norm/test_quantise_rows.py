"""Variants of the kernels that write 8-bit activations compile for sm_90, without a GPU."""

import pytest
from kernel_support.aot import compile_offline
from kernel_support.aot_quantised import eight
from triton.backends.compiler import GPUTarget

from text_generation_kernels.norm.act_and_mul import act_and_mul_kernel
from text_generation_kernels.norm.add_rms_norm import add_rms_norm_kernel
from text_generation_kernels.norm.quantise import TINY
from text_generation_kernels.norm.quantise_rows import WIDTH, quantise_by_amax_kernel, quantise_rows_kernel
from text_generation_kernels.norm.rms_norm import rms_norm_kernel
from text_generation_kernels.runtime.settings import nearest

STRIDED = ("hidden", "inputs", "n")


def _compile(kernel: object, dtype: str, group: int, constants: dict[str, object], warps: int, **more: object) -> None:
    names = kernel.arg_names  # type: ignore[attr-defined]
    static, capability = bool(more.get("static")), int(more.get("capability", 90))  # type: ignore[call-overload]
    types, given = eight(kernel, dtype, group, static, 2.0 if more.get("bound") else 0.0)  # type: ignore[arg-type]
    types |= {name: "i32" for name in names if name.startswith("stride") or name in STRIDED}
    types |= {
        name: "*bf16"
        for name in names
        if name.endswith("_ptr") and name not in types and name not in given and name not in constants
    }
    types |= {"eps": "fp32"} if "eps" in names else {}
    target = GPUTarget("cuda", capability, 32)
    compiled = compile_offline(kernel, types, {**given, **constants}, warps, target=target)  # type: ignore[arg-type]
    compiled.check()
    assert "LDG.E.128" in compiled.sass


@pytest.mark.parametrize(("block", "dtype", "group"), [(8192, "fp8e4nv", 0), (4096, "fp8e4nv", 128), (4096, "i8", 0)])
def test_norms(block: int, dtype: str, group: int) -> None:
    constants = {"BLOCK": block, "x_weight_ptr": None, "PARTIALS": 0, "X_SCALE": 1.0}
    _compile(add_rms_norm_kernel, dtype, group, constants, nearest("add_rms_norm", block=block)["num_warps"])
    _compile(rms_norm_kernel, dtype, group, {"BLOCK": block}, nearest("rms_norm", block=block)["num_warps"])


@pytest.mark.parametrize(("block", "dtype", "group"), [(32768, "fp8e4nv", 0), (4096, "fp8e4nv", 128), (4096, "i8", 0)])
def test_rows(block: int, dtype: str, group: int) -> None:
    _compile(quantise_rows_kernel, dtype, group, {"BLOCK": block}, nearest("quantise_rows", block=block)["num_warps"])


@pytest.mark.parametrize("dtype", ["fp8e4nv", "i8"])
def test_rows_whose_largest_values_are_known(dtype: str) -> None:
    types = {"x_ptr": "*bf16", "largest_ptr": "*fp32", "out8_ptr": f"*{dtype}", "scale_ptr": "*fp32", "inputs": "i32"}
    types |= dict.fromkeys(("stride_x_token", "stride_out8_token", "stride_scale_token"), "i32")
    constants = {"TILES": 448, "BOUND": 0.0, "TINIEST": TINY, "BLOCK": WIDTH, "BLOCK_P": 512}
    compile_offline(quantise_by_amax_kernel, types, constants, 4).check()


@pytest.mark.parametrize(("dtype", "block"), [("fp8e4nv", 32768), ("i8", 16384)])
def test_activations_of_whole_rows(block: int, dtype: str) -> None:
    constants = {"ACTIVATION": "silu", "BLOCK": block}
    _compile(act_and_mul_kernel, dtype, 0, constants, nearest("quantise_rows", block=block)["num_warps"])


def test_activations_of_groups() -> None:
    config = nearest("act_and_mul", n=14336)
    constants = {"ACTIVATION": "silu", "BLOCK": config["BLOCK"]}
    _compile(act_and_mul_kernel, "fp8e4nv", 128, constants, config["num_warps"])


def test_given_scales_bounds_and_other_cards() -> None:
    _compile(quantise_rows_kernel, "fp8e4nv", 0, {"BLOCK": 4096}, 8, static=True)
    _compile(quantise_rows_kernel, "fp8e4nv", 128, {"BLOCK": 4096}, 8, static=True)
    _compile(quantise_rows_kernel, "fp8e4nv", 0, {"BLOCK": 4096}, 8, bound=True)
    _compile(quantise_rows_kernel, "fp8e4nv", 0, {"BLOCK": 4096}, 8, capability=89)
    _compile(quantise_rows_kernel, "i8", 0, {"BLOCK": 4096}, 8, capability=80)
