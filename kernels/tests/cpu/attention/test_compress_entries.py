"""Entries of compressed attention in torch, and what is refused."""

import pytest
import torch
from kernel_support.entries import Entries

import text_generation_kernels as kernels
from text_generation_kernels.attention.compress_entries import compress_entries_triton

LENGTHS = [1, 3, 4, 0, 8, 12, 13, 11]


@pytest.mark.parametrize("series", [1, 2])
@pytest.mark.parametrize("rope", [4, 16])
def test_entries_are_their_formula_and_nothing_else_changes(rope: int, series: int) -> None:
    """Of requests that end one and of others, the first one and further ones, in a cache with NaN around it."""
    made = Entries.of(LENGTHS, 4, series, 16, rope, torch.float32)
    kernels.compress_entries(*made.arguments)
    made.check()


@pytest.mark.parametrize(
    ("number", "wrong", "message"),
    [
        (3, torch.zeros(4, 16), "compress_entries: shapes do not fit"),
        (4, torch.zeros(15), "compress_entries: shapes do not fit"),
        (6, torch.zeros(20, 8)[:, ::2], "the last dimension of every tensor must have stride 1"),
    ],
)
def test_layouts_that_the_kernel_does_not_read_are_refused(number: int, wrong: torch.Tensor, message: str) -> None:
    arguments = list(Entries.of(LENGTHS, 4, 2, 16, 4, torch.float32).arguments)
    arguments[number] = wrong
    with pytest.raises(ValueError, match=message):
        compress_entries_triton(*arguments)
