"""Production variants of kernels that fuse shrink and expand compile for every card, without a GPU."""

import pytest
import torch
import triton
from kernel_support.adapters import Range, Site
from kernel_support.aot import SM_90, Compiled, compile_offline
from kernel_support.variants import dry_run_variants, launched_variants, pretend_a_device
from triton.backends.compiler import GPUTarget

from text_generation_kernels import NormPrologue
from text_generation_kernels.lora.lora_delta import delta_splits, lora_delta_kernel, lora_delta_triton
from text_generation_kernels.matmul.adapted_gemv import adapted_gemv_kernel, adapted_gemv_triton
from text_generation_kernels.matmul.gemv_blocks import gemv_blocks
from text_generation_kernels.matmul.skinny_linear import skinny_gemm
from text_generation_kernels.norm.rms_norm import rms_norm_triton
from text_generation_kernels.runtime.launch_order import LaunchOrderError

TABLES = dict.fromkeys(("work_ptr", "counts_ptr"), "*i32") | {"words_ptr": "*i64"}
STRIDES = ("stride_a_page", "stride_b_page", "stride_scale_page")
QKV: list[Range] = [(0, 64, 0), (64, 80, 1), (80, 96, 2)]
CARDS = [GPUTarget("cuda", capability, 32) for capability in (80, 86, 89)]
LAYERS = [(6144, 4096, 3, True, None), (4096, 4096, 1, False, None), (28672, 4096, 2, True, "silu")]
LAYERS += [(4096, 14336, 1, False, None)]
"""Outputs, inputs, parts, whether a norm is fused, and the activation."""
LARGEST_BESIDE = (228 << 10) - (1 << 10) - 208 * (1 << 10)
"""Shared memory of an SM that the largest tiles of `bf16_small_hopper` leave, with 1 KiB for each thread block."""


