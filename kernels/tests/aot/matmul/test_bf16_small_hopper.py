"""Every production form of the kernel compiles for sm_90, without a GPU."""

import json
from importlib import resources
from typing import NamedTuple

import pytest
from kernel_support.aot import Compiled, compile_offline
from triton.experimental.gluon import language as gl

from text_generation_kernels.matmul.bf16_small_hopper import bf16_small_hopper_kernel, pieces_of

TYPES = {"bf16": gl.bfloat16, "fp16": gl.float16}


class Form(NamedTuple):
    """As in the data file, and for what: gate and up (2), with an `out` for each part of the inputs."""

    gated: int
    in_parts: bool
    rows: int
    block_k: int
    stages: int
    x_stages: int


def _forms() -> list[Form]:
    file = resources.files("text_generation_kernels") / "tuned" / "bf16_small_hopper.json"
    entries = [(entry["key"], entry["config"]) for entry in json.loads(file.read_text(encoding="utf-8"))]
    return sorted({Form(key["gated"], key["parts"] > 1, *config.values()) for key, config in entries})


def _compiled(form: Form, dtype: str, with_bias: bool) -> Compiled:
    pieces = pieces_of(form.rows)
    types = dict.fromkeys(("inputs", "outputs", "stride_out_part", "stride_out_token", "tokens", "splits"), "i32")
    for name, rows in (("x", 64), ("first", pieces[0]), ("second", pieces[-1])):
        layout = gl.NVMMASharedLayout.get_default_for([rows, form.block_k], TYPES[dtype])
        types[f"{name}_tiles"] = f"tensordesc<{dtype}[{rows}, {form.block_k}],{layout!r}>"
    types |= {"out_ptr": "*fp32" if form.in_parts else f"*{dtype}"} | ({"bias_ptr": f"*{dtype}"} if with_bias else {})
    constants = {"ACTIVATION": "silu" if form.gated == 2 else None, "BLOCK_M": 64, "PIECES": pieces}
    constants |= {"BLOCK_K": form.block_k, "STAGES": form.stages, "X_STAGES": form.x_stages}
    return compile_offline(bf16_small_hopper_kernel, types, constants | ({} if with_bias else {"bias_ptr": None}), 4)


@pytest.mark.parametrize(
    ("form", "dtype", "with_bias"),
    [
        (form, dtype, with_bias)
        for form in _forms()
        for dtype, with_bias in (("bf16", False), ("fp16", True))
        if not (form.in_parts and with_bias)
    ],
    ids=str,
)
def test_tiles_are_asked_for_before_the_wait_and_nothing_spills(form: Form, dtype: str, with_bias: bool) -> None:
    compiled = _compiled(form, dtype, with_bias)
    compiled.check()
    assert "LDGSTS" not in compiled.sass
    before, _, behind = compiled.sass.partition("ACQBULK")
    assert before.count("UTMALDG") == form.stages * form.gated * len(pieces_of(form.rows))
    assert behind.count("UTMALDG") > form.x_stages
    # The kernel behind may start once all before this one have finished.
    assert behind.index("PREEXIT") < behind.index("HGMMA")
