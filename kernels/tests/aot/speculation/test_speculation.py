"""Kernels of speculation compile for Hopper ahead of time."""

import pytest
from kernel_support.aot import compile_offline

from text_generation_kernels.speculation.accept_tokens import accept_tokens_kernel
from text_generation_kernels.speculation.choose_draft import choose_draft_kernel
from text_generation_kernels.speculation.hint_draft import hint_draft_kernel
from text_generation_kernels.speculation.ngram_draft import ngram_draft_kernel
from text_generation_kernels.speculation.window_tokens import window_tokens_kernel

_INTEGERS = {"slot_table_ptr", "kv_lens_ptr", "tokens_ptr", "valid_ptr", "ints_ptr", "penalties_ptr", "hints_ptr"}


def types(kernel: object) -> dict[str, str]:
    def type_of(name: str) -> str:
        if not name.endswith("_ptr"):
            return "i32"
        return "*i32" if name in _INTEGERS else "*i64"

    return {name: type_of(name) for name in kernel.arg_names if not name.isupper()}  # type: ignore[attr-defined]


@pytest.mark.parametrize("width", [1, 2, 4, 16])
def test_windows(width: int) -> None:
    constants = {"WIDTH": width, "BLOCK": 64, "PDL": True}
    compile_offline(window_tokens_kernel, types(window_tokens_kernel), constants, 2).check()
    compile_offline(accept_tokens_kernel, types(accept_tokens_kernel), constants, 2).check()


@pytest.mark.parametrize("keeps", [False, True])
@pytest.mark.parametrize("most", [1, 15])
def test_drafts(most: int, keeps: bool) -> None:
    least = 8 if keeps else 2
    constants = {"BLOCK_M": 16 if most > 1 else 1, "BLOCK": 1024, "LEAST": least, "KEEPS": keeps, "PDL": True}
    compile_offline(ngram_draft_kernel, types(ngram_draft_kernel), constants, 4).check()
    constants = {"BLOCK_M": 16 if most > 1 else 1, "BLOCK_H": 64, "PDL": True}
    compile_offline(hint_draft_kernel, types(hint_draft_kernel), constants, 1).check()


@pytest.mark.parametrize("logits", ["bf16", "fp16", "fp32"])
def test_choices_of_a_drafter(logits: str) -> None:
    own = {"logits_ptr": f"*{logits}", "floats_ptr": "*fp32"}
    constants = {"OFFSET": 1, "BLOCK": 1024, "PDL": True}
    compile_offline(choose_draft_kernel, {**types(choose_draft_kernel), **own}, constants, 4).check()
