"""Kernel between the GEMMs of compressed attention and attention: entries that end in this step (DeepSeek V4, 2026).

    mean[e] = sum over p of softmax over p (logits[p, e] + offsets[p, e]) * values[p, e]
    cache[last, 0] = rotate(rms_norm(mean) * weight, first)

An entry stands for `rate` successive positions, from `first` to `last`, and a new token at `last` ends it: one whose
`kv_lens` is a multiple of `rate`. The cache has of each position values and logits, in vectors of their own. Where it
has four of them, an entry also reads the other two of the `rate` positions before `first`; where there are none, it
does without. The entry takes the place of the first values of its last position, which nothing else reads.

RoPE rotates the first `rope` elements, and pairs element i with element i + rope / 2; rows of checkpoints that pair
neighbours, or rotate the last elements, are permuted when they are loaded.

Layouts: `cache` `[slots, 2 or 4, size]`, values before logits, any strides but unit stride in the last dimension;
`contexts` has each new token as a decode over its context, whose values and logits are in the cache; `offsets`
`[2 * rate or rate, size]`, those of the positions before first, `weight` `[size]` and `cos_sin` `[positions, rope]`
float32 and contiguous. Sums are float32; the mean is rounded before its norm, and the norm before its rotation.

Called once or twice in a layer with entries. A thread block of a token that ends none returns at once. Bytes floor:
entries * 2 * size * positions of an entry * element size. Not measured on a device yet.
"""

# pyright: basic, reportArgumentType=false
import torch
from torch import Tensor

from ..norm.rms_norm import normalise
from ..runtime.launch import Launcher, launch_dependents, wait_for_previous
from ..runtime.register import register
from ..runtime.shapes import shapes_error
from ..runtime.triton import tl, triton
from .latent_postprocess import rotated
from .requests import Decodes

_TILE = 8192
"""Elements of a tile of positions: values and logits of it stay in registers."""
_MOST_POSITIONS = 16
"""Of a tile."""


@triton.jit
def _mean(
    cache_ptr,  # [slots, 2 or 4, SIZE]
    offsets_ptr,  # [POSITIONS, SIZE]
    table_row_ptr,
    stride_slot,
    stride_vector,
    kv_len,
    begin,  # the first position that is there, of those of an entry
    elements,  # [N]
    inside,  # [N]
    SIZE: tl.constexpr,
    RATE: tl.constexpr,
    POSITIONS: tl.constexpr,
    BLOCK_P: tl.constexpr,
):
    """Some elements of the mean, [N] float32, rounded."""
    largest = tl.full(elements.shape, float("-inf"), tl.float32)
    total = tl.zeros(elements.shape, tl.float32)
    mean = tl.zeros(elements.shape, tl.float32)
    for start in range(begin, POSITIONS, BLOCK_P):
        places = start + tl.arange(0, BLOCK_P)
        exists = places < POSITIONS
        slots = tl.load(table_row_ptr + kv_len - POSITIONS + places, mask=exists, other=0).to(tl.int64)
        vectors = tl.where(places < POSITIONS - RATE, 2, 0)
        valid = exists[:, None] & inside[None, :]
        values_ptr = cache_ptr + (slots * stride_slot + vectors * stride_vector)[:, None] + elements[None, :]
        logits = tl.load(values_ptr + stride_vector, mask=valid, other=0.0).to(tl.float32)
        logits += tl.load(offsets_ptr + places[:, None] * SIZE + elements[None, :], mask=valid, other=0.0)
        logits = tl.where(exists[:, None], logits, float("-inf"))
        values = tl.load(values_ptr, mask=valid, other=0.0).to(tl.float32)
        larger = tl.maximum(largest, tl.max(logits, axis=0))
        before = tl.exp(largest - larger)
        shares = tl.exp(logits - larger[None, :])
        total = total * before + tl.sum(shares, axis=0)
        mean = mean * before + tl.sum(shares * values, axis=0)
        largest = larger
    return (mean / total).to(cache_ptr.dtype.element_ty).to(tl.float32)


