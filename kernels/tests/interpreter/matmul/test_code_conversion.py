"""Where scales lie beside the words of a block, in Triton's interpreter: run with TRITON_INTERPRET=1."""

import torch

from text_generation_kernels.matmul.code_conversion import _column_words, _spread_words
from text_generation_kernels.runtime.triton import tl, triton

ROWS = 4


@triton.jit
def _kernel(scales_ptr, out_ptr, ROWS: tl.constexpr):
    rows = tl.arange(0, ROWS)[:, None]
    first, second = _column_words(tl.load(scales_ptr + rows * 16 + tl.arange(0, 16)[None, :]))
    places = rows * 32 + tl.arange(0, 32)[None, :]
    tl.store(out_ptr + places, _spread_words(first))
    tl.store(out_ptr + ROWS * 32 + places, _spread_words(second))


def test_each_word_has_the_scales_of_its_planes() -> None:
    scales = torch.arange(ROWS * 16).view(ROWS, 16).half()
    out = torch.zeros(2, ROWS, 32, dtype=torch.int32)
    _kernel[(1,)](scales, out, ROWS)
    found = out.view(torch.float16).view(2, ROWS, 32, 2)
    for word in range(32):
        for plane in range(4):
            # Groups are halves of planes: of a plane's first 16 inputs, in words 0 to 15, and of its last.
            group = 2 * (4 * (word % 2) + plane) + word // 16
            assert torch.equal(found[plane // 2, :, word, plane % 2], scales[:, group])
