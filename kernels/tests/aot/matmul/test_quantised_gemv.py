"""Production variants of the W8A8, W4A16 and NVFP4 GEMVs compile, without a GPU."""

import re

import pytest
import torch
from kernel_support.aot import SM_90, Compiled, compile_offline
from triton.backends.compiler import GPUTarget

from text_generation_kernels.matmul.nvfp4_gemv import nvfp4_blocks, nvfp4_gemv_kernel
from text_generation_kernels.matmul.w4a16_gemv import w4a16_blocks, w4a16_gemv_kernel
from text_generation_kernels.matmul.w8a8_gemv import MOST_QUANTISED, w8a8_blocks, w8a8_gemv_kernel

FP8, INT8 = torch.float8_e4m3fn, torch.int8


def _rows(
    inputs: int, dtype: torch.dtype, quantises: bool = False, gated: bool = False, target: GPUTarget = SM_90
) -> Compiled:
    config = w8a8_blocks(inputs, quantises)
    steps, mask = -(-inputs // config["BLOCK_K"]), inputs % config["BLOCK_K"] != 0
    words = 4 if dtype == INT8 else 1
    codes = "*i32" if dtype == INT8 else "*fp8e4nv"
    types = {"x_ptr": "*bf16" if quantises else codes, "weight_ptr": codes, "out_ptr": "*bf16"}
    types |= {"weight_scale_ptr": "*fp32"} | ({} if quantises else {"x_scale_ptr": "*fp32"})
    types |= dict.fromkeys(("inputs", "outputs", "stride_weight_output"), "i32")
    constants = {"bias_ptr": None, "ACTIVATION": "silu" if gated else None, "BOUND": 0.0, "TINIEST": 1e-12}
    constants |= {"x_scale_ptr": None} if quantises else {}
    constants |= {"BLOCK_N": config["BLOCK_N"], "BLOCK_K": config["BLOCK_K"] // words}
    constants |= {"STEPS": steps, "MASK": mask, "IN_THREAD": 16 // words, "PLAIN": False}
    return compile_offline(w8a8_gemv_kernel, types, constants, config["num_warps"], target=target)


def _groups(
    inputs: int, with_zeros: bool, fp16: bool = False, gated: bool = False, target: GPUTarget = SM_90
) -> Compiled:
    words = inputs // 8
    config = w4a16_blocks(words)
    types = {"x_ptr": "*i32", "packed_ptr": "*i32", "scales_ptr": "*bf16", "out_ptr": "*fp16" if fp16 else "*bf16"}
    types |= {"zeros_ptr": "*bf16"} if with_zeros else {}
    types |= dict.fromkeys(("words", "outputs", "stride_packed_output"), "i32")
    constants = {"bias_ptr": None, "ACTIVATION": "silu" if gated else None, "FP16": fp16, "PLAIN": False}
    constants |= {} if with_zeros else {"zeros_ptr": None}
    constants |= {"STEPS": -(-words // config["BLOCK_W"]), "MASK": words % config["BLOCK_W"] != 0}
    constants |= {name: config[name] for name in ("BLOCK_N", "BLOCK_W")}
    return compile_offline(w4a16_gemv_kernel, types, constants, config["num_warps"], target=target)


def _nvfp4(inputs: int, dtype: str = "bf16", gated: bool = False, biased: bool = False) -> Compiled:
    config = nvfp4_blocks(inputs)
    types = {"packed_ptr": "*i32", "scales_ptr": "*i32", "factors_ptr": "*fp32"}
    types |= dict.fromkeys(("x_ptr", "out_ptr", *(["bias_ptr"] if biased else [])), f"*{dtype}")
    types |= dict.fromkeys(("inputs", "outputs", "stride_packed_output"), "i32")
    constants = {"ACTIVATION": "silu" if gated else None, "MASK": inputs % (256 * config["num_warps"]) != 0}
    constants |= {} if biased else {"bias_ptr": None}
    constants |= {name: config[name] for name in ("BLOCK_N", "AHEAD", "STEPS")}
    registers, num_warps = config["maxnreg"], config["num_warps"]
    return compile_offline(nvfp4_gemv_kernel, types, constants, num_warps, max_registers=registers)


def _prefetched_before_the_wait(compiled: Compiled) -> int:
    """Bytes of the weight that a thread prefetches, 16 at a time."""
    before, _ = compiled.sass.split("ACQBULK")
    return 16 * len(re.findall(r"LDG\.E\.EF\.128", before))


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("inputs", [4096, 8192, 7168, 14336, 28672])
@pytest.mark.parametrize("dtype", [FP8, INT8])
def test_rows_are_prefetched_before_the_wait_and_nothing_spills(dtype: torch.dtype, inputs: int, gated: bool) -> None:
    compiled = _rows(inputs, dtype, gated=gated)
    compiled.check()
    assert _prefetched_before_the_wait(compiled) == 128


@pytest.mark.parametrize("inputs", [4096, MOST_QUANTISED])
def test_rows_whose_inputs_are_quantised_there(inputs: int) -> None:
    compiled = _rows(inputs, FP8, quantises=True)
    compiled.check()
    assert _prefetched_before_the_wait(compiled) == 256


def test_float8_takes_two_conversions_and_no_others() -> None:
    """256 weights of a thread, and 32 inputs."""
    compiled = _rows(4096, FP8)
    assert compiled.count("F2FP") <= 128 // 2 + 32 // 2 + 4
    assert compiled.count("F2F") == 0


def test_int8_is_multiplied_four_at_a_time() -> None:
    assert _rows(4096, INT8).count("IDP") == 128 // 4


@pytest.mark.parametrize("inputs", [4096, 8192, 7168, 14336, 28672])
@pytest.mark.parametrize("with_zeros", [False, True])
def test_codes_are_prefetched_before_the_wait_and_nothing_spills(inputs: int, with_zeros: bool) -> None:
    compiled = _groups(inputs, with_zeros)
    compiled.check()
    assert _prefetched_before_the_wait(compiled) == (256 if inputs <= 8192 else 128)


@pytest.mark.parametrize("fp16", [False, True])
def test_codes_with_a_gate_take_half_a_multiply_instruction_each(fp16: bool) -> None:
    compiled = _groups(4096, with_zeros=False, fp16=fp16, gated=True)
    compiled.check()
    assert compiled.count("IDP") == 512 // 2


@pytest.mark.parametrize("inputs", [256, 4096, 8192, 7168, 14336, 1000])
@pytest.mark.parametrize(("dtype", "gated", "biased"), [("bf16", True, False), ("fp16", False, True)])
def test_codes_of_nvfp4_are_prefetched_and_nothing_spills(inputs: int, dtype: str, gated: bool, biased: bool) -> None:
    compiled, config = _nvfp4(inputs, dtype, gated, biased), nvfp4_blocks(inputs)
    compiled.check()
    # Rows of 32 words by a warp, in each of its blocks.
    assert _prefetched_before_the_wait(compiled) == 4 * config["BLOCK_N"] * config["AHEAD"]


@pytest.mark.parametrize("inputs", [2048, 4096])
def test_codes_of_nvfp4_take_few_instructions_and_no_shared_memory_but_for_the_last_sums(inputs: int) -> None:
    compiled, config = _nvfp4(inputs), nvfp4_blocks(inputs)
    rows, blocks = config["BLOCK_N"], config["STEPS"]
    assert compiled.count("HMMA") == rows * blocks
    assert compiled.shared_bytes <= config["num_warps"] * rows * 4
    # 8 codes of each row and block are of one thread, with what each thread block does once.
    assert len(compiled.sass.splitlines()) <= 3.4 * 8 * rows * blocks


@pytest.mark.parametrize("capability", [80, 86, 89])
def test_other_cards(capability: int) -> None:
    target = GPUTarget("cuda", capability, 32)
    _rows(4096, INT8, target=target).check()
    _groups(4096, with_zeros=True, target=target).check()
    if capability == 89:
        _rows(4096, FP8, target=target).check()
        _rows(4096, FP8, quantises=True, target=target).check()
