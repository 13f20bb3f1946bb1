"""The kernel of entries of compressed attention in Triton's interpreter: run with TRITON_INTERPRET=1."""

import pytest
import torch
from kernel_support.entries import Entries

from text_generation_kernels.attention.compress_entries import compress_entries_triton


@pytest.mark.parametrize(("rate", "series"), [(4, 2), (3, 2), (20, 2), (40, 1), (1, 1)])
@pytest.mark.parametrize(
    ("size", "rope", "dtype"), [(16, 8, torch.float32), (24, 6, torch.float16), (8, 8, torch.float32)]
)
def test_entries_are_their_formula(rate: int, series: int, size: int, rope: int, dtype: torch.dtype) -> None:
    """Of one tile of positions and of several, the last one of which is not full."""
    lengths = [1, rate, 2 * rate, 0, 2 * rate + 1, 3 * rate, 5 * rate, 5 * rate - 1]
    made = Entries.of(lengths, rate, series, size, rope, dtype)
    compress_entries_triton(*made.arguments)
    made.check()