@triton.jit(do_not_specialize_on_alignment=["b_row_ptr", "b_kv_len_ptr"])
def compress_entries_kernel(
    cache_ptr,  # [slots, 2 or 4, SIZE]
    offsets_ptr,  # [POSITIONS, SIZE] float32
    weight_ptr,  # [SIZE] float32
    cos_sin_ptr,  # [positions, ROPE] float32
    slot_table_ptr,  # [rows, positions]
    b_row_ptr,  # [tokens]
    b_kv_len_ptr,  # [tokens]
    stride_slot,
    stride_vector,
    stride_table_row,
    eps,
    SIZE: tl.constexpr,
    RATE: tl.constexpr,
    POSITIONS: tl.constexpr,  # RATE, or twice that
    ROPE: tl.constexpr,
    BLOCK_D: tl.constexpr,  # power of two, at least SIZE - ROPE
    BLOCK_H: tl.constexpr,  # power of two, at least ROPE / 2
    BLOCK_P: tl.constexpr,
    PDL: tl.constexpr,
):
    """One thread block makes the entry that a token ends."""
    token = tl.program_id(0).to(tl.int64)
    launch_dependents(PDL)
    wait_for_previous(PDL)
    kv_len = tl.load(b_kv_len_ptr + token)
    if (kv_len == 0) | (kv_len % RATE != 0):
        return
    table_row_ptr = slot_table_ptr + tl.load(b_row_ptr + token).to(tl.int64) * stride_table_row
    begin = tl.maximum(POSITIONS - kv_len, 0)
    HALF: tl.constexpr = ROPE // 2
    elements = ROPE + tl.arange(0, BLOCK_D)
    pairs = tl.arange(0, BLOCK_H)
    still = _mean(
        cache_ptr, offsets_ptr, table_row_ptr, stride_slot, stride_vector, kv_len, begin, elements, elements < SIZE,
        SIZE, RATE, POSITIONS, BLOCK_P,
    )  # fmt: skip
    first = _mean(
        cache_ptr, offsets_ptr, table_row_ptr, stride_slot, stride_vector, kv_len, begin, pairs, pairs < HALF,
        SIZE, RATE, POSITIONS, BLOCK_P,
    )  # fmt: skip
    second = _mean(
        cache_ptr, offsets_ptr, table_row_ptr, stride_slot, stride_vector, kv_len, begin, HALF + pairs, pairs < HALF,
        SIZE, RATE, POSITIONS, BLOCK_P,
    )  # fmt: skip
    # Beyond the end the mean is one of zeros.
    # Every element is read before the first is written: the norm needs them all.
    squares = tl.sum(still * still, axis=0) + tl.sum(first * first + second * second, axis=0)
    scale = tl.rsqrt(squares / SIZE + eps)
    storage = cache_ptr.dtype.element_ty
    last = tl.load(table_row_ptr + kv_len - 1).to(tl.int64)
    entry_ptr = cache_ptr + last * stride_slot
    weight = tl.load(weight_ptr + elements, mask=elements < SIZE, other=0.0)
    tl.store(entry_ptr + elements, (still * scale * weight).to(storage), mask=elements < SIZE)
    rotates = pairs < HALF
    first *= scale * tl.load(weight_ptr + pairs, mask=rotates, other=0.0)
    second *= scale * tl.load(weight_ptr + HALF + pairs, mask=rotates, other=0.0)
    first, second = first.to(storage).to(tl.float32), second.to(storage).to(tl.float32)
    cos_sin_row_ptr = cos_sin_ptr + (kv_len - RATE).to(tl.int64) * ROPE
    cos = tl.load(cos_sin_row_ptr + pairs, mask=rotates, other=0.0)
    sin = tl.load(cos_sin_row_ptr + HALF + pairs, mask=rotates, other=0.0)
    tl.store(entry_ptr + pairs, (first * cos - second * sin).to(storage), mask=rotates)
    tl.store(entry_ptr + HALF + pairs, (second * cos + first * sin).to(storage), mask=rotates)


_launch = Launcher(compress_entries_kernel, writes=("cache",))


def compress_entries_triton(
    cache: Tensor, contexts: Decodes, rate: int, offsets: Tensor, weight: Tensor, eps: float, cos_sin: Tensor
) -> None:
    """Triton implementation. Raises ValueError for layouts that the kernel does not read."""
    contexts.check("compress_entries")
    (_, vectors, size), rope, table = cache.shape, cos_sin.shape[1], contexts.slot_table
    if vectors not in (2, 4) or offsets.shape != (vectors // 2 * rate, size) or weight.shape != (size,) or rope > size:
        raise shapes_error("compress_entries", cache=cache, offsets=offsets, weight=weight, cos_sin=cos_sin)
    if cache.stride(2) != 1 or table.stride(1) != 1 or not all(e.is_contiguous() for e in (offsets, weight, cos_sin)):
        raise ValueError("compress_entries: the last dimension of every tensor must have stride 1")
    if not len(contexts.rows):
        return
    block = triton.next_power_of_2(max(1, size - rope))
    most = triton.next_power_of_2(vectors // 2 * rate)
    _launch(
        (len(contexts.rows),),
        (cache, offsets, weight, cos_sin, table, contexts.rows, contexts.kv_lens),
        (*cache.stride()[:2], table.stride(0)),
        (float(eps),),
        SIZE=size,
        RATE=rate,
        POSITIONS=vectors // 2 * rate,
        ROPE=rope,
        BLOCK_D=block,
        BLOCK_H=triton.next_power_of_2(max(1, rope // 2)),
        BLOCK_P=min(_MOST_POSITIONS, most, max(1, _TILE // block)),
        num_warps=8,
    )


def compress_entries_torch(
    cache: Tensor, contexts: Decodes, rate: int, offsets: Tensor, weight: Tensor, eps: float, cos_sin: Tensor
) -> None:
    """Torch implementation: the CPU path and the reference of the tests."""
    lengths = contexts.kv_lens.tolist()
    for row, kv_len in zip(contexts.rows.tolist(), lengths, strict=True):
        if kv_len == 0 or kv_len % rate:
            continue
        slots = contexts.slot_table[row, max(0, kv_len - len(offsets)) : kv_len].to(torch.int64)
        read = cache[slots[-rate:], :2]
        if len(slots) > rate:
            read = torch.cat((cache[slots[:-rate], 2:], read))
        logits = read[:, 1].float() + offsets[-len(slots) :]
        # Rounded where transformers rounds.
        mean = (logits.softmax(dim=0).to(read.dtype) * read[:, 0]).sum(dim=0, keepdim=True)
        normalise(mean, weight, eps, mean)
        rope = cos_sin.shape[1]
        turned = rotated(mean[:, None, :rope], cos_sin[kv_len - rate, None])
        cache[slots[-1], 0] = torch.cat((turned[0, 0], mean[0, rope:]))


compress_entries = register(compress_entries_torch, mutates=("cache",), triton=compress_entries_triton)
