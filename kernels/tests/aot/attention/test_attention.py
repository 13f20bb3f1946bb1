"""Every production variant of the attention kernels compiles for sm_90, without a GPU, and some for other cards."""

from collections.abc import Mapping
from itertools import product

import pytest
import triton
from kernel_support.aot import SHARED_KIB, SM_90, Compiled, compile_offline
from triton.backends.compiler import GPUTarget

from text_generation_kernels.attention._chunking import merge_kernel
from text_generation_kernels.attention._decode_kernel import decode_attention_kernel
from text_generation_kernels.attention._kv_conversion import E4M3, E4M3_BY_HARDWARE, E5M2, INT4, INT8
from text_generation_kernels.attention._prefill_hopper_kernel import prefill_attention_hopper_kernel
from text_generation_kernels.attention._prefill_kernel import prefill_attention_kernel
from text_generation_kernels.runtime.settings import nearest
from text_generation_kernels.runtime.shapes import padded_head_dim

BYTES = {"bf16": 2, "fp16": 2, "fp32": 4}


def _compile(
    kernel: triton.JITFunction,
    dtype: str,
    constants: dict[str, int | float | None],
    config: Mapping[str, int],
    target: GPUTarget = SM_90,
) -> Compiled:
    codes = "*u8" if kernel is prefill_attention_kernel and constants.get("FORMAT") != INT4 else "*i32"
    special = {
        **(dict.fromkeys(("k_cache_ptr", "v_cache_ptr"), codes) if constants.get("FORMAT") else {}),
        "scales_ptr": "*i32",
        "slot_table_ptr": "*i32",
        "b_row_ptr": "*i64",
        "b_q_start_ptr": "*i32",
        "b_kv_len_ptr": "*i32",
        "partial_ptr": "*fp32",
        "partial_log_sum_ptr": "*fp32",
        "arrived_ptr": "*i32",
        "scale_log2": "fp32",
        "sinks_ptr": "*fp32",
        "slopes_ptr": "*fp32",
    }
    strides = {f"stride_{cache}_{unit}": size for cache in "kv" for unit, size in (("slot", 2048), ("head", 256))}
    strides |= {"stride_scales_slot": 1}
    constants = constants | {name: size for name, size in strides.items() if name in kernel.arg_names}
    sizes = (name for name in kernel.arg_names if name.startswith("stride_") or name in PLAN)
    types = dict.fromkeys((name for name in kernel.arg_names if name.endswith("_ptr")), f"*{dtype}")
    types |= dict.fromkeys(sizes, "i32")
    types |= {name: kind for name, kind in special.items() if name in kernel.arg_names}
    types = {name: kind for name, kind in types.items() if name not in constants}
    launch = {name: config[name] for name in ("num_warps", "num_stages") if name in config}
    tiles = {name: value for name, value in config.items() if name.startswith("BLOCK")}
    return compile_offline(kernel, types, {**constants, **tiles}, **launch, target=target)


NO_CODES: dict[str, int | float | None] = {"FORMAT": 0, "scales_ptr": None}
NO_OPTIONS: dict[str, int | float | None] = {"WINDOW": 0, "SOFTCAP": 0.0, "sinks_ptr": None, "slopes_ptr": None}
GEMMA_2 = NO_OPTIONS | {"WINDOW": 4096, "SOFTCAP": 50.0}
GPT_OSS: dict[str, int | float | None] = {"WINDOW": 128, "SOFTCAP": 0.0, "slopes_ptr": None}
BLOOM: dict[str, int | float | None] = {"WINDOW": 0, "SOFTCAP": 0.0, "sinks_ptr": None}
OPTIONS = {"gemma 2": GEMMA_2, "gpt-oss": GPT_OSS, "bloom": BLOOM}
PLAN = ("batch", "target_items", "one_wave", "min_chunk", "new_tokens", "max_splits")


def _prefill(
    dtype: str,
    head_dim: int,
    q_len: int,
    split: bool,
    target: GPUTarget = SM_90,
    options: Mapping[str, int | float | None] = NO_OPTIONS,
    codes: int = 0,
) -> Compiled:
    block_d = padded_head_dim(head_dim)
    sizes = {"shared_kib": SHARED_KIB[target.arch], "head_dim": block_d}
    sizes |= {"element_bytes": 1 if codes else BYTES[dtype], "q_len": q_len}
    constants = {"GROUP": 4, "BLOCK_B": 16, "MIN_SPLIT": 256, "SPLIT": split, **options}
    constants |= {"FORMAT": codes} if codes else NO_CODES
    constants |= {"HEAD_DIM": head_dim, "BLOCK_D": block_d, "V_DIM": head_dim, "BLOCK_V": block_d}
    return _compile(prefill_attention_kernel, dtype, constants, nearest("prefill_attention", **sizes), target)


