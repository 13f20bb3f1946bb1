"""Production variants of the weight-only GEMMs compile, without a GPU."""

import json
from collections.abc import Mapping
from importlib import resources

import pytest
from kernel_support.aot import SM_90, Compiled, compile_offline
from triton.backends.compiler import GPUTarget

from text_generation_kernels.matmul.dequantise import dequantise_kernel
from text_generation_kernels.matmul.nvfp4_small_hopper import nvfp4_small_hopper_kernel
from text_generation_kernels.matmul.w4a16_large_hopper import w4a16_large_hopper_kernel
from text_generation_kernels.matmul.w4a16_small_hopper import w4a16_small_hopper_kernel
from text_generation_kernels.matmul.weight_only_gemm import weight_only_gemm_kernel
from text_generation_kernels.runtime.settings import nearest

_ENTRIES = json.loads(
    (resources.files("text_generation_kernels") / "tuned" / "weight_only_linear.json").read_text(encoding="utf-8")
)
_FEW = sorted(
    {
        (entry["config"]["BLOCK_M"], entry["config"]["num_stages"])
        for entry in json.loads(
            (resources.files("text_generation_kernels") / "tuned" / "w4a16_small_hopper.json").read_text(
                encoding="utf-8"
            )
        )
        if "config" in entry
    }
)
_NVFP4 = sorted(
    {
        tuple(entry["config"].values())
        for entry in json.loads(
            (resources.files("text_generation_kernels") / "tuned" / "nvfp4_small_hopper.json").read_text(
                encoding="utf-8"
            )
        )
        if "config" in entry
    }
)
_NAMES = ("BLOCK_M", "BLOCK_N", "SWAP", "FOLD", "AHEAD", "num_warps", "num_stages")
Variant = tuple[int, ...]
"""Bits, what `_NAMES` are, the outputs of a thread block, and how many blocks ahead codes are prefetched."""
KINDS = {
    "symmetric": {"packed_ptr": "*i32"},
    "zeros": {"packed_ptr": "*i32", "zeros_ptr": "*bf16"},
    "table": {"packed_ptr": "*i32", "table_ptr": "*fp32"},
    "nvfp4": {"packed_ptr": "*i32", "table_ptr": "*fp32", "scales_ptr": "*i8", "factors_ptr": "*fp32"},
    "eight": {"packed_ptr": "*u8"},
    "float8": {"packed_ptr": "*u8"},
}


def _variant(bits: int, config: Mapping[str, int]) -> Variant:
    return (bits, *(config[name] for name in _NAMES), config.get("ROWS", config["BLOCK_N"]), config.get("LATER", 0))


def _variants(shared_kib: int, bits: int) -> list[Variant]:
    return sorted(
        {
            _variant(bits, config)
            for key, config in ((entry["key"], entry["config"]) for entry in _ENTRIES if "config" in entry)
            if (key["shared_kib"], key["bits"]) == (shared_kib, bits)
        }
    )


def _compile(variant: Variant, kind: str, dtype: str = "bf16", groups: int = 2, target: GPUTarget = SM_90) -> Compiled:
    _, block_m, block_n, swap, fold, ahead, num_warps, num_stages, rows, later = variant
    names = ("inputs", "outputs", "stride_x_token", "stride_packed_output", "stride_out_token", "tokens", "splits")
    types = dict.fromkeys(("x_ptr", "out_ptr", "bias_ptr"), f"*{dtype}") | dict.fromkeys(names, "i32")
    types |= {"scales_ptr": "*bf16", "partial_ptr": "*fp32", "arrived_ptr": "*i32", **KINDS[kind]}
    constants = {name: None for name in ("zeros_ptr", "table_ptr", "factors_ptr") if name not in types}
    constants |= {"FLOAT8": kind == "float8", "GROUPS": groups, "MASK_K": False, "PLAIN": False}
    constants |= {
        "FOLD": bool(fold) or groups > 8,
        "SWAP": bool(swap),
        "BLOCK_M": block_m,
        "BLOCK_N": block_n,
        "ROWS": rows,
    }
    four = kind not in ("eight", "float8")
    constants |= {"AHEAD": ahead if four else 0, "LATER": later if four else 0}
    return compile_offline(weight_only_gemm_kernel, types, constants, num_warps, num_stages, target)


