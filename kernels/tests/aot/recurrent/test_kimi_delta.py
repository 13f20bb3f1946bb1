"""The kernels of Kimi delta attention compile for every card, without a GPU; a compile dry run names all variants."""

import pytest
import torch
import triton
from kernel_support.aot import SHARED_KIB, Compiled, compile_offline
from kernel_support.convolution import Run
from kernel_support.kimi_delta import KimiDelta
from kernel_support.variants import dry_run_variants, launched_variants, pretend_a_device
from triton.backends.compiler import GPUTarget

import text_generation_kernels as kernels
from text_generation_kernels.recurrent._delta_rule import tile, warp_sizes
from text_generation_kernels.recurrent._gated_delta_blocks import BLOCK_T
from text_generation_kernels.recurrent._kimi_delta_blocks import kimi_delta_blocks_kernel
from text_generation_kernels.recurrent._kimi_delta_recurrent import kimi_delta_recurrent_kernel
from text_generation_kernels.recurrent._kimi_delta_states import kimi_delta_states_kernel
from text_generation_kernels.recurrent.kimi_delta import _BLOCKS_LAUNCH, _WIDTH
from text_generation_kernels.runtime.settings import nearest

FLOATS = ("rate_ptr", "bias_ptr", "state_ptr", "decays_ptr")
SPECIAL = dict.fromkeys(FLOATS, "*fp32") | {"rows_ptr": "*i64", "starts_ptr": "*i32", "kv_lens_ptr": "*i32"}


def _compile(
    kernel: triton.JITFunction,
    sizes: tuple[int, int],
    constants: dict[str, float],
    config: dict[str, int],
    capability: int,
    dtype: str = "bf16",
) -> Compiled:
    """`sizes` of a head: elements of keys and of values."""
    launch = {name: config[name] for name in ("num_warps", "num_stages") if name in config}
    constants = {"HEADS": 32, "KEY_DIM": sizes[0], "VALUE_DIM": sizes[1], **constants}
    constants = {name: value for name, value in constants.items() if name in kernel.arg_names}
    types = {name: f"*{dtype}" if name.endswith("_ptr") else "i32" for name in kernel.arg_names if name != "PDL"}
    types = {name: SPECIAL.get(name, kind) for name, kind in types.items() if name not in constants}
    return compile_offline(kernel, types, constants, **launch, target=GPUTarget("cuda", capability, 32))


def _recurrent(capability: int, sizes: tuple[int, int], dtype: str, least: float = 0.0) -> Compiled:
    constants = {"LEAST": least, **warp_sizes(*sizes)}
    return _compile(kimi_delta_recurrent_kernel, sizes, constants, {"num_warps": 1}, capability, dtype)


def _blocks(capability: int, sizes: tuple[int, int], runs: int = 16, dtype: str = "bf16") -> Compiled:
    constants = {"BLOCK_T": BLOCK_T, "BLOCK_B": runs, "WIDTH": _WIDTH, "LEAST": 0.0}
    return _compile(kimi_delta_blocks_kernel, sizes, constants, _BLOCKS_LAUNCH, capability, dtype)


def _states(capability: int, sizes: tuple[int, int], runs: int = 16, dtype: str = "bf16") -> Compiled:
    block_k, block_v = map(tile, sizes)
    config = nearest("kimi_delta", shared_kib=SHARED_KIB[capability])
    constants = {"BLOCK_K": block_k, "BLOCK_V": min(config["BLOCK_V"], block_v), "BLOCK_B": runs}
    constants |= {"BLOCK_T": BLOCK_T, "STAGES": config["STAGES"]}
    return _compile(kimi_delta_states_kernel, sizes, constants, dict(config), capability, dtype)


@pytest.mark.parametrize("least", [0.0, -5.0])
@pytest.mark.parametrize(
    ("capability", "dtype"), [(80, "bf16"), (86, "bf16"), (89, "fp16"), (90, "bf16"), (90, "fp32")]
)
def test_one_token_after_the_other(capability: int, dtype: str, least: float) -> None:
    compiled = _recurrent(capability, (128, 128), dtype, least)
    compiled.check()
    # The state of a warp.
    assert compiled.sass.count("LDG.E.128") >= 16
    assert compiled.sass.count("STG.E.128") == 16


@pytest.mark.parametrize("sizes", [(256, 256), (64, 64), (80, 48), (16, 16)])
def test_one_token_after_the_other_of_other_sizes(sizes: tuple[int, int]) -> None:
    _recurrent(90, sizes, "bf16").check()


@pytest.mark.parametrize(("capability", "dtype"), [(80, "bf16"), (86, "bf16"), (89, "fp16"), (90, "bf16")])
def test_blocks(capability: int, dtype: str) -> None:
    compiled = _blocks(capability, (128, 128), dtype=dtype)
    compiled.check(max_spills=8 if capability == 90 else 96)
    assert compiled.count("HMMA") or "HGMMA" in compiled.sass


@pytest.mark.parametrize(("capability", "dtype"), [(80, "bf16"), (86, "bf16"), (89, "fp16"), (90, "bf16")])
def test_states(capability: int, dtype: str) -> None:
    compiled = _states(capability, (128, 128), dtype=dtype)
    compiled.check()
    assert compiled.count("HMMA") or "HGMMA" in compiled.sass


@pytest.mark.parametrize(
    ("capability", "sizes", "runs"),
    [(90, (128, 256), 1), (80, (128, 256), 1), (86, (64, 64), 16), (90, (80, 48), 256), (90, (16, 16), 16)],
)
def test_blocks_and_states_of_other_sizes(capability: int, sizes: tuple[int, int], runs: int) -> None:
    _blocks(capability, sizes, runs).check(max_spills=8 if capability == 90 else 96)
    _states(capability, sizes, runs).check()


def test_runs_of_any_length_need_no_variant_that_a_dry_run_did_not_name(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_a_device(monkeypatch)

    def launch(runs: list[Run], deterministic: bool = False) -> None:
        KimiDelta.of(runs, 4, 16, 16, torch.bfloat16).run(kernels.kimi_delta, deterministic)

    with dry_run_variants() as named:
        launch([Run(1)])
        launch([Run(1)] * 2)
    with launched_variants() as needed:
        for length in (1, 16, 17, 65):
            for runs in (1, 2, 16):
                launch([Run(length)] * runs)
                launch([Run(length)] * runs, deterministic=True)
        KimiDelta.of_decodes(4, 16, 16, torch.bfloat16).run(kernels.kimi_delta)
    assert len({name for name, _ in needed}) == 3
    # One variant goes token by token: results of decodes and chunks have the same bits.
    assert sum(name == "kimi_delta_recurrent_kernel" for name, _ in needed) == 1
    assert needed <= named
