"""The recurrences of Mamba 1 and 2 compile for every card, without a GPU, and fit into its registers and its shared
memory."""

from typing import Any

import pytest
import triton
from kernel_support.aot import SHARED_KIB, Compiled, compile_offline
from triton.backends.compiler import GPUTarget

from text_generation_kernels.recurrent._state_space_kernels import state_space_blocks_kernel, state_space_tokens_kernel
from text_generation_kernels.recurrent.selective_scan import scan_settings, selective_scan_kernel
from text_generation_kernels.recurrent.state_space import block_settings, token_settings

SPECIAL = {"rows_ptr": "*i64", "starts_ptr": "*i32", "kv_lens_ptr": "*i32", "low": "fp32", "high": "fp32"}
SPECIAL |= dict.fromkeys(("a_log_ptr", "d_ptr", "dt_bias_ptr", "state_ptr"), "*fp32")
CARDS = [(80, "bf16"), (86, "bf16"), (89, "fp16"), (90, "bf16"), (90, "fp32")]
FORMS = [(capability, dtype, decodes) for capability, dtype in CARDS for decodes in (False, True)]
BYTES = {"bf16": 2, "fp16": 2, "fp32": 4}


def _compile(
    kernel: triton.JITFunction, form: dict[str, int], sizes: dict[str, int], capability: int, dtype: str, decodes: bool
) -> Compiled:
    launch: dict[str, Any] = {name: form[name] for name in ("num_warps", "num_stages") if name in form}
    constants: dict[str, int | None] = {name: value for name, value in form.items() if name not in launch} | sizes
    # Of a width that 16 does not divide, as of Mamba 2 with 130M parameters.
    constants |= {name: 3352 for name in kernel.arg_names if name.startswith("stride")}
    if decodes:
        constants["starts_ptr"] = None
    types = {name: SPECIAL.get(name, f"*{dtype}") for name in kernel.arg_names if name not in constants}
    types.pop("PDL")
    return compile_offline(kernel, types, constants, **launch, target=GPUTarget("cuda", capability, 32))


@pytest.mark.parametrize(("capability", "dtype", "decodes"), FORMS)
def test_selective_scan(capability: int, dtype: str, decodes: bool) -> None:
    form = scan_settings(16, BYTES[dtype], decodes)
    sizes = {"CHANNELS": 8192, "N": 16}
    compiled = _compile(selective_scan_kernel, form, sizes, capability, dtype, decodes)
    compiled.check()
    # Two threads share a channel and reduce it; thread blocks of one warp need no barrier.
    assert compiled.count("SHFL.BFLY") == form["COUNT"]
    assert decodes or "BAR.SYNC" not in compiled.sass
    assert "STG.E.128" in compiled.sass


@pytest.mark.parametrize("n", [1, 256])
def test_selective_scan_of_other_sizes(n: int) -> None:
    form = scan_settings(n, 2, False)
    _compile(selective_scan_kernel, form, {"CHANNELS": 100, "N": n}, 90, "bf16", False).check()


def _sizes(p: int, n: int) -> dict[str, int]:
    return {"HEADS": 128, "GROUP": 16, "P": p, "N": n}


@pytest.mark.parametrize(("capability", "dtype", "decodes"), FORMS)
def test_state_space_token_after_token(capability: int, dtype: str, decodes: bool) -> None:
    form = token_settings(128, 64, BYTES[dtype], decodes)
    compiled = _compile(state_space_tokens_kernel, form, _sizes(64, 128), capability, dtype, decodes)
    compiled.check()
    assert decodes or "BAR.SYNC" not in compiled.sass
    assert "STG.E.128" in compiled.sass


@pytest.mark.parametrize(("p", "n"), [(12, 8), (128, 64), (64, 256), (128, 128)])
def test_state_space_token_after_token_of_other_sizes(p: int, n: int) -> None:
    for decodes in (False, True):
        form = token_settings(n, p, 2, decodes)
        _compile(state_space_tokens_kernel, form, _sizes(p, n), 90, "bf16", decodes).check()


@pytest.mark.parametrize(("capability", "dtype"), [*CARDS[:-1], (90, "fp16")])
def test_state_space_in_blocks(capability: int, dtype: str) -> None:
    form = block_settings(128, 64, SHARED_KIB[capability])
    compiled = _compile(state_space_blocks_kernel, form, _sizes(64, 128), capability, dtype, False)
    compiled.check()
    assert "GMMA" in compiled.sass if capability == 90 else "HMMA" in compiled.sass


@pytest.mark.parametrize("capability", [86, 90])
@pytest.mark.parametrize(("p", "n"), [(12, 8), (128, 64), (64, 256), (128, 128)])
def test_state_space_in_blocks_of_other_sizes(p: int, n: int, capability: int) -> None:
    form = block_settings(n, p, SHARED_KIB[capability])
    _compile(state_space_blocks_kernel, form, _sizes(p, n), capability, "bf16", False).check(max_spills=8)