@pytest.mark.parametrize("variant", _variants(227, 4), ids=str)
def test_few_instructions_a_weight_no_spills_and_wide_copies(variant: Variant) -> None:
    compiled = _compile(variant, "symmetric")
    compiled.check()
    assert compiled.count("HMMA") + compiled.count("HGMMA")
    assert "LDGSTS.E.BYPASS.128" in compiled.sass
    assert bool(compiled.count("CCTL.E.PF2")) == bool(variant[-1])
    # No weight is converted on its own: the few are of divisions of sizes.
    assert compiled.count("I2F") + compiled.count("I2FP") <= 4


@pytest.mark.parametrize(
    ("kind", "dtype", "groups"),
    [
        ("zeros", "bf16", 2),
        ("zeros", "fp16", 1),
        ("zeros", "fp16", 16),
        ("table", "bf16", 4),
        ("symmetric", "fp16", 8),
        ("nvfp4", "bf16", 16),
        ("nvfp4", "fp16", 16),
    ],
)
def test_kinds_of_four_bits(kind: str, dtype: str, groups: int) -> None:
    variant = max(_variants(227, 4)) if dtype == "fp16" else min(_variants(227, 4))
    _compile(variant, kind, dtype, groups).check_shared()


@pytest.mark.parametrize("variant", _variants(227, 4), ids=str)
def test_codes_of_nvfp4_are_scaled_in_registers(variant: Variant) -> None:
    compiled = _compile(variant, "nvfp4", groups=16)
    compiled.check()
    # One for each pair of codes, and few for the scales; of codes that are prefetched as well.
    _, _, block_n, _, _, ahead, num_warps, *_ = variant
    assert compiled.count("PRMT") <= 1.2 * (1 + ahead) * 256 * block_n / (32 * num_warps)


@pytest.mark.parametrize(("outputs", "inputs"), [(28672, 4096), (4096, 14336)])
def test_looked_up_codes_of_few_tokens_leave_room_for_another_thread_block(outputs: int, inputs: int) -> None:
    sizes = {"bits": 4, "outputs": outputs, "inputs": inputs, "tokens": 16}
    config = nearest("weight_only_linear", shared_kib=227, **sizes, table=True)
    assert _compile(_variant(4, config), "table", groups=4).shared_bytes <= 227 * 1024 // 2


@pytest.mark.parametrize("kind", ["eight", "float8"])
def test_kinds_of_eight_bits(kind: str) -> None:
    compiled = _compile(max(_variants(227, 8)) if kind == "eight" else min(_variants(227, 8)), kind, groups=1)
    # The fastest variant for 64 tokens spills a little.
    compiled.check(max_spills=8)
    assert compiled.count("I2F") + compiled.count("F2F") <= 4


# A card of 163 KiB takes the variants of the nearest class, 227; one of 99 has its own.
@pytest.mark.parametrize(
    ("capability", "variant", "kind"),
    [
        (80, max(_variants(227, 4)), "zeros"),
        (80, max(_variants(227, 4)), "nvfp4"),
        (80, max(_variants(227, 8)), "float8"),
        (86, min(_variants(99, 4)), "table"),
        (89, max(_variants(99, 4)), "nvfp4"),
        (86, max(_variants(99, 4)), "zeros"),
        (89, max(_variants(99, 8)), "float8"),
    ],
)
def test_cards_with_less_shared_memory(capability: int, variant: Variant, kind: str) -> None:
    groups = 16 if kind == "nvfp4" else 2
    _compile(variant, kind, groups=groups, target=GPUTarget("cuda", capability, 32)).check_shared()


@pytest.mark.parametrize(("kind", "capability"), [*((kind, 90) for kind in KINDS), ("float8", 80)])
def test_dequantise(kind: str, capability: int) -> None:
    names = ("inputs", "stride_packed_output", "stride_scales_block", "stride_zeros_block", "stride_out_output")
    types = dict.fromkeys((*names, "outputs"), "i32") | {"scales_ptr": "*bf16", "out_ptr": "*bf16", **KINDS[kind]}
    constants = {name: None for name in ("zeros_ptr", "table_ptr", "factors_ptr") if name not in types}
    groups = 16 if kind == "nvfp4" else 2
    constants |= {"FLOAT8": kind == "float8", "GROUPS": groups, "PLAIN": False, "BLOCK_N": 32}
    compile_offline(dequantise_kernel, types, constants, 4, target=GPUTarget("cuda", capability, 32)).check()


