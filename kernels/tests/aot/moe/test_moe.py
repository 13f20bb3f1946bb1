"""Every production variant of the kernels of mixtures of experts compiles, without a GPU."""

import json
from importlib import resources
from typing import Any

import pytest
from kernel_support.aot import SHARED_KIB, SM_90, Compiled, compile_offline
from triton.backends.compiler import GPUTarget

from text_generation_kernels.moe.expert_load import expert_load_kernel
from text_generation_kernels.moe.fp8_grouped_gemm import fp8_grouped_gemm_kernel
from text_generation_kernels.moe.grouped_gemm import grouped_gemm_kernel, tile_columns
from text_generation_kernels.moe.moe_align import moe_align_kernel
from text_generation_kernels.moe.moe_experts import moe_combine_kernel
from text_generation_kernels.moe.moe_route import moe_route_kernel
from text_generation_kernels.moe.weight_only_grouped_gemm import weight_only_grouped_gemm_kernel


def _entries(operator: str) -> Any:
    tuned = resources.files("text_generation_kernels") / "tuned"
    return json.loads((tuned / f"{operator}.json").read_text(encoding="utf-8"))


_ENTRIES, _CODES_ENTRIES = _entries("grouped_gemm"), _entries("weight_only_grouped_gemm")
Variant = tuple[int, ...]
"""Rows of a tile (1: not sorted, of codes alone), BLOCK_N, BLOCK_K, num_warps, num_stages."""


def _variants(shared_kib: int) -> list[Variant]:
    names = ("BLOCK_N", "BLOCK_K", "num_warps", "num_stages")
    return sorted(
        {
            (entry["key"]["block_m"], *(entry["config"][name] for name in names))
            for entry in _ENTRIES
            if entry["key"]["shared_kib"] == shared_kib
        }
    )


def _gemm(
    variant: Variant,
    dtype: str,
    up: bool,
    masked: bool,
    target: GPUTarget = SM_90,
    activation: str = "silu",
    adapted: bool = False,
) -> Compiled:
    height, block_n, block_k, num_warps, num_stages = variant
    types = dict.fromkeys(("x_ptr", "weight_ptr", "out_ptr"), f"*{dtype}")
    types |= dict.fromkeys(("order_ptr", "tiles_ptr", "num_tiles_ptr"), "*i32")
    sizes = ("inputs", "outputs", "stride_x_row", "stride_weight_expert", "stride_weight_output")
    types |= dict.fromkeys(sizes, "i32")
    constants = {"SLOTS": 8, "ACTIVATION": activation if up else None, "MASK_K": masked, "GROUP": 8}
    constants |= {"BLOCK_M": height, "BLOCK_N": block_n}
    constants["BLOCK_K"] = tile_columns({"BLOCK_K": block_k}, 4 if dtype == "fp32" else 2)
    optional = {
        "delta_ptr": f"*{dtype}" if adapted else None,
        "row_weights_ptr": None if up else "*fp32",
        "bias_ptr": f"*{dtype}" if masked else None,
    }
    types |= {name: kind for name, kind in optional.items() if kind}
    constants |= {name: None for name, kind in optional.items() if not kind}
    return compile_offline(grouped_gemm_kernel, types, constants, num_warps, num_stages, target)


@pytest.mark.parametrize(
    ("variant", "up"),
    [*((variant, True) for variant in _variants(227)), *((variant, False) for variant in _variants(227)[-2:])],
    ids=str,
)
def test_grouped_gemms_do_not_spill_and_copy_wide(variant: Variant, up: bool) -> None:
    compiled = _gemm(variant, "bf16", up, masked=up)
    compiled.check()
    assert compiled.count("HGMMA" if variant[0] >= 64 else "HMMA")
    assert "LDGSTS.E.BYPASS.128" in compiled.sass


@pytest.mark.parametrize("variant", [_variants(227)[0], _variants(227)[-1]], ids=str)
def test_grouped_gemms_without_a_gate(variant: Variant) -> None:
    _gemm(variant, "bf16", up=True, masked=True, activation="relu2_alone").check()


@pytest.mark.parametrize("up", [False, True])
@pytest.mark.parametrize("variant", [_variants(227)[0], _variants(227)[-1]], ids=str)
def test_grouped_gemms_with_adapters_hardly_spill(variant: Variant, up: bool) -> None:
    """The largest tile spills, once, in its epilogue."""
    _gemm(variant, "bf16", up, masked=up, adapted=True).check(max_spills=160 if variant[0] > 16 else 0)


