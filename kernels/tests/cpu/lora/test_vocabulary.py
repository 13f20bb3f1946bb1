"""Adapters of embedding and head in torch, and what the operators refuse."""

import pytest
import torch
from kernel_support.vocabulary import ADAPTERS, logits, looked_up, replaced

from text_generation_kernels import ReplacedRows, lora_lookup, replace_rows, replaced_logits


@pytest.mark.parametrize("tile_tokens", [16, 64])
def test_each_token_gets_the_column_of_its_own_adapter(tile_tokens: int) -> None:
    found, expected = looked_up(lora_lookup, tile_tokens=tile_tokens)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


def test_rows_are_replaced() -> None:
    found, expected = replaced(replace_rows, torch.float32)
    assert torch.equal(found, expected)


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("tile_tokens", [16, 64])
def test_logits_are_replaced(tile_tokens: int, has_bias: bool) -> None:
    found, expected = logits(replaced_logits, torch.float32, tile_tokens=tile_tokens, has_bias=has_bias)
    torch.testing.assert_close(found.double(), expected, atol=1e-5, rtol=1e-5)


def test_neighbours_change_no_bits() -> None:
    among, _ = logits(replaced_logits, torch.float32)
    alone, _ = logits(replaced_logits, torch.float32, ADAPTERS[:3])
    assert torch.equal(alone, among[:3])


def test_shapes_that_do_not_fit_are_named() -> None:
    ints = torch.zeros(2, dtype=torch.int32)
    tables = ints, torch.zeros(1, 4, dtype=torch.int32), torch.zeros(1, 2, dtype=torch.int32)
    with pytest.raises(ValueError, match="lora_lookup: shapes do not fit"):
        lora_lookup(ints.long(), torch.zeros(1, 3, 8), torch.zeros(1), *tables, torch.zeros(1, 1, 1, 16, 16))
    with pytest.raises(ValueError, match="replace_rows: shapes do not fit"):
        replace_rows(ints.long(), ints, torch.zeros(2, 3, dtype=torch.int32), torch.zeros(1, 4), torch.zeros(2, 5))
    spans = torch.zeros(2, 2, dtype=torch.int32)
    rows = ReplacedRows(torch.zeros(1, 4), ints, spans, 1)
    with pytest.raises(ValueError, match="replaced_logits: shapes do not fit"):
        replaced_logits(torch.zeros(2, 4), rows, None, *tables[:2], ints, 16, torch.zeros(2, 5))
