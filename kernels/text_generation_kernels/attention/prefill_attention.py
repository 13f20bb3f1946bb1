"""Causal prefill attention over a token-granular KV pool, for a batch of requests of any lengths.

    out[t] = sum over c <= position(t) of softmax(scale * q[t] . k[c]) * v[c]

Head h of q reads K and V of head h // (heads / kv_heads) (grouped-query attention, Ainslie et al., 2023). `options`
(`AttentionOptions`): window, softcap, sinks and slopes. With a window a tile begins with the first block that one of
its queries sees; only blocks at an edge of the window and at the diagonal are masked.

Layouts: `q` `[tokens, heads, head_dim]`, `out` `[tokens, heads, v_head_dim]`, tokens of request b at
`starts[b] : starts[b + 1]` (`Chunks`), no padding; they are the last of its `kv_lens[b]` tokens, so a prompt may come
in chunks or continue a cached prefix. Position c of request b lies in slot `slot_table[rows[b], c]` of the cache
(`KvCache`), which already holds K and V of the new tokens. A request may have no new tokens; nothing is written for
tokens of one of length 0. Accumulation is float32 on CUDA and CPU.

The cache may hold codes of 8 or 4 bits (`kv_quantisation.py`): a tile is dequantised to float16 once for all queries
of a thread block. Queries and softmax weights are float16 then.

Two kernels. That for any card splits the keys of a tile among thread blocks where tiles are too few for the card. Long
chunks on Hopper cards, with heads of 128 or 256 and 16-bit queries, have their own (`prefill_hopper.py`).
`deterministic`: a token's result is the same to the bit wherever its prompt is cut, whatever the rest of the batch and
`max_len`, so a decode may be a chunk of one token. Keys are then not split, and the Hopper kernel, whose sums have
other steps, is not used. The steps of a sum follow from BLOCK_N and the rows of a warp, in which all tuned entries of
one head size and type agree.

Called once a layer when a batch holds prompt tokens. Bytes floor: q, out, and K and V of each request once; operations:
4 * heads * head_dim for each pair of query and key, compute-bound from a few hundred tokens on. On an H200 with 32
heads, 8 KV heads and head size 128 in bfloat16: 524 TFLOP/s at 8,192 tokens. Measurements:
docs/lab/2026-11-prefill-attention.md.
"""

# pyright: basic, reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false
from torch import Tensor

from ..runtime.batches import padded_batch
from ..runtime.constants import LOG2_E
from ..runtime.device import num_sms, shared_kib
from ..runtime.launch import Launcher, compiling_only
from ..runtime.register import register
from ..runtime.settings import nearest
from ..runtime.shapes import padded_head_dim
from ._kv_conversion import INT4
from ._online_softmax import check_layouts
from ._prefill_kernel import prefill_attention_kernel
from ._prefill_tiles import Tiling
from ._prefill_torch import prefill_attention_torch
from .attention_options import NO_OPTIONS, AttentionOptions
from .kv_cache import KvCache
from .kv_quantisation import as_bytes, as_pairs, as_words, format_of, head_dim_of
from .prefill_hopper import fills_hopper, hopper_takes, launch_on_hopper
from .requests import Chunks

_launch = Launcher(prefill_attention_kernel, writes=("out", "partial", "partial_log_sum", "arrived"))


def prefill_attention_triton(
    q: Tensor,
    cache: KvCache,
    batch: Chunks,
    scale: float,
    out: Tensor,
    deterministic: bool = False,
    options: AttentionOptions = NO_OPTIONS,
) -> None:
    """Triton implementation. `max_len` only chooses the tiles; nothing is read back from the device.

    Raises ValueError for layouts that the kernel does not read.
    """
    slot_table, window = batch.slot_table, options.window
    check_layouts("prefill_attention", q, cache, slot_table, out, options)
    num_tokens, num_heads, head_dim = q.shape
    num_kv_heads, v_head_dim = cache.v.shape[1], head_dim_of(cache.v)
    requests = batch.rows.shape[0]
    if num_tokens == 0:
        return
    format = format_of(cache.k)
    on_hopper = not deterministic and hopper_takes(q, cache)
    # A compile dry run does not meet every length.
    if on_hopper and (compiling_only() or fills_hopper(q, cache, batch)):
        launch_on_hopper(q, cache, batch, scale, out, options)
        if not compiling_only():
            return
    block_d, block_v = padded_head_dim(head_dim), padded_head_dim(v_head_dim)
    k_cache, v_cache = (as_words(each) if format == INT4 else as_bytes(each) for each in (cache.k, cache.v))
    pairs = as_pairs(cache.scales)
    scale_strides = (0, 0) if pairs is None else pairs.stride()[:2]
    sizes = {"head_dim": block_d, "element_bytes": 1 if format else q.element_size(), "q_len": max(1, batch.max_len)}
    config = dict(nearest("prefill_attention", shared_kib=shared_kib(q.device), **sizes))
    resident = config.pop("resident") * num_sms(q.device)
    group = num_heads // num_kv_heads
    rows, block_m = num_tokens * group, config["BLOCK_M"]
    positions = min(slot_table.shape[1], window + batch.max_len) if window else slot_table.shape[1]
    tiling = Tiling.of(rows, requests, num_kv_heads, positions, resident, block_m, block_v, deterministic, q.device)
    for variant in tiling.variants:
        _launch(
            (num_kv_heads, tiling.tiles, tiling.max_splits),
            (
                q, k_cache, v_cache, pairs, slot_table, batch.rows, batch.starts, batch.kv_lens, options.sinks,
                options.slopes, out, tiling.partial, tiling.partial_log_sum, tiling.arrived,
            ),
            (
                *q.stride()[:2], *k_cache.stride()[:2], *v_cache.stride()[:2], *scale_strides, slot_table.stride(0),
                *out.stride()[:2],
            ),
            (requests, tiling.max_splits, scale * LOG2_E),
            GROUP=group,
            HEAD_DIM=head_dim,
            BLOCK_D=block_d,
            V_DIM=v_head_dim,
            BLOCK_V=block_v,
            BLOCK_B=padded_batch(requests),
            WINDOW=window,
            SOFTCAP=options.softcap,
            FORMAT=format,
            **variant,
            **config,
        )  # fmt: skip


prefill_attention = register(prefill_attention_torch, mutates=("out",), triton=prefill_attention_triton)
