"""Every production variant of the kernel for one token's small experts compiles, without a GPU."""

import re

import pytest
from kernel_support.aot import compile_offline

from text_generation_kernels.moe._token_experts_hopper_kernel import token_experts_kernel
from text_generation_kernels.moe.token_experts_hopper import early_tiles, token_blocks

SHAPES = [(2048, 768, 8, 128), (2048, 1408, 4, 60), (1536, 512, 8, 40), (1024, 512, 8, 32), (2048, 512, 10, 256)]
"""Hidden and inner sizes, experts of a token, experts."""


@pytest.mark.parametrize("norm", [0, 1])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_copies_are_wide_and_nothing_spills(shape: tuple[int, ...], norm: int) -> None:
    hidden, inner, slots, experts = shape
    blocks = token_blocks(hidden, inner, slots, programs=132)
    assert blocks is not None
    warps = blocks.pop("num_warps")
    names = ("x_ptr", "logits_ptr", "gate_up_ptr", "down_ptr", "activated_ptr", "out_ptr")
    types = dict.fromkeys(names, "*bf16") | {"arrived_ptr": "*i64", "hidden": "i32", "inner": "i32", "scale": "fp32"}
    constants = {"EXPERTS": experts, "NORM": norm, "BLOCK_E": 1 << (experts - 1).bit_length(), "SLOTS": slots}
    compiled = compile_offline(
        token_experts_kernel, types, {**constants, "ADDS": True, "ACTIVATION": "silu", **blocks}, warps, 1
    )
    compiled.check()
    assert "LDGSTS.E.BYPASS.128" in compiled.sass
    # An instruction for each chosen expert, and no exchange between warps.
    assert compiled.count("REDUX") == slots
    # The first tiles are prefetched before the top-k is complete, where their slots have so many.
    first, _ = compiled.sass.split("LDGSTS", 1)
    assert (first.count("REDUX") < slots) == bool(blocks["EARLY"])
    # Tiles of down are prefetched before the wait for the activated values.
    before, _ = re.split(r"LDG\.E\.64\.STRONG\.GPU", compiled.sass)
    assert before.count("LDGSTS") >= compiled.sass.count("LDGSTS") * 2 // 3


@pytest.mark.parametrize("programs", [78, 114, 132])
@pytest.mark.parametrize("slots", [4, 8, 10])
@pytest.mark.parametrize("tiles", [64, 96, 128, 192, 512])
def test_early_tiles_are_of_experts_that_are_chosen(tiles: int, slots: int, programs: int) -> None:
    early = early_tiles(tiles, slots, programs)
    for step in range(early["EARLY"]):
        chosen = early["LEAD"] + step + 1
        last = (step + 1) * programs - 1
        assert last // tiles < chosen <= slots
        assert last < slots * tiles


def test_tiles_of_large_slots_are_prefetched_early() -> None:
    assert early_tiles(192, 8, 132) == {"LEAD": 0, "EARLY": 2}
    assert early_tiles(128, 8, 132) == {"LEAD": 1, "EARLY": 2}
    assert early_tiles(64, 4, 132)["EARLY"] == 0


@pytest.mark.parametrize("shape", [(4096, 1536, 8), (2048, 2816, 4), (2048, 768, 2), (2880, 1440, 4), (2044, 768, 8)])
def test_other_shapes_are_left_to_the_kernels_of_any(shape: tuple[int, ...]) -> None:
    assert token_blocks(*shape, programs=132) is None
