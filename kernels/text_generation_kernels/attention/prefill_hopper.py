"""Launch of the Hopper prefill attention kernel (compute capability 9.0), and the conditions for it."""

# pyright: basic
import torch
from torch import Tensor

from ..runtime.batches import padded_batch
from ..runtime.constants import LOG2_E
from ..runtime.device import is_hopper, num_sms
from ..runtime.launch import Launcher
from ..runtime.settings import nearest
from ._kv_conversion import E4M3, E4M3_BY_HARDWARE
from ._prefill_hopper_kernel import prefill_attention_hopper_kernel
from .attention_options import AttentionOptions
from .kv_cache import KvCache
from .kv_quantisation import as_pairs, as_words, format_of, head_dim_of
from .requests import Chunks

_HEAD_DIMS = (128, 256)
_ROWS = 128
"""Query rows of a tile: heads within tokens."""

_launch = Launcher(prefill_attention_hopper_kernel, writes=("out",), dependents="at the end")


def hopper_takes(q: Tensor, cache: KvCache) -> bool:
    """Whether `launch_on_hopper` takes these tensors. Copied rows must have 16-byte alignment."""
    tensors = (q, cache.k, cache.v)
    return (
        is_hopper(q.device)
        and q.dtype in (torch.bfloat16, torch.float16)
        and (cache.k.dtype == q.dtype or format_of(cache.k) > 0)
        and q.shape[2] == head_dim_of(cache.v)
        and q.shape[2] in _HEAD_DIMS
        and not any(tensor.data_ptr() % 16 for tensor in tensors)
        and not any(stride * tensor.element_size() % 16 for tensor in tensors for stride in tensor.stride()[:2])
    )


def fills_hopper(q: Tensor, cache: KvCache, batch: Chunks) -> bool:
    """Whether nearly every SM has a tile, and the longest chunk fills one. Else `prefill_attention_kernel`, which
    splits keys, is faster.
    """
    kv_heads = cache.k.shape[1]
    if batch.max_len * q.shape[1] // kv_heads < _ROWS:
        return False
    return _tiles(q, kv_heads, batch.rows.shape[0]) * kv_heads >= 7 * num_sms(q.device) // 8


def _tiles(q: Tensor, kv_heads: int, requests: int) -> int:
    """Most tiles of a KV head: each request adds less than one that is not full."""
    return -(-q.shape[0] * q.shape[1] // (kv_heads * _ROWS)) + requests


def launch_on_hopper(
    q: Tensor, cache: KvCache, batch: Chunks, scale: float, out: Tensor, options: AttentionOptions
) -> None:
    """Layouts as in `prefill_attention`, for which `hopper_takes` holds."""
    _, heads, head_dim = q.shape
    kv_heads, requests = cache.k.shape[1], batch.rows.shape[0]
    format = format_of(cache.k)
    if format == E4M3:
        format = E4M3_BY_HARDWARE
    k_words, v_words, pairs = as_words(cache.k), as_words(cache.v), as_pairs(cache.scales)
    scale_strides = (0, 0) if pairs is None else pairs.stride()[:2]
    config = nearest("prefill_attention_hopper", head_dim=head_dim, element_bytes=cache.k.element_size())
    _launch(
        (kv_heads, _tiles(q, kv_heads, requests)),
        (
            q, k_words, v_words, pairs, batch.slot_table, batch.rows, batch.starts, batch.kv_lens, options.sinks,
            options.slopes, out,
        ),
        (
            *q.stride()[:2], *k_words.stride()[:2], *v_words.stride()[:2], *scale_strides, batch.slot_table.stride(0),
            *out.stride()[:2],
        ),
        (requests, scale * LOG2_E),
        GROUP=heads // kv_heads,
        HEAD_DIM=head_dim,
        BLOCK_B=padded_batch(requests),
        WINDOW=options.window,
        SOFTCAP=options.softcap,
        FORMAT=format,
        num_warps=4,
        **config,
    )  # fmt: skip
