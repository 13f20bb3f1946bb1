"""Every production form of the attention kernels compiles for sm_90, without a GPU."""

import itertools

import pytest
import triton
from support.aot import SHARED_LIMIT, Compiled, compile_for_sm_90

from text_generation_server.kernels._attention import padded_head_dim
from text_generation_server.kernels._config import nearest
from text_generation_server.kernels.decode_attention import decode_attention_kernel, merge_kernel
from text_generation_server.kernels.prefill_attention import prefill_attention_kernel

BYTES = {"bf16": 2, "fp16": 2, "fp32": 4}


def _compile(kernel: triton.JITFunction, dtype: str, constants: dict[str, int], config: dict[str, int]) -> Compiled:
    special = {
        "slot_table_ptr": "*i32",
        "b_row_ptr": "*i64",
        "b_q_start_ptr": "*i32",
        "b_kv_len_ptr": "*i32",
        "partial_ptr": "*fp32",
        "partial_log_sum_ptr": "*fp32",
        "scale_log2": "fp32",
    }
    strides = {f"stride_{cache}_{unit}": size for cache in "kv" for unit, size in (("slot", 2048), ("head", 128))}
    constants = constants | {name: size for name, size in strides.items() if name in kernel.arg_names}
    sizes = (name for name in kernel.arg_names if name.startswith("stride_") or name in PLAN)
    types = dict.fromkeys((name for name in kernel.arg_names if name.endswith("_ptr")), f"*{dtype}")
    types |= dict.fromkeys(sizes, "i32")
    types |= {name: kind for name, kind in special.items() if name in kernel.arg_names}
    types = {name: kind for name, kind in types.items() if name not in constants}
    launch = {name: config[name] for name in ("num_warps", "num_stages") if name in config}
    tiles = {name: value for name, value in config.items() if name.startswith("BLOCK")}
    return compile_for_sm_90(kernel, types, {**constants, **tiles}, **launch)


PLAN = ("batch", "target_items", "one_wave", "min_chunk")


@pytest.mark.parametrize("max_q_len", [16, 512, 8192])
@pytest.mark.parametrize(
    ("dtype", "head_dim"),
    [("bf16", 64), ("bf16", 96), ("bf16", 128), ("fp16", 128), ("bf16", 256), ("fp32", 64)],
)
def test_prefill(dtype: str, head_dim: int, max_q_len: int) -> None:
    block_d = padded_head_dim(head_dim)
    config = nearest("prefill_attention", head_dim=block_d, element_bytes=BYTES[dtype], q_len=max_q_len)
    constants = {"GROUP": 4, "HEAD_DIM": head_dim, "BLOCK_D": block_d, "BLOCK_B": 16}
    compiled = _compile(prefill_attention_kernel, dtype, constants, config)
    # Tiles of 16 warps have 128 registers a thread and spill some, and are still the fastest: 418 TFLOP/s with a head
    # size of 128 and 8,192 tokens on an H200, where the fastest that does not spill reaches 360.
    compiled.check(max_spills=32 if config["num_warps"] == 16 else 0)
    assert compiled.count("HGMMA")
    assert "LDGSTS.E.BYPASS.128" in compiled.sass


def test_prefill_in_float32_with_large_heads_fits_in_shared_memory() -> None:
    # It spills, three tf32 products being kept apart: float32 is for comparison, not for serving.
    for head_dim, q_len in itertools.product((128, 256), (16, 8192)):
        config = nearest("prefill_attention", head_dim=head_dim, element_bytes=4, q_len=q_len)
        constants = {"GROUP": 4, "HEAD_DIM": head_dim, "BLOCK_D": head_dim, "BLOCK_B": 16}
        assert _compile(prefill_attention_kernel, "fp32", constants, config).shared_bytes <= SHARED_LIMIT


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("batch", [16, 256])
@pytest.mark.parametrize(
    ("dtype", "head_dim"), [("bf16", 64), ("bf16", 96), ("bf16", 128), ("fp16", 128), ("bf16", 256), ("fp32", 128)]
)
def test_decode(dtype: str, head_dim: int, batch: int, deterministic: bool) -> None:
    block_d = padded_head_dim(head_dim)
    config = nearest("decode_attention", head_dim=block_d, element_bytes=BYTES[dtype])
    sizes = {
        "HEAD_DIM": head_dim,
        "BLOCK_D": block_d,
        "BLOCK_B": batch,
        "DETERMINISTIC": deterministic,
    }
    compiled = _compile(decode_attention_kernel, dtype, {**sizes, "GROUP": 4, "BLOCK_G": 16}, config)
    compiled.check()
    assert compiled.count("HMMA")
    assert "LDGSTS.E.BYPASS.128" in compiled.sass


@pytest.mark.parametrize("batch", [16, 256])
def test_merge(batch: int) -> None:
    sizes = {"HEAD_DIM": 128, "BLOCK_D": 128, "BLOCK_B": batch, "BLOCK_C": 16, "DETERMINISTIC": False}
    _compile(merge_kernel, "bf16", sizes, {"num_warps": 4}).check()
