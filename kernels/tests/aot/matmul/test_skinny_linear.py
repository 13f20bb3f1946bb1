"""Every production form of the kernel compiles for sm_90, without a GPU."""

import json
from importlib import resources

import pytest
from kernel_support.aot import SM_90, Compiled, compile_offline
from triton.backends.compiler import GPUTarget

from text_generation_kernels.matmul.skinny_linear import skinny_linear_kernel

_TUNED = resources.files("text_generation_kernels") / "tuned"
# Forms: what is compiled. Sizes and the number of parts are arguments.
Form = tuple[int, ...]
"""Tokens, BLOCK_N, BLOCK_K, num_warps, num_stages."""


def _forms(operator: str, shared_kib: int, least_splits: int = 1) -> list[Form]:
    entries = json.loads((_TUNED / f"{operator}.json").read_text(encoding="utf-8"))
    names = ("BLOCK_N", "BLOCK_K", "num_warps", "num_stages")
    return sorted(
        {
            (entry["key"]["tokens"], *(entry["config"][name] for name in names))
            for entry in entries
            if entry["config"]["splits"] >= least_splits and entry["key"]["shared_kib"] == shared_kib
        }
    )


FORMS = _forms("skinny_linear", 227)
FORMS_IN_PARTS = _forms("linear_split_k", 227, least_splits=2)


def _compile(
    form: Form,
    dtype: str,
    with_bias: bool,
    target: GPUTarget = SM_90,
    activation: str | None = None,
    in_parts: bool = False,
) -> Compiled:
    tokens, block_n, block_k, num_warps, num_stages = form
    sizes = ("inputs", "outputs", "tokens", "splits")
    sizes += ("stride_x_token", "stride_weight_output", "stride_out_part", "stride_out_token")
    types = dict.fromkeys(("x_ptr", "weight_ptr", "out_ptr"), f"*{dtype}") | dict.fromkeys(sizes, "i32")
    types |= {"partial_ptr": "*fp32", "arrived_ptr": "*i32"} | ({"bias_ptr": f"*{dtype}"} if with_bias else {})
    types |= {"out_ptr": "*fp32"} if in_parts else {}
    constants = {"BLOCK_M": tokens, "BLOCK_N": block_n, "BLOCK_K": block_k, "ACTIVATION": activation}
    constants["IN_PARTS"] = in_parts
    constants |= {} if with_bias else {"bias_ptr": None}
    return compile_offline(skinny_linear_kernel, types, constants, num_warps, num_stages, target)


def test_few_forms_serve_everything() -> None:
    assert len(FORMS) <= 8
    assert len(FORMS_IN_PARTS) <= 6


@pytest.mark.parametrize(
    ("dtype", "with_bias", "activation"),
    [("bf16", False, None), ("bf16", True, None), ("fp16", False, None), ("fp16", True, None), ("bf16", False, "silu")],
)
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_no_spills_and_wide_copies(form: Form, activation: str | None, with_bias: bool, dtype: str) -> None:
    compiled = _compile(form, dtype, with_bias, activation=activation)
    compiled.check()
    assert compiled.count("HGMMA")
    assert "LDGSTS.E.BYPASS" in compiled.sass


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize("form", FORMS_IN_PARTS, ids=str)
def test_matrix_instructions_of_parts_do_not_wait_for_each_other(form: Form, dtype: str) -> None:
    compiled = _compile(form, dtype, with_bias=False, in_parts=True)
    compiled.check()
    assert compiled.count("HGMMA") > compiled.count("WARPGROUP.DEPBAR")
    assert "STG.E.128" in compiled.sass


# A card of 163 KiB takes the forms of the nearest class, 227; one of 99 has its own.
@pytest.mark.parametrize(
    ("capability", "form"),
    [
        (80, max(FORMS)),
        (80, min(FORMS)),
        *((capability, form) for capability in (86, 89) for form in _forms("skinny_linear", 99)),
    ],
    ids=str,
)
def test_cards_with_less_shared_memory(capability: int, form: Form) -> None:
    _compile(form, "bf16", with_bias=True, target=GPUTarget("cuda", capability, 32)).check()
