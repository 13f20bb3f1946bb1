"""The Triton kernel of entries of compressed attention as it serves: through the dispatcher, on the device."""

import pytest
import torch
from kernel_support.entries import Entries

import text_generation_kernels as kernels

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize(("size", "rope"), [(512, 64), (128, 64), (24, 6)])
@pytest.mark.parametrize(("rate", "series"), [(4, 2), (128, 1), (20, 2)])
def test_entries_are_their_formula(rate: int, series: int, size: int, rope: int, dtype: torch.dtype) -> None:
    lengths = [1, rate, 2 * rate, 0, 2 * rate + 1, 3 * rate, 5 * rate, 5 * rate - 1] * 4
    made = Entries.of(lengths, rate, series, size, rope, dtype, "cuda")
    kernels.compress_entries(*made.arguments)
    made.check()
