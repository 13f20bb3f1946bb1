"""Every production variant of the sampling kernels compiles without a GPU: for sm_90, some for other cards."""

import importlib

import pytest
from kernel_support.aot import SM_90, Compiled, compile_offline
from triton.backends.compiler import GPUTarget

from text_generation_kernels.sampling._narrow import ROUNDS, narrow_kernel
from text_generation_kernels.sampling._search import CANDIDATES, NUM_WARPS, TILE
from text_generation_kernels.sampling.advance_state import _BLOCK, advance_state_kernel
from text_generation_kernels.sampling.columns import split_size
from text_generation_kernels.sampling.embed import embed_kernel
from text_generation_kernels.sampling.newest_tokens import newest_tokens_kernel
from text_generation_kernels.sampling.survivors import survivors_kernel
from text_generation_kernels.sampling.top_tokens import top_tokens_kernel

# The package's attributes of these names are the operators.
logits_process, draw, choose = (
    importlib.import_module(f"text_generation_kernels.sampling.{name}") for name in ("logits_process", "draw", "choose")
)

LONGS = {
    "rows_ptr",
    "last_token_ptr",
    "inputs_ptr",
    "generated_ptr",
    "seed_ptr",
    "tokens_ptr",
    "length_ptr",
    "states_ptr",
    "masses_ptr",
}
INTEGERS = {
    "ints_ptr",
    "bias_ids_ptr",
    "counts_ptr",
    "eos_token_ids_ptr",
    "masks_ptr",
    "window_masks_ptr",
    "best_id_ptr",
    "counter_ptr",
    "valid_ptr",
    "top_ids_ptr",
    "num_top_ptr",
    "numbers_ptr",
}
CHUNK = split_size(128_256)
LOGITS = ["bf16", "fp16", "fp32"]
SEARCHING = {"TILE": TILE, "CANDIDATES": CANDIDATES, "BLOCK_S": 32}


def types(kernel: object, logits: str) -> dict[str, str]:
    """The Triton type of every argument that is no constant; constants have upper-case names."""

    def type_of(name: str) -> str:
        if name in LONGS:
            return "*i64"
        if name in INTEGERS:
            return "*i32"
        if name.endswith("_ptr"):
            return f"*{logits if name == 'logits_ptr' else 'fp32'}"
        return "i32"

    return {name: type_of(name) for name in kernel.arg_names if not name.isupper()}  # type: ignore[attr-defined]


def compile_logits_process(logits: str, target: GPUTarget = SM_90, width: int = 1) -> Compiled:
    """As it is launched."""
    kernel = logits_process.logits_process_kernel
    warps, registers = logits_process.NUM_WARPS, logits_process.MAX_REGISTERS
    constants = {
        "DELTA": 2.0,
        "GREEN": 1 << 31,
        "CHUNK": CHUNK,
        "BLOCK": logits_process.BLOCK,
        "WIDTH": width,
        "WIDEST": 4,
    }
    signature = types(kernel, logits)
    if width == 1:
        del signature["inputs_ptr"]
        constants["inputs_ptr"] = None
    return compile_offline(kernel, signature, constants, warps, target=target, max_registers=registers)


@pytest.mark.parametrize("logits", LOGITS)
def test_logits_process(logits: str) -> None:
    compiled = compile_logits_process(logits)
    # Values of the whole thread block: reloading them costs less than fewer resident thread blocks.
    compiled.check(max_spills=32 if logits == "fp32" else 8)
    assert "LDG.E.128" in compiled.sass


def test_windows() -> None:
    compile_logits_process("bf16", width=4).check(max_spills=16)


@pytest.mark.parametrize("capability", [80, 86, 89])
def test_masks_on_other_cards(capability: int) -> None:
    target = GPUTarget("cuda", capability, 32)
    compile_logits_process("bf16", target).check(max_spills=8)
    constants = {"BLOCK_S": 32}
    compile_offline(choose.choose_kernel, types(choose.choose_kernel, "fp32"), constants, 1, target=target).check()
    constants = {**SEARCHING}
    compile_offline(top_tokens_kernel, types(top_tokens_kernel, "fp32"), constants, NUM_WARPS, target=target).check()


@pytest.mark.parametrize("logits", LOGITS)
def test_draw(logits: str) -> None:
    constants = {"CHUNK": CHUNK, "BLOCK": draw.BLOCK, "BLOCK_S": 32, "WIDTH": 4, "PDL": True}
    signature = types(draw.draw_kernel, logits)
    compile_offline(draw.draw_kernel, signature, constants, draw.NUM_WARPS).check()


def test_choose_and_advance() -> None:
    compile_offline(choose.choose_kernel, types(choose.choose_kernel, "fp32"), {"BLOCK_S": 32, "PDL": True}, 1).check()
    constants = {"BLOCK": _BLOCK, "PDL": True}
    compile_offline(advance_state_kernel, types(advance_state_kernel, "fp32"), constants, 2).check()


def test_newest_tokens() -> None:
    signature = types(newest_tokens_kernel, "fp32") | dict.fromkeys(("ids_ptr", "positions_ptr", "slots_ptr"), "*i64")
    signature |= {"slot_table_ptr": "*i32", "kv_lens_ptr": "*i32"}
    compile_offline(newest_tokens_kernel, signature, {"BLOCK": 64, "PDL": True}, 2).check()


def test_embed() -> None:
    signature = {
        "ids_ptr": "*i64",
        "table_ptr": "*bf16",
        "out_ptr": "*bf16",
        "hidden": "i32",
        "stride_table_row": "i32",
    }
    compiled = compile_offline(embed_kernel, signature, {"BLOCK": 1024, "PDL": True}, 4)
    compiled.check()
    assert compiled.count("LDG.E.128")


@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize("index", range(ROUNDS))
def test_rounds(index: int, rows: int) -> None:
    constants = {
        "ROUND": index,
        "CHUNK": CHUNK,
        "SUB": 256,
        "BLOCK": 1024,
        "CANDIDATES": CANDIDATES,
        "BLOCK_S": 32,
        "ROWS": rows,
        "PDL": True,
    }
    compile_offline(narrow_kernel, types(narrow_kernel, "fp32"), constants, 4).check()


@pytest.mark.parametrize("kernel", [survivors_kernel, top_tokens_kernel])
def test_searches(kernel: object) -> None:
    compiled = compile_offline(kernel, types(kernel, "fp32"), {**SEARCHING, "PDL": True}, NUM_WARPS)  # type: ignore[arg-type]
    compiled.check()
    assert "LDG.E.128" in compiled.sass
