"""The kernels of latent attention compile for every card, without a GPU, and fit into its shared memory."""

import pytest
import triton
from kernel_support.aot import SHARED_KIB, Compiled, compile_offline
from triton.backends.compiler import GPUTarget

from text_generation_kernels.attention._chunking import merge_kernel
from text_generation_kernels.attention.latent_decode_attention import latent_decode_attention_kernel
from text_generation_kernels.attention.latent_expand import latent_expand_kernel
from text_generation_kernels.attention.latent_postprocess import latent_postprocess_kernel
from text_generation_kernels.attention.latent_prefill_attention import latent_prefill_attention_kernel
from text_generation_kernels.attention.merge_shares import merge_shares_kernel
from text_generation_kernels.attention.own_slots import own_slots_kernel
from text_generation_kernels.runtime.settings import nearest

SPECIAL = {
    "slot_table_ptr": "*i32",
    "b_row_ptr": "*i64",
    "b_q_start_ptr": "*i32",
    "b_kv_len_ptr": "*i32",
    "partial_ptr": "*fp32",
    "partial_log_sum_ptr": "*fp32",
    "log_sum_ptr": "*fp32",
    "own_ptr": "*i32",
    "own_row_ptr": "*i64",
    "own_len_ptr": "*i32",
    "arrived_ptr": "*i32",
    "cos_sin_ptr": "*fp32",
    "positions_ptr": "*i64",
    "slots_ptr": "*i64",
    "b_first_ptr": "*i32",
    "scale_log2": "fp32",
    "eps": "fp32",
}
DEEPSEEK = {"RANK": 512, "BLOCK_R": 512, "ROPE": 64, "BLOCK_E": 64, "BLOCK_B": 16}
MINICPM = {"RANK": 256, "BLOCK_R": 256, "ROPE": 32, "BLOCK_E": 32, "BLOCK_B": 16}


def _compile(
    kernel: triton.JITFunction,
    constants: dict[str, int | None],
    config: dict[str, int],
    capability: int,
    dtype: str = "bf16",
) -> Compiled:
    launch = {name: config[name] for name in ("num_warps", "num_stages") if name in config}
    constants = constants | {name: value for name, value in config.items() if name.startswith("BLOCK")}
    types = {name: f"*{dtype}" if name.endswith("_ptr") else "i32" for name in kernel.arg_names}
    types = {name: SPECIAL.get(name, kind) for name, kind in types.items() if name not in constants}
    types.pop("PDL")
    return compile_offline(kernel, types, constants, **launch, target=GPUTarget("cuda", capability, 32))


def _decode(capability: int, heads: int, sizes: dict[str, int], width: int = 1, shared: bool = False) -> Compiled:
    key = {"shared_kib": SHARED_KIB[capability], "element_bytes": 2, "rank": sizes["BLOCK_R"], "heads": heads * width}
    key |= {"batch": sizes["BLOCK_B"]}
    constants: dict[str, int | None] = {**sizes, "HEADS": heads, "DETERMINISTIC": False, "WINDOW": 0, "WIDTH": width}
    if not shared:
        constants["log_sum_ptr"] = None
    return _compile(
        latent_decode_attention_kernel, constants, dict(nearest("latent_decode_attention", **key)), capability
    )


def _prefill(capability: int, heads: int, sizes: dict[str, int], split: bool) -> Compiled:
    key = {"shared_kib": SHARED_KIB[capability], "element_bytes": 2, "rank": sizes["BLOCK_R"]}
    constants: dict[str, int | None] = {**sizes, "HEADS": heads, "MIN_SPLIT": 256, "SPLIT": split}
    constants |= {"stride_slot": sizes["RANK"] + sizes["ROPE"]}
    config = dict(nearest("latent_prefill_attention", **key))
    return _compile(latent_prefill_attention_kernel, constants, config, capability)


@pytest.mark.parametrize("capability", [80, 86, 90])
def test_decode(capability: int) -> None:
    compiled = _decode(capability, 16, DEEPSEEK)
    compiled.check()
    assert compiled.count("HMMA") or "HGMMA" in compiled.sass


@pytest.mark.parametrize(("capability", "width"), [(80, 4), (86, 4), (90, 2), (90, 4), (90, 16)])
def test_windows(capability: int, width: int) -> None:
    for batch in (16, 256):
        compiled = _decode(capability, 16, DEEPSEEK | {"BLOCK_B": batch}, width)
        compiled.check_shared()
        assert compiled.count("HMMA") or "HGMMA" in compiled.sass


def test_decode_with_many_heads_and_with_smaller_vectors() -> None:
    _decode(90, 128, DEEPSEEK | {"BLOCK_B": 256}).check_shared()
    _decode(90, 40, MINICPM).check_shared()


@pytest.mark.parametrize(("capability", "batch"), [(80, 16), (90, 16), (90, 256)])
def test_decode_over_the_positions_of_one_of_several_ranks(capability: int, batch: int) -> None:
    compiled = _decode(capability, 128, DEEPSEEK | {"BLOCK_B": batch}, shared=True)
    compiled.check_shared()
    assert compiled.count("HMMA") or "HGMMA" in compiled.sass
    sizes = {"V_DIM": 512, "BLOCK_V": 512, "BLOCK_B": batch, "BLOCK_C": 8, "DETERMINISTIC": False, "WINDOW": 0}
    constants: dict[str, int | None] = {**sizes, "WIDTH": 1, "sinks_ptr": None}
    _compile(merge_kernel, constants, {"num_warps": 4}, capability).check()


@pytest.mark.parametrize("ranks", [2, 8])
def test_shares(ranks: int) -> None:
    _compile(own_slots_kernel, {"RANKS": ranks, "BLOCK": 2048}, {"num_warps": 8}, 90).check()
    sizes: dict[str, int | None] = {"RANKS": ranks, "ROW": 520, "LOG_ROW": 260, "SIZE": 512, "BLOCK": 512}
    _compile(merge_shares_kernel, sizes, {"num_warps": 2}, 90).check()


@pytest.mark.parametrize(("capability", "split"), [(80, True), (86, False), (90, True)])
def test_prefill(capability: int, split: bool) -> None:
    compiled = _prefill(capability, 16, DEEPSEEK, split)
    # Accumulators take half of the registers of sm_90: some spill outside the loop.
    compiled.check(max_spills=96 if capability == 90 else 0)
    assert compiled.count("HMMA") or "HGMMA" in compiled.sass


@pytest.mark.parametrize(("capability", "key"), [(90, 128), (90, 256), (86, 128)])
def test_expand(capability: int, key: int) -> None:
    sizes = {"RANK": 512, "ROPE": 64, "BLOCK_E": 64, "KEY": key, "VALUE": key, "BLOCK_D": key, "BLOCK_B": 16}
    tiles = nearest("latent_expand", shared_kib=SHARED_KIB[capability], element_bytes=2, head_dim=key)
    compiled = _compile(latent_expand_kernel, sizes | {"stride_slot": 576}, dict(tiles), capability)
    compiled.check()
    assert compiled.count("HMMA") or "HGMMA" in compiled.sass


def test_postprocess() -> None:
    sizes = {"HEADS": 16, "Q_DIM": 192, "RANK": 512, "BLOCK_R": 512, "ROPE": 64, "BLOCK_P": 32, "BLOCK_H": 16}
    _compile(latent_postprocess_kernel, sizes, {"num_warps": 4}, 90).check()
