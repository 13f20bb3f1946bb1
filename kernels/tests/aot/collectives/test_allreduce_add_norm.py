"""Every production variant of the kernels compiles for sm_80 and sm_90, without a GPU."""

import pytest
import triton
import triton.language as tl
from kernel_support.aot import SM_90, compile_offline
from triton.backends.compiler import GPUTarget

from text_generation_kernels.collectives._one_shot_rows_kernel import row_shot_kernel
from text_generation_kernels.collectives.allreduce_add_norm import one_shot_kernel, two_shot_kernel
from text_generation_kernels.collectives.allreduce_add_norm_peer import allreduce_add_norm_peer_kernel
from text_generation_kernels.collectives.allreduce_add_norm_receive import receive_kernel

SM_80 = GPUTarget("cuda", 80, 32)
INTEGERS = {"control_ptr": "*i64", "hidden": "i32", "eps": "fp32", "tokens": "i32", "rank": "i32"}


def _constants(world_size: int, hidden: int, dtype: str) -> dict[str, object]:
    wide = dtype == "fp32"
    return {
        "x_weight_ptr": None,
        "X_SCALE": 1.0,
        "WORLD": world_size,
        "RANKS": triton.next_power_of_2(world_size),
        "BLOCK": triton.next_power_of_2(hidden),
        "SET_BYTES": 16 << 20,
        "BITS": tl.int32 if wide else tl.int16,
        "NOTHING": -2147450880 if wide else -32768,
        "CLEAR": 2048,
        "CHECKED": 64,
    }


def _types(dtype: str) -> dict[str, str]:
    return dict.fromkeys(("x_ptr", "out_ptr", "residual_ptr", "weight_ptr"), f"*{dtype}") | INTEGERS


@pytest.mark.parametrize(
    ("world_size", "hidden", "dtype", "target"),
    [(2, 8192, "bf16", SM_90), (8, 4096, "bf16", SM_90), (2, 8192, "fp32", SM_90), (4, 8192, "bf16", SM_80)],
)
def test_one_shot(world_size: int, hidden: int, dtype: str, target: GPUTarget) -> None:
    constants = _constants(world_size, hidden, dtype) | {"SEND": 4096 if dtype != "fp32" else 2048}
    compiled = compile_offline(one_shot_kernel, _types(dtype), constants, 16, target=target)
    compiled.check(max_spills=8)
    assert "LDG.E.128.STRONG.SYS" in compiled.sass
    assert "STG.E.128" in compiled.sass


@pytest.mark.parametrize(
    ("world_size", "hidden", "dtype", "target"),
    [(2, 8192, "bf16", SM_90), (2, 4096, "bf16", SM_90), (8, 8192, "bf16", SM_90), (2, 8192, "fp32", SM_80)],
)
def test_one_shot_in_rows(world_size: int, hidden: int, dtype: str, target: GPUTarget) -> None:
    constants = _constants(world_size, hidden, dtype) | {"RANK": 1}
    del constants["RANKS"]
    compiled = compile_offline(row_shot_kernel, _types(dtype), constants, 16, target=target)
    compiled.check(max_spills=8)
    assert "LDG.E.128.STRONG.SYS" in compiled.sass
    assert "STG.E.128" in compiled.sass


@pytest.mark.parametrize(
    ("world_size", "hidden", "dtype", "target"),
    [(2, 8192, "bf16", SM_90), (8, 8192, "bf16", SM_90), (4, 4096, "fp32", SM_80)],
)
def test_two_shots(world_size: int, hidden: int, dtype: str, target: GPUTarget) -> None:
    constants = _constants(world_size, hidden, dtype) | {"OWNED": triton.next_power_of_2(hidden // world_size)}
    types = _types(dtype) | {"owned": "i32"}
    compiled = compile_offline(two_shot_kernel, types, constants, 16, target=target)
    compiled.check(max_spills=8)
    assert "STG.E.128" in compiled.sass


@pytest.mark.parametrize(
    ("world_size", "hidden", "target"), [(2, 8192, SM_90), (2, 4096, SM_90), (8, 4096, SM_90), (2, 8192, SM_80)]
)
def test_all_reduce_of_what_gemvs_send(world_size: int, hidden: int, target: GPUTarget) -> None:
    constants = _constants(world_size, hidden, "bf16") | {"RANK": 1}
    types = {name: kind for name, kind in _types("bf16").items() if name != "x_ptr"}
    compiled = compile_offline(receive_kernel, types, constants, 16, target=target)
    compiled.check(max_spills=8)
    assert "LDG.E.128.STRONG.SYS" in compiled.sass


@pytest.mark.parametrize(
    ("world_size", "dtype", "target"), [(2, "bf16", SM_90), (8, "bf16", SM_90), (2, "fp16", SM_80)]
)
def test_sum_of_what_is_copied(world_size: int, dtype: str, target: GPUTarget) -> None:
    pointers = dict.fromkeys(("flag_ptr", "arrived_ptr"), "*i32") | {
        "others_ptr": f"*{dtype}",
        "x_weight_ptr": f"*{dtype}",
    }
    constants = {"X_SCALE": 1.0, "RANK": 1, "WORLD": world_size, "BLOCK": 8192, "CHECKED": 64}
    compiled = compile_offline(allreduce_add_norm_peer_kernel, _types(dtype) | pointers, constants, 16, target=target)
    compiled.check()
    assert "LDG.E.STRONG.SYS" in compiled.sass
