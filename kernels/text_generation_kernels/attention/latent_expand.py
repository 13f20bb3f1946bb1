"""Expansion of latent vectors of whole contexts into keys and values of all heads.

    k[b_first[b] + c, h] = keys[h] * cache[c, :rank], then cache[c, rank:]
    v[b_first[b] + c, h] = cache[c, :rank] * values[h]

for c < b_kv_len[b]: the input of `prefill_attention`, where `latent_prefill_attention` is absorbed and needs none.
Contexts of length 0 are skipped.

Layouts: `cache` `[slots, 1, rank + rope]`; position c of request b lies in slot `slot_table[b_row[b], c]`. `keys`
`[heads, key, rank]`, `values` `[heads, rank, value]`, contiguous; `k` `[room, heads, key + rope]`, `v` `[room, heads,
value]`, contiguous. `slot_table` `[rows, positions]`, `b_first`, `b_kv_len` `[batch]` int32, `b_row` `[batch]` int64.
Contexts fit into the room and lie apart. One floating type, accumulated in float32.

Called once a layer in steps with chunks so long that expanding pays (`layers/infer/expanded.py`). The grid covers the
room, and thread blocks without a context end at once, so one captured graph serves all lengths.
Operations: 2 * heads * rank * (key + value) for each position. Bytes floor: heads * (key + rope + value) * element size
for each position, written. On an H200 in bfloat16, 16 heads, rank 512: 411 TFLOP/s. Measurements:
docs/lab/2026-11-latent-attention.md.
"""

# pyright: basic, reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false
import torch
from torch import Tensor

from ..runtime.batches import locate, padded_batch
from ..runtime.device import shared_kib
from ..runtime.launch import Launcher, launch_dependents, wait_for_previous
from ..runtime.register import register
from ..runtime.settings import nearest
from ..runtime.shapes import padded_head_dim
from ..runtime.triton import tl, triton
from ._online_softmax import load_rows, load_slots


@triton.jit(do_not_specialize=["batch"], do_not_specialize_on_alignment=["b_row_ptr", "b_first_ptr", "b_kv_len_ptr"])
def latent_expand_kernel(
    cache_ptr,  # [slots, RANK + ROPE]
    slot_table_ptr,  # [rows, positions]
    b_row_ptr,  # [batch]
    b_first_ptr,  # [batch]
    b_kv_len_ptr,  # [batch]
    keys_ptr,  # [heads, KEY, RANK]
    values_ptr,  # [heads, RANK, VALUE]
    k_ptr,  # [room, heads, KEY + ROPE]
    v_ptr,  # [room, heads, VALUE]
    stride_slot: tl.constexpr,
    stride_table_row,
    batch,
    RANK: tl.constexpr,
    ROPE: tl.constexpr,
    BLOCK_E: tl.constexpr,  # power of two, at least ROPE and 16
    KEY: tl.constexpr,
    VALUE: tl.constexpr,
    BLOCK_D: tl.constexpr,  # power of two, at least KEY, VALUE and 16
    BLOCK_B: tl.constexpr,  # power of two, at least batch
    BLOCK_M: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PDL: tl.constexpr,
):
    """One thread block computes keys, or values, of one head for BLOCK_M positions of one context."""
    launch_dependents(PDL)
    wait_for_previous(PDL)
    requests = tl.arange(0, BLOCK_B)
    kv_lens = tl.load(b_kv_len_ptr + requests, mask=requests < batch, other=0)
    request, tile = locate(tl.cdiv(kv_lens, BLOCK_M), tl.program_id(1))
    if request >= batch:
        return
    head, heads = tl.program_id(0) // 2, tl.num_programs(0) // 2
    kv_len = tl.load(b_kv_len_ptr + request)
    positions = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    exists = positions < kv_len
    table_row_ptr = slot_table_ptr + tl.load(b_row_ptr + request).to(tl.int64) * stride_table_row
    slots = load_slots(table_row_ptr, positions, kv_len, True)
    rows = (tl.load(b_first_ptr + request) + positions).to(tl.int64) * heads + head
    elements = tl.arange(0, BLOCK_D)
    if tl.program_id(0) % 2 == 0:
        weight_ptr = keys_ptr + head.to(tl.int64) * KEY * RANK + elements[None, :] * RANK
        acc = _multiply(
            cache_ptr, slots, exists, weight_ptr, 1, stride_slot, elements < KEY, RANK, BLOCK_M, BLOCK_K, BLOCK_D
        )
        k_tile_ptr = k_ptr + rows[:, None] * (KEY + ROPE)
        tl.store(
            k_tile_ptr + elements[None, :],
            acc.to(k_ptr.dtype.element_ty),
            mask=exists[:, None] & (elements < KEY)[None, :],
        )
        rotated = load_rows(cache_ptr + RANK, slots, stride_slot, exists, True, ROPE, BLOCK_E)
        columns = tl.arange(0, BLOCK_E)
        tl.store(k_tile_ptr + KEY + columns[None, :], rotated, mask=exists[:, None] & (columns < ROPE)[None, :])
    else:
        weight_ptr = values_ptr + head.to(tl.int64) * RANK * VALUE + elements[None, :]
        acc = _multiply(
            cache_ptr, slots, exists, weight_ptr, VALUE, stride_slot, elements < VALUE, RANK, BLOCK_M, BLOCK_K, BLOCK_D
        )
        v_tile_ptr = v_ptr + rows[:, None] * VALUE + elements[None, :]
        tl.store(v_tile_ptr, acc.to(v_ptr.dtype.element_ty), mask=exists[:, None] & (elements < VALUE)[None, :])