def _gemv(
    outputs: int, inputs: int, parts: int, norm: bool, activation: str | None, target: GPUTarget = SM_90
) -> Compiled:
    adds, weight = not norm, torch.empty((outputs, inputs), dtype=torch.bfloat16, device="meta")
    config = gemv_blocks(weight, norm, activation is not None, adds)
    warps, stages = config.pop("num_warps"), config.pop("num_stages")
    sizes = ("inputs", "outputs", "stride_weight_output", *STRIDES, "shrink_blocks", "items", "launch")
    types = TABLES | dict.fromkeys(sizes, "i32") | {"scale_ptr": "*fp32", "eps": "fp32"}
    types |= dict.fromkeys(("x_ptr", "weight_ptr", "out_ptr", "a_ptr", "b_ptr"), "*bf16")
    at_once = max(1, warps * 32 // (16 * config["BLOCK_N"]))
    constants = {"ACTIVATION": activation, "ADDS": adds, "PARTS": parts, "UNITS": 16, "OUTPUT_BLOCK": 16, **config}
    constants |= {"AT_ONCE": at_once}
    steps = {"STEPS_A": triton.cdiv(inputs, 4096), "BLOCK_A": min(4096, triton.next_power_of_2(inputs))}
    constants |= {**steps, "MASK": inputs % config["BLOCK_K"] != 0, "bias_ptr": None}
    if norm:
        types |= dict.fromkeys(("norm_ptr", "normalised_ptr"), "*bf16")
    else:
        constants |= {"norm_ptr": None, "normalised_ptr": None}
    types |= {"part_of_block_ptr": "*i32"} if parts > 1 else {}
    constants |= {} if parts > 1 else {"part_of_block_ptr": None}
    return compile_offline(adapted_gemv_kernel, types, constants, warps, stages, target)


def _delta(dtype: str, inputs: int, parts: int, beside: bool, target: GPUTarget = SM_90) -> Compiled:
    sizes = ("inputs", "outputs", "inputs_of_split", "stride_x_token", *STRIDES, "stride_out_token")
    types = TABLES | dict.fromkeys((*sizes, "items", "shrink_blocks", "launch"), "i32")
    types |= dict.fromkeys(("order_ptr", "tiles_ptr"), "*i32")
    types |= dict.fromkeys(("x_ptr", "a_ptr", "b_ptr"), f"*{dtype}") | dict.fromkeys(("scale_ptr", "out_ptr"), "*fp32")
    splits = delta_splits(inputs)
    constants = {"SPLITS": splits, "BLOCK_S": triton.next_power_of_2(splits), "PARTS": parts, "UNITS": 16}
    constants |= {"BESIDE": beside, "OUTPUT_BLOCK": 16, "MASK_K": False, "BLOCK_M": 16, "BLOCK_K": 64}
    constants |= {"STEPS": 8, "OUTPUTS": 256, "BLOCK_N": 64, "THREADS": 128}
    types |= {"part_of_block_ptr": "*i32"} if parts > 1 else {}
    constants |= {} if parts > 1 else {"part_of_block_ptr": None}
    return compile_offline(lora_delta_kernel, types, constants, 4, 1, target, max_registers=168)


@pytest.mark.parametrize("layer", LAYERS, ids=str)
def test_the_gemv_has_no_spills_and_wide_loads(layer: tuple[int, int, int, bool, str | None]) -> None:
    compiled = _gemv(*layer)
    compiled.check()
    assert "LDG.E.EF.128" in compiled.sass
    assert not compiled.count("HMMA")


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize("beside", [False, True])
@pytest.mark.parametrize(("inputs", "parts"), [(4096, 1), (4096, 3), (14336, 1)])
def test_thread_blocks_of_delta_fit_beside_the_gemm(inputs: int, parts: int, beside: bool, dtype: str) -> None:
    """Two, or of float16, whose results of shrink are three TF32 numbers, one."""
    compiled = _delta(dtype, inputs, parts, beside)
    compiled.check(max_spills=16)
    assert (2 if dtype == "bf16" else 1) * (compiled.shared_bytes + 1024) <= LARGEST_BESIDE + 1024
    assert "LDG.E.128" in compiled.sass
    assert "CCTL.E.PF2" in compiled.sass
    assert not compiled.count("HGMMA")


@pytest.mark.parametrize("target", CARDS, ids=lambda target: f"sm_{target.arch}")
def test_other_cards(target: GPUTarget) -> None:
    for compiled in (_gemv(*LAYERS[0], target), _delta("bf16", 4096, 3, True, target)):
        compiled.check(max_spills=16)


def test_one_variant_serves_all_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Warm-up that ran one step of a site has compiled all that its later steps need."""
    site = Site.of((16, 40), QKV, 256, torch.float16, "cpu")
    weight, words = torch.empty(96, 256, dtype=torch.float16), torch.zeros(1 << 17, dtype=torch.int64)
    many = [[1] * 40 + [-1] * 3, [0], [-1] * 64]
    some = [site.step(adapters).adapters(1, words, launch) for launch, adapters in enumerate(many)]
    one = [site.step([adapter]).adapters(1, words, launch) for launch, adapter in enumerate((1, 0, -1))]
    pretend_a_device(monkeypatch)

    def run(index: int) -> None:
        x, out = torch.empty(len(many[index]), 256, dtype=torch.float16), torch.empty(2, len(many[index]), 96)
        for beside in (False, True):
            words.zero_()
            lora_delta_triton(x, some[index], out[1], beside)
        norm = NormPrologue(weight[0], 1e-5, x[:1])
        adapted_gemv_triton(x[:1], weight, None, x.new_empty(1, 96), one[index], None, norm)

    with dry_run_variants() as warmed:
        run(0)
    assert len(warmed) == 3
    for index in (1, 2):
        with launched_variants() as needed:
            run(index)
        assert needed <= warmed


def test_a_gemm_that_adds_delta_reads_x_while_delta_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """That is safe because delta is begun once x is finished; without it the GEMM would read what the norm writes."""
    site = Site.of((16,), [(0, 256, 0)], 256, torch.bfloat16, "cpu")
    words, weight = torch.zeros(1 << 17, dtype=torch.int64), torch.empty(256, 256, dtype=torch.bfloat16)
    given = site.step([0] * 8).adapters(1, words)
    x, out, delta = torch.empty(8, 256).bfloat16(), torch.empty(8, 128).bfloat16(), torch.empty(8, 256)
    settings = {"BLOCK_N": 64, "BLOCK_K": 128, "num_warps": 4, "num_stages": 3, "splits": 1}
    pretend_a_device(monkeypatch)

    def run(with_delta: bool) -> None:
        rms_norm_triton(torch.empty_like(x), weight[0], 1e-5, x)
        if with_delta:
            lora_delta_triton(x, given, delta)
        skinny_gemm(x, weight, None, out, "silu", settings, delta)

    with dry_run_variants():
        run(with_delta=True)
    with pytest.raises(LaunchOrderError, match="skinny_linear_after_delta reads `x`"), dry_run_variants():
        run(with_delta=False)