# A card of 163 KiB takes the variants of the nearest class, 227; one of 99 has its own.
@pytest.mark.parametrize(
    ("capability", "variant"),
    [(80, max(_variants(227))), (86, max(_variants(99))), (89, _variants(99)[-2])],
    ids=str,
)
def test_cards_with_less_shared_memory(capability: int, variant: Variant) -> None:
    target = GPUTarget("cuda", capability, 32)
    assert SHARED_KIB[capability] in (163, 99)
    _gemm(variant, "bf16", up=True, masked=True, target=target).check_shared()


KINDS = {
    "nf4": ("i32", 4),
    "mxfp4": ("i32", 8),
    "nvfp4": ("i32", 16),
    "int4 of 16": ("i32", 16),
    "fp8 blocks": ("u8", 2),
    "fp8 rows": ("u8", 1),
}
"""Type of the codes, and groups in 256 inputs."""


def _codes_variants(*wanted: int) -> list[Variant]:
    """Of entries with this `shared_kib`, `bits` and `groups`."""
    names, sizes = ("BLOCK_N", "FOLD", "num_warps", "num_stages"), ("shared_kib", "bits", "groups")
    own = [entry for entry in _CODES_ENTRIES if tuple(entry["key"][size] for size in sizes) == wanted]
    return sorted({(entry["key"]["block_m"], *(entry["config"][name] for name in names)) for entry in own})


def _codes_gemm(variant: Variant, kind: str, up: bool, target: GPUTarget = SM_90) -> Compiled:
    height, block_n, fold, num_warps, num_stages = variant
    (stored, groups), is_float4 = KINDS[kind], kind in ("mxfp4", "nvfp4")
    types = {"x_ptr": "*bf16", "packed_ptr": f"*{stored}", "scales_ptr": "*bf16", "ids_ptr": "*i32", "out_ptr": "*bf16"}
    types |= {"scales_ptr": "*i8", "factors_ptr": "*fp32"} if kind == "nvfp4" else {}
    types |= dict.fromkeys(("inputs", "outputs", "all_outputs", "stride_x_row", "stride_packed_output"), "i32")
    constants: dict[str, Any] = {"SLOTS": 8, "ACTIVATION": "silu" if up else None, "DIRECT": height == 1, "GROUP": 8}
    constants |= {
        "FLOAT8": stored == "u8",
        "FLOAT4": is_float4,
        "GROUPS": groups,
        "MASK_K": not up,
        "FOLD": bool(fold) or is_float4 or groups > 8,
        "PLAIN": False,
    }
    constants |= {"BLOCK_M": max(8, height), "BLOCK_N": block_n, "zeros_ptr": None, "HELD": None if up else 16}
    optional = dict.fromkeys(("order_ptr", "tiles_ptr", "num_tiles_ptr"), None if height == 1 else "*i32")
    optional |= {
        "delta_ptr": None,
        "row_weights_ptr": None if up else "*fp32",
        "bias_ptr": "*bf16" if kind == "mxfp4" else None,
    }
    optional |= {"table_ptr": "*fp32" if stored == "i32" and kind != "int4 of 16" else None}
    optional |= {} if "factors_ptr" in types else {"factors_ptr": None}
    types |= {name: type_ for name, type_ in optional.items() if type_}
    constants |= {name: None for name, type_ in optional.items() if not type_}
    return compile_offline(weight_only_grouped_gemm_kernel, types, constants, num_warps, num_stages, target)


def _both(shared_kib: int) -> list[tuple[Variant, str]]:
    """Every variant with the codes of its bits and groups that need most registers."""
    # Groups of 16 have the variants of the nearest size.
    four = {"nf4": (4, 2), "mxfp4": (4, 8), "nvfp4": (4, 8)}
    kinds = [*four.items(), ("fp8 blocks", (8, 1)), ("fp8 blocks", (8, 2))]
    return sorted({(variant, kind) for kind, sizes in kinds for variant in _codes_variants(shared_kib, *sizes)})


@pytest.mark.parametrize(("variant", "kind"), _both(227), ids=str)
def test_weight_only_grouped_gemms_hardly_spill_and_copy_wide(variant: Variant, kind: str) -> None:
    compiled = _codes_gemm(variant, kind, up=True)
    # Tiles of 32 rows with 8-bit codes spill more and are faster all the same:
    # docs/lab/2026-11-mixture-of-experts.md.
    compiled.check(max_spills=72 if (variant[0], kind) == (32, "fp8 blocks") else 16)
    assert "LDGSTS.E" in compiled.sass


