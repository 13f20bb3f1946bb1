"""Causal prefill attention over a token-granular KV pool, for a batch of requests of any lengths.

    out[t] = sum over c <= position(t) of softmax(scale * q[t] . k[c]) * v[c]

Head h of q reads K and V of head h // (heads / kv_heads) (grouped-query attention, Ainslie et al., 2023). `options`
(`AttentionOptions`): window, softcap, sinks and slopes. With a window a tile begins with the first block that one of
its queries sees; only blocks at an edge of the window and at the diagonal are masked.

Layouts: `q` `[tokens, heads, head_dim]`, `out` `[tokens, heads, v_head_dim]`, tokens of request b at
`b_q_start[b] : b_q_start[b + 1]`, no padding; they are the last of its `b_kv_len[b]` tokens, so a prompt may come in
chunks or continue a cached prefix. Position c of request b lies in slot `slot_table[b_row[b], c]`. Caches
`[slots, kv_heads, head_dim or v_head_dim]`, already holding K and V of the new tokens. `b_row` `[batch]` int64,
`b_q_start` `[batch + 1]`, `b_kv_len` `[batch]`, `slot_table` int32. A request may have no new tokens; nothing is
written for tokens of one whose `b_kv_len` is 0. Accumulation is float32 on CUDA and CPU.

Caches may hold 8-bit codes with `scales` (`kv_quantisation.py`): a tile is dequantised to float16 once for all queries
of a thread block. Queries and softmax weights are float16 then.

Two kernels. That for any card splits the keys of a tile among thread blocks where tiles are too few for the card. Long
chunks on Hopper cards, with heads of 128 or 256 and 16-bit queries, have their own (`prefill_hopper.py`).
`deterministic`: a token's result is the same to the bit wherever its prompt is cut, whatever the rest of the batch and
`max_q_len`, so a decode may be a chunk of one token. Keys are then not split, and the Hopper kernel, whose sums have
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
from ._online_softmax import check_layouts
from ._prefill_kernel import prefill_attention_kernel
from ._prefill_tiles import Tiling
from ._prefill_torch import prefill_attention_torch
from .attention_options import NO_OPTIONS, AttentionOptions
from .kv_quantisation import as_bytes, as_pairs, format_of
from .prefill_hopper import fills_hopper, hopper_takes, launch_on_hopper

_launch = Launcher(prefill_attention_kernel, writes=("out", "partial", "partial_log_sum", "arrived"))


def prefill_attention_triton(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slot_table: Tensor,
    b_row: Tensor,
    b_q_start: Tensor,
    b_kv_len: Tensor,
    max_q_len: int,
    scale: float,
    out: Tensor,
    deterministic: bool = False,
    window: int = 0,
    softcap: float = 0.0,
    sinks: Tensor | None = None,
    slopes: Tensor | None = None,
    scales: Tensor | None = None,
) -> None:
    """Triton implementation. `max_q_len` only chooses the tiles; nothing is read back from the device.

    Raises ValueError for layouts that the kernel does not read.
    """
    check_layouts("prefill_attention", q, k_cache, v_cache, slot_table, out, sinks, slopes, scales)
    num_tokens, num_heads, head_dim = q.shape
    _, num_kv_heads, v_head_dim = v_cache.shape
    batch = b_row.shape[0]
    if num_tokens == 0:
        return
    format = format_of(k_cache)
    on_hopper = not deterministic and hopper_takes(q, k_cache, v_cache)
    # A compile dry run does not meet every length.
    if on_hopper and (compiling_only() or fills_hopper(q, k_cache, max_q_len, batch)):
        batch_tensors, options = (slot_table, b_row, b_q_start, b_kv_len), (window, softcap, sinks, slopes)
        launch_on_hopper(q, k_cache, v_cache, *batch_tensors, scale, out, *options, scales)
        if not compiling_only():
            return
    block_d, block_v = padded_head_dim(head_dim), padded_head_dim(v_head_dim)
    pairs = as_pairs(scales)
    scale_strides = (0, 0) if pairs is None else pairs.stride()[:2]
    sizes = {"head_dim": block_d, "element_bytes": 1 if format else q.element_size(), "q_len": max(1, max_q_len)}
    config = dict(nearest("prefill_attention", shared_kib=shared_kib(q.device), **sizes))
    resident = config.pop("resident") * num_sms(q.device)
    group = num_heads // num_kv_heads
    rows, block_m = num_tokens * group, config["BLOCK_M"]
    positions = min(slot_table.shape[1], window + max_q_len) if window else slot_table.shape[1]
    tiling = Tiling.of(rows, batch, num_kv_heads, positions, resident, block_m, block_v, deterministic, q.device)
    for variant in tiling.variants:
        _launch(
            (num_kv_heads, tiling.tiles, tiling.max_splits),
            (
                q, as_bytes(k_cache), as_bytes(v_cache), pairs, slot_table, b_row, b_q_start, b_kv_len, sinks,
                slopes, out, tiling.partial, tiling.partial_log_sum, tiling.arrived,
            ),
            (
                *q.stride()[:2], *k_cache.stride()[:2], *v_cache.stride()[:2], *scale_strides, slot_table.stride(0),
                *out.stride()[:2],
            ),
            (batch, tiling.max_splits, scale * LOG2_E),
            GROUP=group,
            HEAD_DIM=head_dim,
            BLOCK_D=block_d,
            V_DIM=v_head_dim,
            BLOCK_V=block_v,
            BLOCK_B=padded_batch(batch),
            WINDOW=window,
            SOFTCAP=softcap,
            FORMAT=format,
            **variant,
            **config,
        )  # fmt: skip


_operator = register(prefill_attention_torch, mutates=("out",), triton=prefill_attention_triton)


def prefill_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slot_table: Tensor,
    b_row: Tensor,
    b_q_start: Tensor,
    b_kv_len: Tensor,
    max_q_len: int,
    scale: float,
    out: Tensor,
    deterministic: bool = False,
    options: AttentionOptions = NO_OPTIONS,
    scales: Tensor | None = None,
) -> None:
    """Prefill attention by Triton or torch, as `use_triton` says."""
    batch = (slot_table, b_row, b_q_start, b_kv_len, max_q_len)
    _operator(q, k_cache, v_cache, *batch, scale, out, deterministic, *options.arguments(), scales)
