"""Every production variant of the kernel compiles for sm_90, without a GPU."""

import pytest
import triton
from kernel_support.aot import compile_offline
from triton.backends.compiler import GPUTarget

from text_generation_kernels.attention._kv_conversion import E4M3, E5M2, INT8
from text_generation_kernels.attention._qkv_postprocess_kernel import qkv_postprocess_kernel
from text_generation_kernels.runtime.settings import nearest

STRIDES = (
    "stride_qkv_partial",
    "stride_qkv_token",
    "stride_q_token",
    "stride_cos_sin_position",
    "stride_k_cache_slot",
    "stride_k_cache_head",
    "stride_v_cache_slot",
    "stride_v_cache_head",
    "stride_scales_slot",
    "stride_scales_head",
)
NO_CODES = {"PARTIALS": 0, "FORMAT": 0, "SCALES_GIVEN": False, "scales_ptr": None}


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
@pytest.mark.parametrize(("with_bias", "with_norms"), [(False, False), (True, False), (False, True)])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim"), [(32, 8, 128), (4, 1, 128), (32, 8, 64), (32, 32, 80), (32, 32, 96), (8, 4, 256)]
)
def test_no_spills_and_wide_memory_accesses(
    heads: int, kv_heads: int, head_dim: int, with_bias: bool, with_norms: bool, dtype: str
) -> None:
    types = dict.fromkeys(("qkv_ptr", "q_ptr", "k_cache_ptr", "v_cache_ptr"), f"*{dtype}") | dict.fromkeys(
        STRIDES, "i32"
    )
    types |= {"cos_sin_ptr": "*fp32", "positions_ptr": "*i64", "slots_ptr": "*i64", "eps": "fp32"}
    block_half = triton.next_power_of_2(head_dim // 2)
    config = nearest("qkv_postprocess", half=block_half)
    constants = {"HEADS": heads, "KV_HEADS": kv_heads, "HEAD_DIM": head_dim, "BLOCK_HALF": block_half}
    constants["BLOCK_HEADS"] = config["BLOCK_HEADS"]
    optional = {"bias_ptr": with_bias, "q_norm_ptr": with_norms, "k_norm_ptr": with_norms}
    types |= {name: f"*{dtype}" for name, given in optional.items() if given}
    constants |= {name: None for name, given in optional.items() if not given}
    constants |= {"NORM_OF_EACH_HEAD": False, "NORM_AFTER_ROPE": False, **NO_CODES}
    compiled = compile_offline(qkv_postprocess_kernel, types, constants, config["num_warps"])
    compiled.check()
    assert "LDG.E.128" in compiled.sass
    assert "STG.E.128" in compiled.sass


@pytest.mark.parametrize("norm_after_rope", [False, True])
@pytest.mark.parametrize("head_dim", [128, 512])
def test_norms_of_each_head_in_float32(head_dim: int, norm_after_rope: bool) -> None:
    types = dict.fromkeys(("qkv_ptr", "q_ptr", "k_cache_ptr", "v_cache_ptr"), "*bf16") | dict.fromkeys(STRIDES, "i32")
    types |= {"cos_sin_ptr": "*fp32", "positions_ptr": "*i64", "slots_ptr": "*i64", "eps": "fp32"}
    types |= dict.fromkeys(("q_norm_ptr", "k_norm_ptr"), "*fp32")
    config = nearest("qkv_postprocess", half=head_dim // 2)
    constants = {"HEADS": 16, "KV_HEADS": 8, "HEAD_DIM": head_dim, "BLOCK_HALF": head_dim // 2, "bias_ptr": None}
    constants |= {"NORM_OF_EACH_HEAD": True, "NORM_AFTER_ROPE": norm_after_rope, "BLOCK_HEADS": config["BLOCK_HEADS"]}
    constants |= NO_CODES
    compile_offline(qkv_postprocess_kernel, types, constants, config["num_warps"]).check()


@pytest.mark.parametrize("codes", [0, E4M3])
@pytest.mark.parametrize("partials", [2, 6])
def test_split_k_partials(partials: int, codes: int) -> None:
    types = dict.fromkeys(("k_cache_ptr", "v_cache_ptr"), "*u8" if codes else "*bf16") | dict.fromkeys(STRIDES, "i32")
    types |= {"qkv_ptr": "*fp32", "q_ptr": "*bf16", "bias_ptr": "*bf16"} | ({"scales_ptr": "*bf16"} if codes else {})
    types |= {"cos_sin_ptr": "*fp32", "positions_ptr": "*i64", "slots_ptr": "*i64", "eps": "fp32"}
    config = nearest("qkv_postprocess", half=64)
    constants = {"HEADS": 32, "KV_HEADS": 4, "HEAD_DIM": 128, "BLOCK_HALF": 64, "BLOCK_HEADS": config["BLOCK_HEADS"]}
    constants |= {"q_norm_ptr": None, "k_norm_ptr": None, "NORM_OF_EACH_HEAD": False, "NORM_AFTER_ROPE": False}
    constants |= {"PARTIALS": partials, "FORMAT": codes, "SCALES_GIVEN": False} | (
        {} if codes else {"scales_ptr": None}
    )
    compiled = compile_offline(qkv_postprocess_kernel, types, constants, config["num_warps"])
    compiled.check()
    assert "LDG.E.128" in compiled.sass


@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize("scales_given", [False, True])
@pytest.mark.parametrize("codes", [E4M3, E5M2, INT8])
def test_codes(codes: int, scales_given: bool, capability: int) -> None:
    types = {"qkv_ptr": "*bf16", "q_ptr": "*bf16", "k_cache_ptr": "*u8", "v_cache_ptr": "*u8", "scales_ptr": "*bf16"}
    types |= dict.fromkeys(STRIDES, "i32")
    types |= {"cos_sin_ptr": "*fp32", "positions_ptr": "*i64", "slots_ptr": "*i64", "eps": "fp32"}
    config = nearest("qkv_postprocess", half=64)
    constants = {"HEADS": 32, "KV_HEADS": 8, "HEAD_DIM": 128, "BLOCK_HALF": 64, "BLOCK_HEADS": config["BLOCK_HEADS"]}
    constants |= dict.fromkeys(("bias_ptr", "q_norm_ptr", "k_norm_ptr"))
    constants |= {"NORM_OF_EACH_HEAD": False, "NORM_AFTER_ROPE": False, "FORMAT": codes, "SCALES_GIVEN": scales_given}
    constants["PARTIALS"] = 0
    target = GPUTarget("cuda", capability, 32)
    compiled = compile_offline(qkv_postprocess_kernel, types, constants, config["num_warps"], target=target)
    compiled.check()
    assert "STG.E.64" in compiled.sass
