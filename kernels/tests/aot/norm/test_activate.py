"""Production forms of the kernel compile for sm_90, without a GPU."""

import pytest
from support.aot import compile_offline

from text_generation_server.kernels._activations import ACTIVATIONS
from text_generation_server.kernels._config import nearest
from text_generation_server.kernels.activate import activate_kernel


@pytest.mark.parametrize("activation", list(ACTIVATIONS))
def test_no_spills_and_wide_memory_accesses(activation: str) -> None:
    types = dict.fromkeys(("x_ptr", "out_ptr"), "*bf16") | dict.fromkeys(
        ("n", "stride_x_token", "stride_out_token"), "i32"
    )
    config = nearest("act_and_mul", n=10240)
    constants = {"ACTIVATION": activation, "BLOCK": config["BLOCK"]}
    compiled = compile_offline(activate_kernel, types, constants, config["num_warps"])
    compiled.check()
    assert "LDG.E.128" in compiled.sass
    assert "STG.E.128" in compiled.sass
