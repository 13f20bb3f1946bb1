"""Every production form of the kernel compiles for sm_90, without a GPU."""

import json
from importlib import resources

import pytest
from support.aot import compile_for_sm_90

from text_generation_server.kernels.skinny_linear import skinny_linear_kernel

_ENTRIES = json.loads(
    (resources.files("text_generation_server.kernels") / "tuned" / "skinny_linear.json").read_text(encoding="utf-8")
)
# Forms: what is compiled. Sizes and the number of parts are arguments.
FORMS = sorted(
    {
        (entry["key"]["tokens"], *(entry["config"][name] for name in ("BLOCK_N", "BLOCK_K", "num_warps", "num_stages")))
        for entry in _ENTRIES
        if entry["config"]["splits"]
    }
)


def test_few_forms_serve_everything() -> None:
    assert len(FORMS) <= 8


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_no_spills_and_wide_copies(form: tuple[int, int, int, int, int], with_bias: bool, dtype: str) -> None:
    tokens, block_n, block_k, num_warps, num_stages = form
    sizes = ("inputs", "outputs", "stride_x_token", "stride_weight_output", "stride_out_token", "tokens", "splits")
    types = dict.fromkeys(("x_ptr", "weight_ptr", "out_ptr"), f"*{dtype}") | dict.fromkeys(sizes, "i32")
    types |= {"partial_ptr": "*fp32", "arrived_ptr": "*i32"} | ({"bias_ptr": f"*{dtype}"} if with_bias else {})
    constants = {"BLOCK_M": tokens, "BLOCK_N": block_n, "BLOCK_K": block_k} | ({} if with_bias else {"bias_ptr": None})
    compiled = compile_for_sm_90(skinny_linear_kernel, types, constants, num_warps, num_stages)
    compiled.check()
    assert compiled.count("HGMMA")
    assert "LDGSTS.E.BYPASS" in compiled.sass
