"""Every production variant of the attention of one token compiles, without a GPU, and prefetches its context."""

import pytest
from kernel_support.aot import SHARED_KIB, SM_90, Compiled, compile_offline
from triton.backends.compiler import GPUTarget

from text_generation_kernels.attention._token_attention_kernel import token_attention_kernel
from text_generation_kernels.runtime.settings import nearest
from text_generation_kernels.runtime.shapes import padded_head_dim

SPECIAL = {
    "cos_sin_ptr": "*fp32",
    "position_ptr": "*i64",
    "slot_ptr": "*i64",
    "slot_table_ptr": "*i32",
    "b_row_ptr": "*i64",
    "b_kv_len_ptr": "*i32",
    "sinks_ptr": "*fp32",
    "slopes_ptr": "*fp32",
    "partial_ptr": "*fp32",
    "partial_log_sum_ptr": "*fp32",
    "eps": "fp32",
    "scale_log2": "fp32",
}
PLAN = ("batch", "target_items", "one_wave", "min_chunk")


def _compile(
    dtype: str,
    head_dim: int,
    group: int,
    absent: tuple[str, ...] = (),
    window: int = 0,
    target: GPUTarget = SM_90,
) -> Compiled:
    block_d = padded_head_dim(head_dim)
    sizes = {"shared_kib": SHARED_KIB[target.arch], "head_dim": block_d}
    sizes |= {"element_bytes": 4 if dtype == "fp32" else 2}
    config = nearest("token_attention", **sizes)
    names = token_attention_kernel.arg_names
    types = {name: f"*{dtype}" for name in names if name.endswith("_ptr")}
    types |= {name: "i32" for name in names if name.startswith("stride_") or name in PLAN}
    types = {name: kind for name, kind in (types | SPECIAL).items() if name not in absent}
    constants: dict[str, int | float | None] = dict.fromkeys(absent)
    constants |= {"GROUP": group, "HEAD_DIM": head_dim, "BLOCK_D": block_d, "BLOCK_G": 16, "BLOCK_B": 1}
    constants |= {"BLOCK_N": config["BLOCK_N"], "NORM_OF_EACH_HEAD": False, "NORM_AFTER_ROPE": False}
    constants |= {"DETERMINISTIC": False, "WINDOW": window, "WIDTH": 1, "SOFTCAP": 0.0, "EARLY": config["EARLY"]}
    return compile_offline(token_attention_kernel, types, constants, config["num_warps"], config["num_stages"], target)


PLAIN = ("bias_ptr", "q_norm_ptr", "k_norm_ptr", "sinks_ptr", "slopes_ptr")
SHAPES = {
    "Llama 8B": ("bf16", 128, 4, PLAIN, 0),
    "Qwen3 MoE": ("bf16", 128, 8, ("bias_ptr", "sinks_ptr", "slopes_ptr"), 0),
    "Qwen2.5 0.5B": ("bf16", 64, 7, ("q_norm_ptr", "k_norm_ptr", "sinks_ptr", "slopes_ptr"), 0),
    "gpt-oss": ("bf16", 64, 8, ("q_norm_ptr", "k_norm_ptr", "slopes_ptr"), 128),
    "Phi 3": ("fp16", 96, 1, PLAIN, 2047),
    "Gemma": ("bf16", 256, 2, PLAIN, 0),
}


@pytest.mark.parametrize("name", SHAPES)
def test_asks_for_the_context_before_the_wait_and_does_not_spill(name: str) -> None:
    compiled = _compile(*SHAPES[name])
    # With heads of 256 some registers do, whatever the tile.
    compiled.check(max_spills=32 if name == "Gemma" else 0)
    before, _ = compiled.sass.rsplit("ACQBULK", 1)
    # Keys and values, 16 bytes at a time.
    assert before.count("LDG.E.128") >= 8
    # Nothing waits for a key before values are prefetched, but angles of heads of 256 wait for each other.
    assert name == "Gemma" or "BAR.SYNC" not in before
    assert compiled.count("HMMA")


def test_float32() -> None:
    _compile("fp32", 128, 4, PLAIN).check()


@pytest.mark.parametrize("capability", [80, 86, 89])
def test_other_cards(capability: int) -> None:
    target = GPUTarget("cuda", capability, 32)
    _compile(*SHAPES["Llama 8B"], target=target).check()
    _compile(*SHAPES["Gemma"], target=target).check_shared()
    _compile("fp32", 128, 4, PLAIN, target=target).check_shared()
