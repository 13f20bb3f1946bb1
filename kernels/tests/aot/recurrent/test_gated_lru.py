"""The recurrence of RG-LRU compiles for every card, without a GPU."""

import pytest
from kernel_support.aot import compile_offline
from triton.backends.compiler import GPUTarget

from text_generation_kernels.recurrent.gated_lru import gated_lru_kernel, lru_settings

SPECIAL = {"rows_ptr": "*i64", "starts_ptr": "*i32", "kv_lens_ptr": "*i32"}
SPECIAL |= dict.fromkeys(("rate_ptr", "bias_ptr", "state_ptr"), "*fp32")
CARDS = [(80, "bf16"), (86, "bf16"), (89, "fp16"), (90, "bf16"), (90, "fp32")]
BYTES = {"bf16": 2, "fp16": 2, "fp32": 4}


@pytest.mark.parametrize("decodes", [False, True])
@pytest.mark.parametrize(("capability", "dtype"), CARDS)
def test_gated_lru(capability: int, dtype: str, decodes: bool) -> None:
    form = lru_settings(BYTES[dtype], decodes)
    warps = form.pop("num_warps")
    constants: dict[str, int | None] = {**form, "CHANNELS": 2560, "WIDTH": 256}
    constants |= {name: 2560 for name in gated_lru_kernel.arg_names if name.startswith("stride")}
    if decodes:
        constants["starts_ptr"] = None
    types = {name: SPECIAL.get(name, f"*{dtype}") for name in gated_lru_kernel.arg_names if name not in constants}
    types.pop("PDL")
    target = GPUTarget("cuda", capability, 32)
    compiled = compile_offline(gated_lru_kernel, types, constants, num_warps=warps, target=target)
    compiled.check()
    # Thread blocks of one warp need no barrier.
    assert decodes or "BAR.SYNC" not in compiled.sass
