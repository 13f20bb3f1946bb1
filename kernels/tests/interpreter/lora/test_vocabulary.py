"""Kernels of adapters of embedding and head in Triton's interpreter: run with TRITON_INTERPRET=1."""

import pytest
import torch
from kernel_support.vocabulary import ADAPTERS, logits, looked_up, replaced

from text_generation_kernels.lora.lora_expand import lora_expand_triton
from text_generation_kernels.lora.lora_lookup import lora_lookup_triton
from text_generation_kernels.lora.replace_rows import replace_rows_triton
from text_generation_kernels.lora.replaced_logits import replaced_logits_triton

TOLERANCE = {torch.float16: 2e-3, torch.float32: 1e-5}


@pytest.mark.parametrize("tile_tokens", [16, 64])
def test_each_token_gets_the_column_of_its_own_adapter(tile_tokens: int) -> None:
    found, expected = looked_up(lora_lookup_triton, lora_expand_triton, tile_tokens)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("dtype", list(TOLERANCE))
def test_rows_are_replaced(dtype: torch.dtype) -> None:
    found, expected = replaced(replace_rows_triton, dtype)
    assert torch.equal(found, expected)


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize(("hidden", "tile_tokens"), [(256, 16), (200, 64)])
def test_logits_are_replaced(hidden: int, tile_tokens: int, dtype: torch.dtype) -> None:
    for has_bias in (False, True):
        found, expected = logits(
            replaced_logits_triton, dtype, tile_tokens=tile_tokens, hidden=hidden, has_bias=has_bias
        )
        torch.testing.assert_close(found.double(), expected, atol=TOLERANCE[dtype], rtol=1e-3)


def test_a_token_has_the_same_bits_in_any_batch() -> None:
    among, _ = logits(replaced_logits_triton, torch.float16)
    alone, _ = logits(replaced_logits_triton, torch.float16, ADAPTERS[:3])
    assert torch.equal(alone, among[:3])
