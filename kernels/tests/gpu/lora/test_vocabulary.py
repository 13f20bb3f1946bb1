"""Adapters of embedding, head and norms on the device, through the dispatcher."""

import pytest
import torch
from kernel_support import norms
from kernel_support.on_device import on_cuda
from kernel_support.vocabulary import ADAPTERS, logits, looked_up, replaced

import text_generation_kernels as kernels

pytestmark = pytest.mark.gpu
TOLERANCE = {torch.bfloat16: 2e-2, torch.float16: 2e-3, torch.float32: 1e-5}


@pytest.mark.parametrize("tile_tokens", [16, 64])
def test_each_token_gets_the_column_of_its_own_adapter(tile_tokens: int) -> None:
    found, expected = looked_up(on_cuda(kernels.lora_lookup), on_cuda(kernels.lora_expand), tile_tokens)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("dtype", list(TOLERANCE))
def test_rows_are_replaced(dtype: torch.dtype) -> None:
    found, expected = replaced(on_cuda(kernels.replace_rows), dtype)
    assert torch.equal(found, expected)


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize(("hidden", "tile_tokens"), [(256, 16), (200, 64), (4096, 16)])
def test_logits_are_replaced(hidden: int, tile_tokens: int, dtype: torch.dtype) -> None:
    found, expected = logits(on_cuda(kernels.replaced_logits), dtype, tile_tokens=tile_tokens, hidden=hidden)
    torch.testing.assert_close(found.double(), expected, atol=TOLERANCE[dtype], rtol=1e-2)


def test_a_token_has_the_same_bits_in_any_batch() -> None:
    among, _ = logits(on_cuda(kernels.replaced_logits), torch.bfloat16, tile_tokens=64)
    alone, _ = logits(on_cuda(kernels.replaced_logits), torch.bfloat16, ADAPTERS[:3])
    assert torch.equal(alone, among[:3])


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize(("is_rms", "has_bias"), [(True, False), (False, False), (False, True)])
def test_tokens_get_the_norm_of_their_adapter(is_rms: bool, has_bias: bool, dtype: torch.dtype) -> None:
    found, expected = norms.replaced(on_cuda(kernels.replace_norm), is_rms, has_bias, dtype)
    torch.testing.assert_close(found, expected, atol=TOLERANCE[dtype], rtol=1e-2, equal_nan=True)
