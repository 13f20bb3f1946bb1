"""PTX that converts codes, run instruction by instruction."""

# pyright: basic
import random

import pytest
import torch
from kernel_support.expert_codes import E2M1
from kernel_support.ptx import as_word, pair, run

from text_generation_kernels.matmul import code_conversion, nvfp4_small_hopper

VALUES = torch.tensor([*E2M1, *(-each for each in E2M1)], dtype=torch.float64)


def _words(first: int) -> list[int]:
    """Two words. Of 256 with another `first` each plane has all pairs of codes, beside others."""
    pairs = [(first + 37 * plane) % 256 for plane in range(8)]
    parts = [(pair & 15) << 4 * (plane % 4) | (pair >> 4) << 4 * (plane % 4) + 16 for plane, pair in enumerate(pairs)]
    return [sum(parts[:4]), sum(parts[4:])]


def _codes(words: list[int], plane: int) -> list[int]:
    """The two neighbours of a plane."""
    return [words[plane // 4] >> 4 * (plane % 4) + 16 * member & 15 for member in range(2)]


@pytest.mark.parametrize(
    ("program", "dtype", "less"),
    [(code_conversion._FLOAT4, torch.bfloat16, 126), (code_conversion._E2M1_FP16, torch.float16, 14)],
)
def test_codes_of_e2m1_become_their_values(program: str, dtype: torch.dtype, less: int) -> None:
    for first in range(256):
        words = _words(first)
        for plane, found in enumerate(run(program.value, words, 8)):
            assert pair(found, dtype).double().mul(2.0**less).equal(VALUES[_codes(words, plane)])


def _scales(count: int) -> torch.Tensor:
    """Of any size, also of 0 and of those without a leading one."""
    return torch.tensor([random.randrange(0x7F) for _ in range(count)], dtype=torch.uint8).view(torch.float8_e4m3fn)


@pytest.mark.parametrize(
    ("program", "dtype", "less", "more"),
    [(code_conversion._SCALED_BF16, torch.bfloat16, 8, 118), (code_conversion._SCALED_FP16, torch.float16, 14, 0)],
)
def test_codes_with_scales_become_exact_products(program: str, dtype: torch.dtype, less: int, more: int) -> None:
    random.seed(1)
    for first in range(256):
        words, scales = _words(first), _scales(8).double()
        # The scales of planes 0 and 1 of each word, and of 2 and 3.
        stored = scales.mul(2.0**more).to(dtype)
        pairs = [as_word(stored[at : at + 2].clone()) for at in (0, 4, 2, 6)]
        for plane, found in enumerate(run(program.value, [*words, *pairs], 8)):
            expected = VALUES[_codes(words, plane)] * scales[plane]
            assert pair(found, dtype).double().mul(2.0**less).equal(expected)


def test_words_of_scales_become_pairs_of_each() -> None:
    random.seed(2)
    for _ in range(100):
        scales = _scales(4)
        word = int(scales.view(torch.int32)) & 0xFFFFFFFF
        pairs = run(nvfp4_small_hopper._SCALES_BF16.value, [word], 4)
        for scale, found in zip(scales.double(), pairs, strict=True):
            assert pair(found, torch.bfloat16).double().mul(2.0**-118).equal(scale.expand(2))
