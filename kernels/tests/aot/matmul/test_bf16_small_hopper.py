"""Every production variant of the kernel compiles for sm_90, without a GPU."""

import json
from importlib import resources
from typing import NamedTuple

import pytest
from kernel_support.aot import Compiled, compile_offline
from triton.experimental.gluon import language as gl

from text_generation_kernels.matmul.bf16_small_hopper import bf16_small_hopper_kernel, tile_rows_of

TYPES = {"bf16": gl.bfloat16, "fp16": gl.float16}


class Variant(NamedTuple):
    """As in the data file, and for what: gate and up, with an `out` for each split of the inputs."""

    gated: bool
    keeps_partials: bool
    rows: int
    block_k: int
    stages: int
    x_stages: int


def _variants() -> list[Variant]:
    file = resources.files("text_generation_kernels") / "tuned" / "bf16_small_hopper.json"
    entries = [(entry["key"], entry["config"]) for entry in json.loads(file.read_text(encoding="utf-8"))]
    return sorted({Variant(key["gated"], key["splits"] > 1, *config.values()) for key, config in entries})


def _compiled(variant: Variant, dtype: str, with_bias: bool, with_delta: bool = False) -> Compiled:
    tile_rows = tile_rows_of(variant.rows)
    types = dict.fromkeys(("inputs", "outputs", "stride_out_partial", "stride_out_token", "tokens", "splits"), "i32")
    for name, rows in (("x", 64), ("weight", tile_rows[0]), ("weight_rest", tile_rows[-1])):
        layout = gl.NVMMASharedLayout.get_default_for([rows, variant.block_k], TYPES[dtype])
        types[f"{name}_tiles"] = f"tensordesc<{dtype}[{rows}, {variant.block_k}],{layout!r}>"
    types |= {"out_ptr": "*fp32" if variant.keeps_partials else f"*{dtype}"} | (
        {"bias_ptr": f"*{dtype}"} if with_bias else {}
    )
    constants = {"ACTIVATION": "silu" if variant.gated else None, "BLOCK_M": 64, "TILE_ROWS": tile_rows}
    constants |= {"BLOCK_K": variant.block_k, "STAGES": variant.stages, "X_STAGES": variant.x_stages}
    constants |= ({} if with_bias else {"bias_ptr": None}) | ({} if with_delta else {"delta_ptr": None})
    types |= {"delta_ptr": "*fp32"} if with_delta else {}
    return compile_offline(bf16_small_hopper_kernel, types, constants, 4)


@pytest.mark.parametrize(
    ("variant", "dtype", "with_bias"),
    [
        (variant, dtype, with_bias)
        for variant in _variants()
        for dtype, with_bias in (("bf16", False), ("fp16", True))
        if not (variant.keeps_partials and with_bias)
    ],
    ids=str,
)
def test_tiles_are_prefetched_before_the_wait_and_nothing_spills(variant: Variant, dtype: str, with_bias: bool) -> None:
    compiled = _compiled(variant, dtype, with_bias)
    compiled.check()
    assert "LDGSTS" not in compiled.sass
    before, _, after = compiled.sass.partition("ACQBULK")
    assert before.count("UTMALDG") == variant.stages * (1 + variant.gated) * len(tile_rows_of(variant.rows))
    assert after.count("UTMALDG") > variant.x_stages
    # Dependents launch once all kernels before this one have finished.
    assert after.index("PREEXIT") < after.index("HGMMA")


@pytest.mark.parametrize("variant", [each for each in _variants() if each.gated], ids=str)
def test_what_adapters_add_is_waited_for_at_the_end(variant: Variant) -> None:
    compiled = _compiled(variant, "bf16", with_bias=False, with_delta=True)
    compiled.check(max_spills=40)
    before, _, after = compiled.sass.partition("ACQBULK")
    assert "HGMMA" in before
    assert "HGMMA" not in after
    assert "PREEXIT" in after
    assert not _compiled(variant, "bf16", with_bias=False).count("STL")
