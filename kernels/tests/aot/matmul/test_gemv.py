"""Every production variant of the 16-bit GEMVs compiles, without a GPU."""

import re

import pytest
import torch
from kernel_support.aot import SM_90, Compiled, compile_offline
from triton.backends.compiler import GPUTarget

from text_generation_kernels.collectives.exchange import Exchange
from text_generation_kernels.matmul.bf16_gemv import bf16_gemv_kernel
from text_generation_kernels.matmul.gemv_blocks import gemv_blocks, routing_blocks, sum_blocks
from text_generation_kernels.moe.experts_gemv import FusedRouter, expert_gemv_kernel, expert_gemv_sum_kernel
from text_generation_kernels.moe.moe_route import RouteOptions
from text_generation_kernels.moe.routing import Routing

DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


def _gemv(
    inputs: int,
    dtype: str,
    target: GPUTarget = SM_90,
    large: bool = False,
    norm: bool = False,
    adds: bool = False,
    sent: bool = False,
) -> Compiled:
    shape = (1 << 15 if large else 64, inputs)
    config = gemv_blocks(torch.empty(shape, dtype=DTYPES[dtype], device="meta"), norm, adds=adds)
    warps, stages = config.pop("num_warps"), config.pop("num_stages")
    sizes = ["inputs", "outputs", *(f"stride_{each}" for each in ("x_row", "weight_output", "out_row"))]
    types: dict[str, str] = dict.fromkeys(("x_ptr", "weight_ptr", "out_ptr"), f"*{dtype}")
    types |= dict.fromkeys(sizes, "i32") | {"eps": "fp32"}
    types |= dict.fromkeys(("norm_ptr", "normalised_ptr"), f"*{dtype}") if norm else {}
    constants = {"ACTIVATION": None, "ADDS": adds, "MASK": inputs % config["BLOCK_K"] != 0, "bias_ptr": None, **config}
    constants |= {} if norm else {"norm_ptr": None, "normalised_ptr": None}
    constants |= {} if sent else {"control_ptr": None}
    if sent:
        types |= {"control_ptr": "*i64"}
        del types["out_ptr"]
        control = torch.empty(0, dtype=torch.int64, device="meta")
        exchange = Exchange(1, 2, control, 16 << 20)
        constants |= {"out_ptr": None, "RANK": 1, **exchange.constants(torch.empty(0, dtype=DTYPES[dtype]))}
    return compile_offline(bf16_gemv_kernel, types, constants, warps, stages, target)


def _experts(
    inputs: int, dtype: str, held: int | None = None, options: RouteOptions | None = None, target: GPUTarget = SM_90
) -> Compiled:
    weight = torch.empty((128, 1536, inputs), dtype=DTYPES[dtype], device="meta")
    config = gemv_blocks(weight) if options is None else routing_blocks(weight)
    warps, stages = config.pop("num_warps"), config.pop("num_stages")
    types: dict[str, str] = dict.fromkeys(("x_ptr", "weight_ptr", "bias_ptr", "out_ptr"), f"*{dtype}")
    types |= dict.fromkeys(("inputs", "outputs", "stride_x_row", "first"), "i32") | {"scale": "fp32", "ids_ptr": "*i32"}
    constants = {"SLOTS": 8, "HELD": held, "ACTIVATION": "silu", "WARPS": warps, **config}
    constants["MASK"] = held is not None or inputs % config["BLOCK_K"] != 0
    if options is None:
        constants |= {"logits_ptr": None, "shares_ptr": None}
        names = ("EXPERTS", "TOP_K", "NORM", "SHARED", "BLOCK_E", "BLOCK_S", "TINY")
        constants |= dict.fromkeys(names, 0)
    else:
        types |= {"logits_ptr": f"*{dtype}", "shares_ptr": "*fp32"}
        constants |= FusedRouter(torch.empty(1, 128), options, Routing.empty(1, 8)).constants
    return compile_offline(expert_gemv_kernel, types, constants, warps, stages, target)