def _decode(
    dtype: str,
    head_dim: int,
    batch: int,
    deterministic: bool,
    target: GPUTarget = SM_90,
    options: Mapping[str, int | float | None] = NO_OPTIONS,
    codes: int = 0,
    kv_heads: int = 8,
    width: int = 1,
    group: int = 4,
) -> Compiled:
    block_d = padded_head_dim(head_dim, 8 if codes == INT4 else 4 if codes else 1)
    sizes = {"shared_kib": SHARED_KIB[target.arch], "head_dim": block_d}
    least, rows = 8 if codes else 16, triton.next_power_of_2(group * width)
    table = f"decode_attention{'_codes' if codes else ''}"
    if codes == INT4:
        table, sizes["rows"] = "decode_attention_int4", max(least, rows)
        sizes["batch"] = 1 if batch == 1 and not deterministic else 16
    elif width > 1 and rows > least:
        table, sizes = "decode_attention_rows", sizes | {"element_bytes": 1 if codes else BYTES[dtype], "rows": rows}
    elif codes:
        sizes["batch"] = 1 if batch == 1 and not deterministic else 16
    else:
        sizes |= {"element_bytes": BYTES[dtype], "kv_heads": kv_heads, "batch": batch}
    constants = {"BLOCK_B": batch, "DETERMINISTIC": deterministic, "GROUP": group, "WIDTH": width, **options}
    constants |= {"FORMAT": codes} if codes else NO_CODES
    constants |= {"HEAD_DIM": head_dim, "BLOCK_D": block_d, "V_DIM": head_dim, "BLOCK_V": block_d}
    config = nearest(table, **sizes)
    if width == 1:
        config = {name: value for name, value in config.items() if name != "BLOCK_G"}
    block_g = config.get("BLOCK_G", max(least, rows))
    constants |= {
        "BLOCK_G": block_g,
        "BLOCK_H": min(rows, block_g),
        "BLOCK_C": max(1, (32 if width == 1 else min(32, 4096 // block_d)) // min(rows, block_g)),
        "LAST_MERGES": batch > 1,
        "EARLY": bool(codes) or (width == 1 and batch == 64 and block_d * BYTES[dtype] <= 256),
        "AHEAD": config["num_stages"],
    }
    return _compile(decode_attention_kernel, dtype, constants, config, target)


@pytest.mark.parametrize(("q_len", "split"), [(16, False), (16, True), (8192, False)])
@pytest.mark.parametrize(
    ("dtype", "head_dim"),
    [("bf16", 64), ("bf16", 96), ("bf16", 128), ("fp16", 128), ("bf16", 256), ("fp32", 64)],
)
def test_prefill(dtype: str, head_dim: int, q_len: int, split: bool) -> None:
    compiled = _prefill(dtype, head_dim, q_len, split)
    # Four warps with heads of 256 spill some registers, and are still the fastest for short chunks: 47 us for 64 of
    # 16 tokens after 512 on an H200, where tiles that do not spill take 62.
    compiled.check(max_spills=32 if head_dim == 256 and q_len == 16 else 0)
    assert compiled.count("HGMMA")
    assert "LDGSTS.E.BYPASS.128" in compiled.sass


def test_prefill_in_float32_with_large_heads_fits_in_shared_memory() -> None:
    # It spills, because the three tf32 GEMMs are kept apart: float32 is for comparison, not for serving.
    for head_dim in (128, 256):
        _prefill("fp32", head_dim, 16, split=True).check_shared()


@pytest.mark.parametrize(("codes", "head_dim"), [(0, 128), (E4M3_BY_HARDWARE, 128), (INT4, 128), (INT4, 256)])
def test_prefill_of_long_chunks_on_hopper(codes: int, head_dim: int) -> None:
    config = nearest("prefill_attention_hopper", head_dim=head_dim, element_bytes=1 if codes else 2)
    constants = {"GROUP": 4, "BLOCK_B": 16, "HEAD_DIM": head_dim, **NO_OPTIONS, **config}
    constants |= {"FORMAT": codes} if codes else NO_CODES
    compiled = _compile(prefill_attention_hopper_kernel, "bf16", constants, {"num_warps": 4})
    compiled.check_shared()
    # Warp groups divide the registers, one of them copies, and GEMMs are warp-group MMAs.
    for instruction in ("USETMAXREG", "HGMMA", "SYNCS"):
        assert compiled.count(instruction)


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("batch", [1, 16, 64, 256])
@pytest.mark.parametrize(
    ("dtype", "head_dim"), [("bf16", 64), ("bf16", 96), ("bf16", 128), ("fp16", 128), ("bf16", 256), ("fp32", 128)]
)
def test_decode(dtype: str, head_dim: int, batch: int, deterministic: bool) -> None:
    compiled = _decode(dtype, head_dim, batch, deterministic)
    compiled.check()
    assert compiled.count("HMMA")
    assert "LDGSTS.E.BYPASS.128" in compiled.sass


@pytest.mark.parametrize(("batch", "codes"), [(256, E4M3_BY_HARDWARE), (64, 0)])
def test_first_tiles_are_asked_for_before_the_wait_for_the_operator_in_front(batch: int, codes: int) -> None:
    sass = _decode("bf16", 128, batch, deterministic=False, codes=codes).sass
    assert sass.index("LDGSTS.E.BYPASS.128") < sass.rindex("ACQBULK")


@pytest.mark.parametrize("width", [2, 4, 8, 16])
@pytest.mark.parametrize(
    ("dtype", "head_dim"), [("bf16", 64), ("bf16", 96), ("bf16", 128), ("fp16", 128), ("bf16", 256)]
)
def test_windows(dtype: str, head_dim: int, width: int) -> None:
    """K and V are loaded once for all tokens of a window."""
    compiled = _decode(dtype, head_dim, 16, deterministic=False, width=width)
    compiled.check()
    # Rows of 64 and more are those of a warp-group MMA.
    assert "HGMMA" in compiled.sass if width == 16 else compiled.count("HMMA")
    assert "LDGSTS.E.BYPASS.128" in compiled.sass


@pytest.mark.parametrize(("width", "group", "batch"), [(2, 8, 256), (4, 8, 256), (3, 4, 1), (16, 1, 16), (4, 71, 16)])
def test_windows_of_other_groups_and_batches(width: int, group: int, batch: int) -> None:
    # A merge of sixteen rows may spill a few registers.
    _decode("bf16", 128, batch, deterministic=False, width=width, group=group).check(max_spills=16)


@pytest.mark.parametrize(("name", "head_dim"), [("gemma 2", 256), ("gpt-oss", 64), ("bloom", 128)])
def test_windows_with_options(name: str, head_dim: int) -> None:
    for width in (4, 8):
        _decode("bf16", head_dim, 256, deterministic=False, options=OPTIONS[name], width=width).check()


@pytest.mark.parametrize(("codes", "head_dim"), [*product((E4M3_BY_HARDWARE, INT8), (64, 128, 256)), (E5M2, 128)])
def test_windows_over_codes(codes: int, head_dim: int) -> None:
    for width in (2, 4, 8, 16):
        compiled = _decode("bf16", head_dim, 16, deterministic=False, codes=codes, width=width)
        compiled.check()
        assert compiled.count("HMMA") or "HGMMA" in compiled.sass
        assert not compiled.count("F2F")


@pytest.mark.parametrize(("dtype", "head_dim"), [("bf16", 128), ("bf16", 512), ("fp32", 128), ("fp32", 512)])
@pytest.mark.parametrize("capability", [80, 86, 90])
def test_windows_fit_into_shared_memory_of_every_card(capability: int, dtype: str, head_dim: int) -> None:
    target = GPUTarget("cuda", capability, 32)
    for width in (4, 16):
        _decode(dtype, head_dim, 16, deterministic=False, target=target, width=width).check_shared()
    if dtype == "bf16":
        codes = INT8 if capability < 90 else E4M3_BY_HARDWARE
        _decode(dtype, head_dim, 16, deterministic=False, target=target, codes=codes, width=16).check_shared()


def test_few_kv_heads_have_more_tiles_in_flight() -> None:
    compiled = _decode("bf16", 128, 64, deterministic=False, kv_heads=4)
    compiled.check()
    # Two thread blocks share an SM.
    assert 2 * compiled.shared_bytes <= compiled.shared_limit
    assert compiled.shared_bytes > 2 * _decode("bf16", 128, 64, deterministic=False).shared_bytes


@pytest.mark.parametrize("batch", [1, 256])
def test_merge(batch: int) -> None:
    sizes = {"V_DIM": 128, "BLOCK_V": 128, "BLOCK_B": batch, "BLOCK_C": 16, "DETERMINISTIC": False}
    for width in (1, 4):
        constants = {**sizes, "WINDOW": 0, "WIDTH": width, "sinks_ptr": None, "log_sum_ptr": None}
        _compile(merge_kernel, "bf16", constants, {"num_warps": 4}).check()


@pytest.mark.parametrize(("capability", "dtype", "head_dim"), [(80, "bf16", 128), (89, "bf16", 128), (86, "fp16", 256)])
def test_cards_with_less_shared_memory(capability: int, dtype: str, head_dim: int) -> None:
    target = GPUTarget("cuda", capability, 32)
    # Chunks spill a few registers here, where GEMM results have a layout of their own.
    _prefill(dtype, head_dim, 512, split=True, target=target).check_shared()
    _decode(dtype, head_dim, 16, deterministic=False, target=target).check()


@pytest.mark.parametrize(("name", "head_dim"), [("gemma 2", 256), ("gpt-oss", 64), ("bloom", 128)])
def test_options(name: str, head_dim: int) -> None:
    _decode("bf16", head_dim, 16, deterministic=False, options=OPTIONS[name]).check()
    compiled = _prefill("bf16", head_dim, 8192, split=False, options=OPTIONS[name])
    compiled.check()
    assert compiled.count("HGMMA")
    # Short chunks with heads of 256 spill as they do without options.
    _prefill("bf16", head_dim, 16, split=True, options=OPTIONS[name]).check(max_spills=64 if head_dim == 256 else 0)


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("capability", [80, 86, 90])
def test_heads_of_512_fit_every_card(capability: int, dtype: str) -> None:
    """They spill: nothing else than the global layers of Gemma 4 has them."""
    target = GPUTarget("cuda", capability, 32)
    _prefill(dtype, 512, 512, split=True, target=target).check_shared()
    _decode(dtype, 512, 16, deterministic=False, target=target).check_shared()


@pytest.mark.parametrize(("capability", "head_dim"), [(86, 80), (86, 192)])
def test_head_sizes_between_powers_of_two_on_smaller_cards(capability: int, head_dim: int) -> None:
    target = GPUTarget("cuda", capability, 32)
    _prefill("bf16", head_dim, 512, split=True, target=target, options=GEMMA_2).check_shared()
    _decode("bf16", head_dim, 16, deterministic=False, target=target, options=GEMMA_2).check()


@pytest.mark.parametrize(("codes", "head_dim"), [*product((E4M3, INT8), (64, 128, 256)), (E5M2, 128)])
def test_codes(codes: int, head_dim: int) -> None:
    for batch in (1, 256):
        _decode("bf16", head_dim, batch, deterministic=False, codes=codes).check_shared()
    decode = _decode("bf16", head_dim, 16, deterministic=False, codes=codes)
    decode.check_shared()
    # Codes become float16 in registers, by none of the slow conversions.
    assert decode.count("HMMA")
    assert decode.count("PRMT") > 32
    assert not decode.count("F2F")
    prefill = _prefill("bf16", head_dim, 8192, split=False, codes=codes)
    prefill.check_shared()
    assert prefill.count("HGMMA")
    _prefill("bf16", head_dim, 16, split=True, codes=codes).check_shared()


@pytest.mark.parametrize("codes", [E4M3, INT8])
@pytest.mark.parametrize("capability", [80, 86, 89])
def test_codes_on_other_cards(capability: int, codes: int) -> None:
    target = GPUTarget("cuda", capability, 32)
    _prefill("bf16", 128, 512, split=True, target=target, codes=codes).check_shared()
    _decode("bf16", 128, 16, deterministic=False, target=target, codes=codes).check_shared()


def test_hardware_converts_codes_where_it_can() -> None:
    compiled = _decode("bf16", 128, 16, deterministic=False, codes=E4M3_BY_HARDWARE)
    compiled.check_shared()
    assert "F2FP.F16.E4M3.UNPACK_B" in compiled.sass


@pytest.mark.parametrize("head_dim", [64, 80, 128, 256])
def test_int4(head_dim: int) -> None:
    for batch in (1, 16, 256):
        decode = _decode("bf16", head_dim, batch, deterministic=False, codes=INT4)
        # Heads that fill no power of two spill a few registers.
        decode.check(max_spills=16)
        assert decode.count("HMMA")
        # Words of heads of 80 are no whole vectors.
        assert ("LDGSTS.E" if head_dim == 80 else "LDGSTS.E.BYPASS.128") in decode.sass
        # Bits of codes are the numbers that GEMMs take: nothing converts them.
        assert not decode.count("F2F")
    prefill = _prefill("bf16", head_dim, 8192, split=False, codes=INT4)
    prefill.check_shared()
    assert prefill.count("HGMMA")
    _prefill("bf16", head_dim, 16, split=True, codes=INT4).check_shared()


@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_windows_over_int4(head_dim: int) -> None:
    for width in (2, 4, 8, 16):
        compiled = _decode("bf16", head_dim, 16, deterministic=False, codes=INT4, width=width)
        compiled.check_shared()
        assert compiled.count("HMMA") or "HGMMA" in compiled.sass


@pytest.mark.parametrize("capability", [80, 86, 89])
def test_int4_on_other_cards(capability: int) -> None:
    target = GPUTarget("cuda", capability, 32)
    _prefill("bf16", 128, 512, split=True, target=target, codes=INT4).check_shared()
    _decode("bf16", 128, 16, deterministic=False, target=target, codes=INT4).check_shared()
    _decode("bf16", 256, 16, deterministic=False, target=target, codes=INT4, width=8).check_shared()
