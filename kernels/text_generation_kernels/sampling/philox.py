"""Philox-4x32-10: counter-based random bits (Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011).

A pure function from a 128-bit counter and a 64-bit key to 128 bits, so a draw depends on its counter and key alone: not
on the batch, the row, the number of ranks or earlier draws. Called by `gumbel.py` and `watermark.py`.

Word layout as in Random123: counter (c0, c1, c2, c3), key (k0, k1), output (r0, r1, r2, r3), each 32 bits. torch has no
unsigned 32-bit multiply, so words travel in int64 masked to 32 bits; the product of two words wraps modulo 2**64, and
its upper half is right after the mask. Triton's `tl.philox` computes the same bits.

Bytes floor: none read; 16 bytes written for each counter.
"""

# pyright: basic, reportArgumentType=false, reportGeneralTypeIssues=false
import torch
from torch import Tensor

from ..runtime.triton import tl, triton

_MASK = 0xFFFFFFFF
_MULTIPLIER_0, _MULTIPLIER_1 = 0xD2511F53, 0xCD9E8D57
_WEYL_0, _WEYL_1 = 0x9E3779B9, 0xBB67AE85
_ROUNDS = 10

DOMAIN_GUMBEL = 0
"""Fourth counter word of the noise that chooses tokens."""
DOMAIN_WATERMARK = 1
"""Fourth counter word of the watermark's green lists."""


def philox_4x32(counter: tuple[Tensor, ...], key: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """`counter`: four, `key`: two int64 tensors of 32-bit words that broadcast together. Returns four like them."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        product0, product1 = c0 * _MULTIPLIER_0, c2 * _MULTIPLIER_1
        c0, c1, c2, c3 = (
            (product1 >> 32) & _MASK ^ c1 ^ k0,
            product1 & _MASK,
            (product0 >> 32) & _MASK ^ c3 ^ k1,
            product0 & _MASK,
        )
        k0, k1 = (k0 + _WEYL_0) & _MASK, (k1 + _WEYL_1) & _MASK
    return c0, c1, c2, c3


def vocabulary_bits(key: Tensor, step: Tensor, domain: int, number: int, first_id: int = 0) -> Tensor:
    """32 random bits for each of `number` vocabulary ids of each row. `first_id`: a multiple of 4.

    `key` int64 [N] (64 bits, k0 the lower half), `step` int64 [N]. Id v takes output word v % 4 of the counter
    (v // 4, step, 0, domain). Returns int64 [N, number] with values below 2**32.
    """
    block = first_id // 4 + torch.arange((number + 3) // 4, device=key.device).unsqueeze(0)
    zero = torch.zeros_like(block)
    words = philox_4x32(
        (block, (step & _MASK).unsqueeze(1), zero, zero + domain),
        ((key & _MASK).unsqueeze(1), ((key >> 32) & _MASK).unsqueeze(1)),
    )
    return torch.stack(words, dim=-1).flatten(1)[:, :number]


@triton.jit
def vocabulary_words(
    key,  # int64
    step,  # int64
    first_id,  # a multiple of 4
    DOMAIN: tl.constexpr,
    BLOCK: tl.constexpr,  # a power of two, at least 4
):
    """The bits of `vocabulary_bits` for ids first_id .. first_id + BLOCK - 1 of one row, uint32 [BLOCK]."""
    block = first_id // 4 + tl.arange(0, BLOCK // 4)
    zero = block * 0
    word0, word1, word2, word3 = tl.philox(key, block, zero + step.to(tl.int32), zero, zero + DOMAIN)
    return tl.interleave(tl.interleave(word0, word2), tl.interleave(word1, word3))