@pytest.mark.parametrize(
    ("capability", "variant", "kind"),
    [
        (90, _codes_variants(227, 4, 8)[-1], "mxfp4"),
        (80, _codes_variants(227, 4, 8)[-1], "mxfp4"),
        (80, _codes_variants(227, 4, 8)[-1], "nvfp4"),
        (90, _codes_variants(227, 4, 8)[0], "int4 of 16"),
        (86, _codes_variants(99, 4, 8)[-1], "int4 of 16"),
        (89, _codes_variants(99, 4, 8)[0], "nvfp4"),
        (86, _codes_variants(99, 8, 1)[-1], "fp8 rows"),
        (89, _codes_variants(99, 4, 2)[-1], "nf4"),
    ],
    ids=str,
)
def test_weight_only_grouped_gemms_with_less_shared_memory(capability: int, variant: Variant, kind: str) -> None:
    _codes_gemm(variant, kind, up=False, target=GPUTarget("cuda", capability, 32)).check_shared()


@pytest.mark.parametrize("entry", _entries("fp8_grouped_gemm"), ids=str)
def test_fp8_grouped_gemms_do_not_spill(entry: Any) -> None:
    key, config = entry["key"], entry["config"]
    types = {"x_ptr": "*fp8e4nv", "weight_ptr": "*fp8e4nv", "x_scale_ptr": "*fp32", "scales_ptr": "*bf16"}
    types |= dict.fromkeys(("ids_ptr", "order_ptr", "tiles_ptr", "num_tiles_ptr"), "*i32") | {"out_ptr": "*bf16"}
    types |= dict.fromkeys(("inputs", "outputs", "all_outputs", "stride_x_scale_row"), "i32")
    constants = {"SLOTS": 8, "ACTIVATION": "silu", "BLOCKS": True, "MASK_K": False, "GROUP": 8, "BLOCK_K": 128}
    constants |= {
        "BLOCK_M": key["block_m"],
        "BLOCK_N": config["BLOCK_N"],
        "bias_ptr": None,
        "row_weights_ptr": None,
        "delta_ptr": None,
    }
    target = SM_90 if key["shared_kib"] == 227 else GPUTarget("cuda", 89, 32)
    compiled = compile_offline(
        fp8_grouped_gemm_kernel, types, constants, config["num_warps"], config["num_stages"], target
    )
    if target == SM_90:
        compiled.check()
        assert compiled.count("QGMMA")
    compiled.check_shared()


@pytest.mark.parametrize(
    ("experts", "groups", "score"), [(256, 8, "sigmoid"), (512, 1, "softmax"), (256, 1, "sqrtsoftplus")]
)
def test_route(experts: int, groups: int, score: str) -> None:
    types = {"logits_ptr": "*bf16", "bias_ptr": "*fp32", "ids_ptr": "*i32", "weights_ptr": "*fp32"}
    types |= {"stride_logits_token": "i32", "scale": "fp32", "jitter": "fp32", "first": "i32"}
    constants = {"EXPERTS": experts, "TOP_K": 2, "SCORE": score, "NORM": 1, "GROUPS": groups, "GROUP_SCORE": "top2"}
    constants |= {"TOP_GROUPS": max(1, groups // 2), "SHARED": 1, "SHARED_GATE": False, "BLOCK_E": experts}
    constants |= {"BLOCK_K": 4, "TINY": 1e-20}
    compile_offline(moe_route_kernel, types, constants, num_warps=1 if experts <= 256 else 4).check()


def test_align_and_combine() -> None:
    types = dict.fromkeys(("ids_ptr", "order_ptr", "tiles_ptr", "num_tiles_ptr"), "*i32") | {
        "rows": "i32",
        "block_m": "i32",
    }
    compile_offline(moe_align_kernel, types, {"HELD": 16, "BINS": 128, "BLOCK": 4096}, num_warps=8).check()
    types = {"rows_ptr": "*bf16", "ids_ptr": "*i32", "out_ptr": "*bf16", "hidden": "i32"}
    for held in (None, 16):
        constants = {"SLOTS": 8, "HELD": held, "BLOCK": 1024}
        compile_offline(moe_combine_kernel, types, constants, num_warps=4).check()


def test_expert_load() -> None:
    types = {"ids_ptr": "*i32", "slots_ptr": "*i64", "starts_ptr": "*i32", "pairs_ptr": "*i32"}
    types |= {"rows": "i32", "dummy_slot": "i32"}
    compile_offline(expert_load_kernel, types, {"SLOTS": 8, "BLOCK": 2048}, num_warps=8).check()
