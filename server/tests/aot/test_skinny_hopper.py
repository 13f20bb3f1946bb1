"""Every production form of the kernel compiles for sm_90, without a GPU."""

import json
from importlib import resources

import pytest
from support.aot import compile_offline

from text_generation_server.kernels._skinny_hopper import skinny_hopper_kernel

_TUNED = resources.files("text_generation_server.kernels") / "tuned"
Form = tuple[int, int, int]
"""BLOCK_N, BLOCK_K, num_stages."""


def _forms(operator: str) -> list[Form]:
    entries = json.loads((_TUNED / f"{operator}.json").read_text(encoding="utf-8"))
    names = ("BLOCK_N", "BLOCK_K", "num_stages")
    here = {"shared_kib": 227, "tokens": 64}.items()
    return sorted({tuple(e["config"][name] for name in names) for e in entries if here <= e["key"].items()})


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize(
    ("form", "in_parts", "with_bias", "activation"),
    [
        *((form, False, with_bias, None) for form in _forms("skinny_linear") for with_bias in (False, True)),
        *((form, True, False, None) for form in _forms("linear_in_parts")),
        *((form, False, with_bias, "silu") for form in _forms("skinny_linear") for with_bias in (False, True)),
    ],
    ids=str,
)
def test_tiles_are_copied_ahead_and_nothing_spills(
    form: Form, in_parts: bool, with_bias: bool, activation: str | None, dtype: str
) -> None:
    block_n, block_k, stages = form
    rows = block_n if activation is None else block_n // 2
    if rows < 64:
        pytest.skip("such tiles are for the other kernel")
    types = dict.fromkeys(("inputs", "outputs", "stride_out_part", "stride_out_token", "tokens", "splits"), "i32")
    types |= {f"{name}_tiles": f"tensordesc<{dtype}[{n},{block_k}]>" for name, n in (("x", 64), ("weight", rows))}
    types |= {"out_ptr": "*fp32" if in_parts else f"*{dtype}"} | ({"bias_ptr": f"*{dtype}"} if with_bias else {})
    constants = {"BLOCK_M": 64, "BLOCK_N": rows, "BLOCK_K": block_k, "ACTIVATION": activation}
    constants |= {} if with_bias else {"bias_ptr": None}
    compiled = compile_offline(skinny_hopper_kernel, types, constants, rows // 16, stages)
    compiled.check()
    assert "UTMALDG" in compiled.sass
    assert "LDGSTS" not in compiled.sass
    assert compiled.count("HGMMA") > compiled.count("WARPGROUP.DEPBAR")
