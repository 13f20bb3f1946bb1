"""The kernels of an indexer compile for every card, without a GPU, and fit into its shared memory."""

import pytest
import triton
from kernel_support.aot import Compiled, compile_offline
from triton.backends.compiler import GPUTarget

from text_generation_kernels.attention.block_scores import block_scores_kernel
from text_generation_kernels.attention.compress_entries import compress_entries_kernel
from text_generation_kernels.attention.index_postprocess import index_postprocess_kernel
from text_generation_kernels.attention.index_scores import index_scores_kernel
from text_generation_kernels.attention.top_slots import top_slots_count_kernel, top_slots_kernel

SPECIAL = {
    "slot_table_ptr": "*i32",
    "b_row_ptr": "*i64",
    "b_kv_len_ptr": "*i32",
    "scores_ptr": "*fp32",
    "begins_ptr": "*i32",
    "counts_ptr": "*i32",
    "cos_sin_ptr": "*fp32",
    "offsets_ptr": "*fp32",
    "weight_ptr": "*fp32",
    "positions_ptr": "*i64",
    "eps": "fp32",
}


def _compile(
    kernel: triton.JITFunction, capability: int, warps: int, dtype: str = "bf16", **constants: int | None
) -> Compiled:
    special = SPECIAL | {"slots_ptr": "*i32" if kernel is top_slots_kernel else "*i64"}
    types = {name: f"*{dtype}" if name.endswith("_ptr") else "i32" for name in kernel.arg_names}
    types = {name: special.get(name, kind) for name, kind in types.items() if name not in constants}
    types.pop("PDL")
    target = GPUTarget("cuda", capability, 32)
    return compile_offline(kernel, types, constants, num_warps=warps, num_stages=2, target=target)


@pytest.mark.parametrize(("rate", "positions", "size", "tile"), [(4, 8, 512, 8), (128, 128, 512, 16), (4, 8, 128, 8)])
@pytest.mark.parametrize("capability", [80, 86, 90])
def test_entries(capability: int, rate: int, positions: int, size: int, tile: int) -> None:
    sizes = {"SIZE": size, "RATE": rate, "POSITIONS": positions, "ROPE": 64, "BLOCK_H": 32, "BLOCK_P": tile}
    sizes["BLOCK_D"] = 512 if size == 512 else 64
    compiled = _compile(compress_entries_kernel, capability, 8, **sizes)
    compiled.check()
    compiled.check_shared()


@pytest.mark.parametrize("heads", [32, 64])
@pytest.mark.parametrize("capability", [80, 86, 90])
def test_scores(capability: int, heads: int) -> None:
    sizes = {"HEADS": heads, "BLOCK_H": heads, "SIZE": 128, "BLOCK_D": 128, "BLOCK_N": 128}
    compiled = _compile(index_scores_kernel, capability, 4, **sizes)
    compiled.check()
    assert compiled.count("HMMA") or "HGMMA" in compiled.sass


def test_scores_in_float32_fit() -> None:
    sizes = {"HEADS": 64, "BLOCK_H": 64, "SIZE": 128, "BLOCK_D": 128, "BLOCK_N": 64}
    _compile(index_scores_kernel, 90, 4, "fp32", **sizes).check_shared()


@pytest.mark.parametrize("capability", [80, 86, 90])
def test_scores_of_blocks(capability: int) -> None:
    sizes = {"HEADS": 4, "BLOCK_H": 16, "SIZE": 128, "BLOCK_D": 128, "BLOCK": 128, "BLOCK_N": 128}
    _compile(block_scores_kernel, capability, 4, **sizes).check()


@pytest.mark.parametrize("capability", [80, 86, 90])
def test_slots(capability: int) -> None:
    sizes = {"K": 2048, "BLOCK": 1024, "TILE": 8, "DIGITS": 256}
    for step in (0, 3):
        _compile(top_slots_count_kernel, capability, 4, **sizes, STEP=step).check()
    _compile(top_slots_kernel, capability, 4, **sizes).check()


@pytest.mark.parametrize("queries", [False, True])
def test_postprocess(queries: bool) -> None:
    sizes = {"SIZE": 128, "BLOCK_D": 128, "ROPE": 64, "BLOCK_P": 32}
    if queries:
        sizes |= {"HEADS": 4, "BLOCK_H": 4, "key_bias_ptr": None}
    else:
        sizes |= {"HEADS": 64, "BLOCK_H": 16, "query_norm_ptr": None}
    _compile(index_postprocess_kernel, 90, 4, **sizes).check()


def test_postprocess_of_heads_of_512() -> None:
    """Heads of DeepSeek V4, which are normalised."""
    sizes = {"SIZE": 512, "BLOCK_D": 512, "ROPE": 64, "BLOCK_P": 32, "HEADS": 64, "BLOCK_H": 16, "key_bias_ptr": None}
    _compile(index_postprocess_kernel, 90, 4, **sizes).check()
