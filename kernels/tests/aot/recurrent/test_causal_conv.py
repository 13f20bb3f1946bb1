"""Every production variant of the kernels compiles for every card, without a GPU."""

import pytest
import triton
from kernel_support.aot import Compiled, compile_offline
from triton.backends.compiler import GPUTarget

from text_generation_kernels.recurrent._causal_conv_kernels import (
    conv_chunks_kernel,
    conv_decodes_kernel,
    conv_states_kernel,
)
from text_generation_kernels.recurrent.causal_conv import _THREAD_BYTES, _TOKENS, _WARPS

SPECIAL = {"rows_ptr": "*i64", "starts_ptr": "*i32", "kv_lens_ptr": "*i32"}
SIZES: dict[str, int | None] = {"CHANNELS": 8192, "K": 4, "stride_x_token": 3352}
CHANNELS_TOGETHER: dict[str, int | None] = {"stride_weight_channel": 1}
CHUNKS: dict[str, int | None] = {"TOKENS": _TOKENS, "BLOCK_B": 16, "SILU": True}


def _compile(
    kernel: triton.JITFunction, constants: dict[str, int | None], dtype: str = "bf16", capability: int = 90
) -> Compiled:
    block = 32 * _WARPS * _THREAD_BYTES // (4 if dtype == "fp32" else 2)
    constants = {name: value for name, value in constants.items() if name in kernel.arg_names}
    constants |= {**SIZES, "BLOCK": block}
    types = {name: f"*{dtype}" if name.endswith("_ptr") else "i32" for name in kernel.arg_names if name != "PDL"}
    types = {name: SPECIAL.get(name, kind) for name, kind in types.items() if name not in constants}
    return compile_offline(kernel, types, constants, num_warps=_WARPS, target=GPUTarget("cuda", capability, 32))


@pytest.mark.parametrize(
    ("capability", "dtype"), [(80, "bf16"), (86, "bf16"), (89, "fp16"), (90, "bf16"), (90, "fp32")]
)
@pytest.mark.parametrize("kernel", [conv_decodes_kernel, conv_chunks_kernel, conv_states_kernel])
def test_no_spills_and_wide_memory_accesses(kernel: triton.JITFunction, capability: int, dtype: str) -> None:
    compiled = _compile(kernel, CHUNKS | CHANNELS_TOGETHER, dtype, capability)
    compiled.check()
    assert "LDG.E.128" in compiled.sass
    assert "STG.E.128" in compiled.sass
    # No value of 16 bits is read alone.
    assert "LDG.E.U16" not in compiled.sass


@pytest.mark.parametrize(
    "constants",
    [CHUNKS, CHUNKS | CHANNELS_TOGETHER | {"bias_ptr": None}, CHUNKS | {"BLOCK_B": 256, "SILU": False}],
    ids=str,
)
def test_other_variants(constants: dict[str, int | None]) -> None:
    """Weights as checkpoints have them, no bias, many runs, and no activation."""
    _compile(conv_chunks_kernel, constants).check()
