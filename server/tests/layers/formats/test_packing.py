"""Codes in words: the conventions that tools differ in."""

import pytest
import torch
from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32
from torch import Tensor

from text_generation_server.layers.weights.formats.packing import Packing, packing_of


def _words(*values: int) -> Tensor:
    return torch.tensor([value - (1 << 32) if value >> 31 else value for value in values], dtype=torch.int32)


def test_three_bits_go_on_in_the_next_word() -> None:
    """32 codes in three words, of which the codes 10 and 21 begin in one and end in the next."""
    codes = [0] * 32
    codes[10], codes[21], codes[31] = 0b110, 0b101, 0b011
    # Code 10: bits 30 and 31 of a word, bit 0 of the next. Code 21: bit 31 of that one, 0 and 1 of the third.
    words = _words(0b10 << 30, 0b1 | 1 << 31, 0b10 | 0b011 << 29)
    assert Packing(3).unpack(words, 32).tolist() == codes


def test_old_files_waste_bits_of_odd_widths() -> None:
    """Ten codes of 3 bits in each word, then two empty bits."""
    words = _words(0b111 << 27, 0b101)
    assert Packing(3, "padded").unpack(words, 12).tolist() == [0] * 9 + [7, 5, 0]


def test_codes_of_five_to_seven_bits_of_gptq_are_planes() -> None:
    """7 bits: four words of the lowest four, two of the next two, one of the highest one."""
    words = _words(0xF, 0, 0, 0, 0b10 << 2, 0, 1 << 31)
    codes = [0] * 32
    codes[0], codes[1], codes[31] = 0b0001111, 0b0100000, 0b1000000
    assert Packing(7, "planes").unpack(words, 32).tolist() == codes


@pytest.mark.parametrize("bits", range(1, 9))
def test_streams_are_those_of_compressed_tensors(bits: int) -> None:
    torch.manual_seed(bits)
    codes = torch.randint(0, 1 << bits, (3, 70))
    words = pack_to_int32((codes - (1 << bits - 1)).to(torch.int8), bits)
    packing = packing_of(words.shape[1], 70, bits)
    assert packing is not None
    assert torch.equal(packing.unpack(words, 70).long(), codes)
    for start, stop in ((0, 1), (9, 11), (31, 70), (64, 70)):
        first, last, skip = packing.span(start, stop, 70)
        assert torch.equal(packing.unpack(words[:, first:last], stop - start, skip).long(), codes[:, start:stop])


@pytest.mark.parametrize(("words", "layout"), [(6, "dense"), (7, "padded"), (5, None), (8, None)])
def test_the_number_of_words_tells_the_layout(words: int, layout: str | None) -> None:
    packing = packing_of(words, 64, 3)
    assert (packing.layout if packing else None) == layout