@pytest.mark.parametrize(("kind", "dtype"), [("symmetric", "bf16"), ("zeros", "bf16"), ("zeros", "fp16")])
@pytest.mark.parametrize(("block_m", "num_stages"), _FEW)
def test_few_tokens(block_m: int, num_stages: int, kind: str, dtype: str) -> None:
    names = ("inputs", "outputs", "stride_x_token", "stride_packed_output", "stride_out_token", "tokens")
    types = dict.fromkeys(("x_ptr", "out_ptr", "bias_ptr"), f"*{dtype}") | dict.fromkeys(names, "i32")
    types |= {"scales_ptr": "*bf16", **KINDS[kind]}
    constants = {name: None for name in ("zeros_ptr",) if name not in types}
    constants |= {"BLOCK_M": block_m, "BLOCK_N": 128, "STAGES": num_stages}
    compiled = compile_offline(w4a16_small_hopper_kernel, types, constants, 4)
    compiled.check()
    assert 2 * (compiled.shared_bytes + 1024) <= compiled.shared_limit + 1024
    assert f"HGMMA.64x{block_m}x16" in compiled.sass
    assert "LDGSTS.E.BYPASS.128" in compiled.sass
    # Copies into tiles of their own would have a barrier before each.
    assert compiled.count("BAR.SYNC") < 16
    # Weights are dequantised while matrix instructions run.
    assert "WARPGROUP.DEPBAR.LE gsb0, 0x1" in compiled.sass


@pytest.mark.parametrize(("dtype", "inputs"), [("bf16", 4096), ("fp16", 1000)])
@pytest.mark.parametrize(("block_m", "block_n", "num_warps", "registers"), _NVFP4)
def test_few_tokens_by_nvfp4(
    block_m: int, block_n: int, num_warps: int, registers: int, dtype: str, inputs: int
) -> None:
    names = ("inputs", "outputs", "stride_x_token", "stride_packed_output", "stride_out_token", "tokens")
    types = dict.fromkeys(("x_ptr", "out_ptr", "bias_ptr"), f"*{dtype}") | dict.fromkeys(names, "i32")
    types |= {"packed_ptr": "*i32", "scales_ptr": "*i32", "factors_ptr": "*fp32"}
    steps = -(-inputs // (256 * num_warps))
    constants = {"BLOCK_M": block_m, "BLOCK_N": block_n, "STEPS": steps, "MASK": inputs % (256 * num_warps) != 0}
    compiled = compile_offline(nvfp4_small_hopper_kernel, types, constants, num_warps, max_registers=registers)
    # Two thread blocks on an SM are worth a few.
    compiled.check(max_spills=8)
    # Of each block 16 inputs by 16 rows and 8 tokens at a time: the last one's, and the others' in a loop.
    instructions = 16 * block_n // 16 * block_m // 8
    assert compiled.count("HMMA") == instructions * min(steps, 2)
    before, _ = compiled.sass.split("ACQBULK")
    assert before.count("LDG.E.EF.128") == block_n // 4
    # Sums of warps are added at the end: nothing else goes through shared memory.
    assert compiled.count("BAR.SYNC") <= 8


@pytest.mark.parametrize("block_m", [128, 256])
@pytest.mark.parametrize(
    ("kind", "dtype", "groups"), [("symmetric", "bf16", 2), ("zeros", "bf16", 2), ("zeros", "fp16", 8)]
)
def test_many_tokens(block_m: int, kind: str, dtype: str, groups: int) -> None:
    names = ("inputs", "outputs", "stride_x_token", "stride_packed_output", "stride_out_token", "tokens", "splits")
    types = dict.fromkeys(("x_ptr", "out_ptr", "bias_ptr"), f"*{dtype}") | dict.fromkeys(names, "i32")
    types |= {"scales_ptr": "*bf16", "partial_ptr": "*fp32", "arrived_ptr": "*i32", **KINDS[kind]}
    constants = {name: None for name in ("zeros_ptr",) if name not in types}
    constants |= {"GROUPS": groups, "BLOCK_M": block_m, "BLOCK_N": 128, "STAGES": 4}
    compiled = compile_offline(w4a16_large_hopper_kernel, types, constants, 8)
    # Eight groups with zeros in a block need more registers than there are.
    compiled.check(max_spills=40 if groups == 8 else 0)
    assert f"HGMMA.64x{block_m}x16" in compiled.sass
    # Matrix instructions of one half of a tile run while the other's weights are dequantised.
    assert "WARPGROUP.DEPBAR.LE gsb0, 0x1" in compiled.sass
