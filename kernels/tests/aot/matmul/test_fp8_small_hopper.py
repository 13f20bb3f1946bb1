"""Every production variant of the kernel for Hopper cards compiles, without a GPU."""

import json
from importlib import resources

import pytest
from kernel_support.aot import Compiled, compile_offline

from text_generation_kernels.matmul.fp8_small_hopper import fp8_small_hopper_kernel

_ENTRIES = json.loads(
    (resources.files("text_generation_kernels") / "tuned" / "fp8_small_hopper.json").read_text(encoding="utf-8")
)
Variant = tuple[int, ...]
"""BLOCK_M, BLOCK_N, AHEAD, num_warps, num_stages."""


def _variants(gated: bool) -> list[Variant]:
    names = ("BLOCK_M", "BLOCK_N", "AHEAD", "num_warps", "num_stages")
    entries = [each for each in _ENTRIES if each["key"]["gated"] == gated and "config" in each]
    return sorted({tuple(entry["config"][name] for name in names) for entry in entries})


def _compile(
    variant: Variant,
    activation: str | None = None,
    keeps_partials: bool = False,
    with_bias: bool = False,
    dtype: str = "bf16",
) -> Compiled:
    block_m, block_n, ahead, num_warps, num_stages = variant
    names = fp8_small_hopper_kernel.arg_names
    types = {name: "i32" for name in names if name.islower() and not name.endswith("_ptr")}
    types |= dict.fromkeys(("x_ptr", "weight_ptr"), "*fp8e4nv") | {"arrived_ptr": "*i32"}
    types |= dict.fromkeys(("x_scale_ptr", "weight_scale_ptr", "partial_ptr"), "*fp32")
    types |= {"out_ptr": "*fp32" if keeps_partials else f"*{dtype}"}
    types |= {"bias_ptr": f"*{dtype}"} if with_bias else {}
    types |= {"largest_ptr": "*fp32"} if activation else {}
    constants: dict[str, int | str | None] = {name: None for name in ("bias_ptr", "largest_ptr") if name not in types}
    constants |= {"ACTIVATION": activation, "SPLIT_K_PARTIALS": keeps_partials, "BLOCK_M": block_m, "BLOCK_N": block_n}
    constants |= {"AHEAD": ahead, "STAGES": num_stages}
    return compile_offline(fp8_small_hopper_kernel, types, constants, num_warps, 1)


def test_few_variants_serve_everything() -> None:
    assert len(_variants(gated=False)) <= 3
    assert len(_variants(gated=True)) <= 3


@pytest.mark.parametrize("keeps_partials", [False, True])
@pytest.mark.parametrize("variant", _variants(gated=False), ids=str)
def test_gemms_overlap_and_nothing_spills(variant: Variant, keeps_partials: bool) -> None:
    compiled = _compile(variant, keeps_partials=keeps_partials)
    compiled.check()
    assert f"QGMMA.64x{variant[0]}x32" in compiled.sass
    # One matrix instruction runs while the sums of the other are added up.
    assert "WARPGROUP.DEPBAR.LE gsb0, 0x1" in compiled.sass
    assert "LDGSTS.E.BYPASS.128" in compiled.sass


@pytest.mark.parametrize("variant", _variants(gated=True), ids=str)
def test_two_thread_blocks_with_an_activation_share_an_sm(variant: Variant) -> None:
    compiled = _compile(variant, "silu")
    compiled.check()
    assert 2 * compiled.shared_bytes <= compiled.shared_limit


def test_other_types_with_bias() -> None:
    _compile(_variants(gated=True)[-1], "gelu", with_bias=True, dtype="fp16").check()
    _compile(_variants(gated=False)[-1], with_bias=True, dtype="fp32").check()