def _sum(inputs: int, slots: int, dtype: str, held: int | None, target: GPUTarget = SM_90) -> Compiled:
    config = sum_blocks(torch.empty(4, 2048, inputs, dtype=DTYPES[dtype], device="meta"), slots)
    warps, stages = config.pop("num_warps"), config.pop("num_stages")
    types = dict.fromkeys(("x_ptr", "weight_ptr", "out_ptr"), f"*{dtype}") | {"ids_ptr": "*i32", "shares_ptr": "*fp32"}
    types |= dict.fromkeys(("inputs", "outputs"), "i32")
    constants = {"SLOTS": slots, "BLOCK_S": slots, "HELD": held, "bias_ptr": None, "ADDS": True, **config}
    constants["MASK"] = held is not None or (inputs - config["REST"]) % config["BLOCK_K"] != 0
    return compile_offline(expert_gemv_sum_kernel, types, constants, warps, stages, target)


@pytest.mark.parametrize("inputs", [2048, 2880, 4096, 14336])
@pytest.mark.parametrize("held", [None, 16])
def test_gemvs_of_experts_do_not_spill(inputs: int, held: int | None) -> None:
    _experts(inputs, "bf16", held).check()


@pytest.mark.parametrize(("inputs", "held"), [(2048, None), (2048, 128), (2880, None), (4096, None), (6144, None)])
def test_gemvs_with_fused_routing_do_not_spill(inputs: int, held: int | None) -> None:
    compiled = _experts(inputs, "bf16", held, RouteOptions(8))
    compiled.check()
    assert compiled.count("REDUX")


@pytest.mark.parametrize("inputs", [2048, 2880, 4096, 14336])
@pytest.mark.parametrize(("large", "sent"), [(False, False), (False, True), (True, False), (True, True)])
def test_dense_gemvs_prefetch_before_the_wait_and_do_not_spill(inputs: int, large: bool, sent: bool) -> None:
    compiled = _gemv(inputs, "bf16", large=large, sent=sent)
    compiled.check()
    before, _ = compiled.sass.split("ACQBULK")
    assert len(re.findall(r"LDG\.E\.EF\.128", before)) == (16 if large else 8)


@pytest.mark.parametrize(("inputs", "large"), [(896, False), (2048, False), (4096, False), (4096, True)])
def test_gemvs_that_normalise_and_add_do_not_spill(inputs: int, large: bool) -> None:
    _gemv(inputs, "bf16", large=large, norm=True, adds=True).check()


@pytest.mark.parametrize(("inputs", "slots", "held"), [(768, 8, None), (768, 8, 64), (2880, 4, None), (14336, 2, None)])
def test_down_gemvs_prefetch_before_the_wait_and_do_not_spill(inputs: int, slots: int, held: int | None) -> None:
    compiled = _sum(inputs, slots, "bf16", held)
    compiled.check(max_spills=1 if inputs == 2880 else 0)
    before, _ = compiled.sass.split("ACQBULK")
    assert len(re.findall(r"LDG\.E\.EF\.128", before)) == (6 if inputs == 768 else 8)


def test_the_qkv_matrix_is_about_one_wave_of_thread_blocks() -> None:
    weight = torch.empty((5120, 2048), dtype=torch.bfloat16, device="meta")
    qkv, gated = gemv_blocks(weight, normalises=True), gemv_blocks(weight, normalises=True, activates=True)
    router = gemv_blocks(weight[:128], normalises=True)
    assert qkv["BLOCK_N"] == 8
    output = torch.empty((2048, 4096), dtype=torch.bfloat16, device="meta")
    assert gemv_blocks(output, adds=True)["num_warps"] == 2 * gemv_blocks(output)["num_warps"]
    # Matrices that are small, or that attention does not follow, have more thread blocks of fewer rows.
    assert gated["BLOCK_N"] == router["BLOCK_N"] == 2


def test_float32() -> None:
    _experts(4096, "fp32").check()
    _sum(768, 8, "fp32", None).check()


@pytest.mark.parametrize("capability", [80, 86, 89])
def test_other_cards(capability: int) -> None:
    target = GPUTarget("cuda", capability, 32)
    _gemv(2048, "bf16", target=target).check()
    # Two registers are spilled on sm_80 so that eight thread blocks share an SM.
    _gemv(2048, "bf16", target=target, large=True).check(max_spills=2)
    _sum(768, 8, "bf16", None, target).check()