@triton.jit
def _multiply(
    cache_ptr,
    slots,  # [BLOCK_M]
    exists,  # [BLOCK_M]
    weight_ptr,  # [1, BLOCK_D], the first row
    stride_weight: tl.constexpr,  # from row to row
    stride_slot: tl.constexpr,
    wanted,  # [BLOCK_D], columns that the weight has
    RANK: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """GEMM of latent vectors with a matrix [RANK, BLOCK_D]: [BLOCK_M, BLOCK_D] float32."""
    inner = tl.arange(0, BLOCK_K)
    latent_ptr = cache_ptr + slots[:, None] * stride_slot + inner[None, :]
    weight_ptr += inner[:, None] * stride_weight
    acc = tl.zeros([BLOCK_M, BLOCK_D], dtype=tl.float32)
    for start in range(0, RANK, BLOCK_K):
        inside = inner < RANK - start
        latent = tl.load(latent_ptr + start, mask=exists[:, None] & inside[None, :], other=0.0)
        weight = tl.load(weight_ptr + start * stride_weight, mask=inside[:, None] & wanted[None, :], other=0.0)
        acc = tl.dot(latent, weight, acc, input_precision="tf32x3")
    return acc


_launch = Launcher(latent_expand_kernel, writes=("k", "v"))


def latent_expand_triton(
    cache: Tensor,
    slot_table: Tensor,
    b_row: Tensor,
    b_first: Tensor,
    b_kv_len: Tensor,
    keys: Tensor,
    values: Tensor,
    k: Tensor,
    v: Tensor,
) -> None:
    """Triton implementation. Raises ValueError for layouts that the kernel does not read."""
    (heads, key, rank), value, (room, _, width), batch = keys.shape, values.shape[2], k.shape, b_row.shape[0]
    rope = width - key
    shapes_fit = (
        values.shape == (heads, rank, value)
        and k.shape == (room, heads, key + rope)
        and v.shape == (room, heads, value)
        and cache.shape[1:] == (1, rank + rope)
    )
    if not shapes_fit:
        shapes = [tuple(each.shape) for each in (cache, keys, values, k, v)]
        raise ValueError(f"latent_expand: shapes of cache, keys, values, k, v do not fit: {shapes}")
    if not all(each.is_contiguous() for each in (keys, values, k, v)) or cache.stride(2) != 1:
        raise ValueError("latent_expand: keys, values, k and v must be contiguous, and vectors have stride 1")
    if batch == 0:
        return
    block_d = padded_head_dim(max(key, value))
    sizes = {"shared_kib": shared_kib(k.device), "element_bytes": k.element_size(), "head_dim": block_d}
    config = nearest("latent_expand", **sizes)
    _launch(
        # The last tile of a context need not be full.
        (2 * heads, triton.cdiv(room, config["BLOCK_M"]) + batch),
        (cache, slot_table, b_row, b_first, b_kv_len, keys, values, k, v),
        (cache.stride(0), slot_table.stride(0)),
        (batch,),
        RANK=rank,
        ROPE=rope,
        BLOCK_E=padded_head_dim(rope),
        KEY=key,
        VALUE=value,
        BLOCK_D=block_d,
        BLOCK_B=padded_batch(batch),
        **config,
    )


def latent_expand_torch(
    cache: Tensor,
    slot_table: Tensor,
    b_row: Tensor,
    b_first: Tensor,
    b_kv_len: Tensor,
    keys: Tensor,
    values: Tensor,
    k: Tensor,
    v: Tensor,
) -> None:
    """Torch implementation: the CPU path and the reference of the tests."""
    key, rank = keys.shape[1:]
    for row, first, kv_len in zip(b_row.tolist(), b_first.tolist(), b_kv_len.tolist(), strict=True):
        vectors = cache[slot_table[row, :kv_len].long(), 0]
        rows = slice(first, first + kv_len)
        latent = vectors[:, :rank].expand(len(keys), -1, -1)
        k[rows, :, :key] = torch.bmm(latent, keys.transpose(1, 2)).transpose(0, 1)
        k[rows, :, key:] = vectors[:, None, rank:]
        v[rows] = torch.bmm(latent, values).transpose(0, 1)


latent_expand = register(latent_expand_torch, mutates=("k", "v"), triton=latent_expand_triton)
