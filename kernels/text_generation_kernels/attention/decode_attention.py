"""Decode attention over a token-granular KV pool (split-KV): one new token of each request attends to its context.

    out[b] = sum over c < b_kv_len[b] of softmax(scale * q[b] . k[c]) * v[c]

Head h of q reads K and V of head h // (heads / kv_heads). A request with `b_kv_len` 0 (a padded row) gets zeros.
`options` (`AttentionOptions`): window, softcap, sinks and slopes. With a window only visible positions are read and
divided into chunks; of several chunks the merge counts the sink.

Layouts: `q` `[batch, heads, head_dim]`, `out` `[batch, heads, v_head_dim]`. Position c of request b lies in slot
`slot_table[b_row[b], c]`; `slot_table` `[rows, positions]` int32, `b_row` `[batch]` int64, `b_kv_len` `[batch]` int32.
Caches `[slots, kv_heads, head_dim or v_head_dim]`, already holding K and V of the new tokens. Table entries from
`b_kv_len[b]` on may be stale and are never followed: another request's data must not reach this one, not even times
zero. Up to `new_tokens` entries of the batch may be successive tokens of one row, each of which attends to those before
it: K and V of so many positions are as new as the entry.

Caches may hold 8-bit codes with `scales` (`kv_quantisation.py`). Heads are then columns of the GEMMs, of which an MMA
instruction takes 8 where it takes 16 rows. Codes reach tensor cores from registers, scales apply to scores and softmax
weights, and queries and weights are float16. `deterministic`: a request's result does not depend, to the bit, on the
rest of the batch.

Called once a layer in a decode step. Bytes floor: sum(b_kv_len) * kv_heads * head_dim * 2 * element size (each K and V
once). On an H200 with 8 KV heads, groups of 4 and head size 128 in bfloat16: 98 % of copy bandwidth at 64 x 2,048.
Measurements: docs/lab/2026-11-decode-attention.md; over 8-bit caches docs/lab/2026-11-attention-over-fp8-kv.md.
"""

# pyright: basic, reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false
from torch import Tensor

from ..runtime.constants import LOG2_E
from ..runtime.device import has_fp8_gemms, num_sms, shared_kib
from ..runtime.launch import Launcher, arrivals
from ..runtime.register import register
from ..runtime.settings import nearest
from ..runtime.shapes import padded_head_dim
from ..runtime.triton import triton
from ._decode_kernel import decode_attention_kernel
from ._decode_torch import decode_attention_torch
from ._kv_conversion import E4M3, E4M3_BY_HARDWARE
from ._online_softmax import check_layouts
from ._split_kv import Chunking
from .attention_options import NO_OPTIONS, AttentionOptions
from .kv_quantisation import as_pairs, as_words, format_of

# Least positions of a chunk: the first number for batches of up to _SMALL_BATCH, which would leave most SMs idle.
_MIN_CHUNKS = (64, 128)
_SMALL_BATCH = 2

# With this many requests the GEMM before launches dependents early (`bf16_small_hopper.py`), and first tiles are
# prefetched. Heads of more bytes leave no registers for queries that are loaded within the loop.
_EARLY, _EARLY_BYTES = range(33, 65), 256

# Partials that a merge reads at a time, of one chunk and head each: enough to hide the latency of loads.
_MERGED_ROWS = 32

# Heads of an MMA instruction: as rows, or as columns where the cache holds codes.
_ROWS, _COLUMNS = 16, 8

_launch = Launcher(
    decode_attention_kernel,
    writes=("out", "partial", "partial_log_sum", "arrived"),
    reads_early=("b_row", "b_kv_len", "slopes", "slot_table:older", "k_cache:older", "v_cache:older", "scales:older"),
)


def decode_attention_triton(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slot_table: Tensor,
    b_row: Tensor,
    b_kv_len: Tensor,
    max_kv_len: int,
    scale: float,
    out: Tensor,
    deterministic: bool = False,
    window: int = 0,
    softcap: float = 0.0,
    sinks: Tensor | None = None,
    slopes: Tensor | None = None,
    scales: Tensor | None = None,
    new_tokens: int = 1,
) -> None:
    """Triton implementation: split-KV decoding (Flash-Decoding, Dao et al., 2023), planned on the device.

    The grid depends on `batch` and `max_kv_len` alone, and kernels read the lengths: one captured graph serves every
    length up to `max_kv_len`. Where `deterministic`, a request's chunks depend on its own length alone.
    Raises ValueError for layouts that the kernel does not read.

    The kernel reads `b_row` and `b_kv_len` while the previous kernel may still run; where caches hold codes or the
    batch is in `_EARLY`, also `slot_table` and positions before the newest. Between the kernel that writes them and
    this operator there must be another, which is no operator of this package but `linear`, `linear_split_k` or
    `token_linear`, as in every model.

    Partials are allocated here, because their size follows from the plan. They are free again when the call returns; in
    a graph they lie in the graph's pool.
    """
    check_layouts("decode_attention", q, k_cache, v_cache, slot_table, out, sinks, slopes, scales)
    batch, num_heads, head_dim = q.shape
    _, num_kv_heads, v_head_dim = v_cache.shape
    if batch == 0:
        return
    if window:
        max_kv_len = min(max_kv_len, window)
    format = format_of(k_cache)
    if format == E4M3 and q.is_cuda and has_fp8_gemms(q.device):
        format = E4M3_BY_HARDWARE
    k_cache, v_cache = as_words(k_cache), as_words(v_cache)
    block_d, block_v = (padded_head_dim(size, bool(format)) for size in (head_dim, v_head_dim))
    config = _settings(q, block_d, num_kv_heads, bool(format), deterministic)
    processors = num_sms(q.device)
    programs, resident = (config.pop(name) * processors // num_kv_heads for name in ("programs", "resident"))
    min_chunk = _MIN_CHUNKS[batch > _SMALL_BATCH]
    chunks = Chunking.of(out, max_kv_len, programs, resident, min_chunk, deterministic, window)
    group = num_heads // num_kv_heads
    group_heads: int = triton.next_power_of_2(group)  # pyright: ignore[reportAssignmentType]
    # A separate kernel merges the heads of a single request in parallel, which is faster, but adds in other steps.
    last_merges = batch > 1 or deterministic
    pairs = as_pairs(scales)
    scale_strides = (0, 0) if pairs is None else pairs.stride()[:2]
    _launch(
        (num_kv_heads, chunks.items),
        (
            q, k_cache, v_cache, pairs, slot_table, b_row, b_kv_len, sinks, slopes, out, chunks.partial,
            chunks.partial_log_sum, arrivals(q.device, batch * num_kv_heads),
        ),
        (
            *q.stride()[:2], *k_cache.stride()[:2], *v_cache.stride()[:2], *scale_strides, slot_table.stride(0),
            *out.stride()[:2],
        ),
        (*chunks.planned, new_tokens, scale * LOG2_E),
        GROUP=group,
        HEAD_DIM=head_dim,
        BLOCK_D=block_d,
        V_DIM=v_head_dim,
        BLOCK_V=block_v,
        SOFTCAP=softcap,
        BLOCK_G=max(_COLUMNS if format else _ROWS, group_heads),
        BLOCK_H=group_heads,
        BLOCK_C=max(1, _MERGED_ROWS // group_heads),
        LAST_MERGES=last_merges,
        FORMAT=format,
        EARLY=bool(format) or (batch in _EARLY and block_d * q.element_size() <= _EARLY_BYTES),
        AHEAD=config["num_stages"],
        **chunks.constants,
        **config,
    )  # fmt: skip
    if not last_merges:
        chunks.merge(b_kv_len, sinks, out, block_v, 16)


def _settings(q: Tensor, block_d: int, kv_heads: int, codes: bool, deterministic: bool) -> dict[str, int]:
    """Tiles and numbers of thread blocks, by the number of requests unless `deterministic`. With few heads and
    requests, fewer thread blocks with more tiles in flight leave fewer chunks to merge.
    """
    sizes = {"shared_kib": shared_kib(q.device), "head_dim": block_d}
    batch = q.shape[0]
    if codes:
        return dict(nearest("decode_attention_codes", **sizes, batch=1 if batch == 1 and not deterministic else 16))
    sizes |= {"element_bytes": q.element_size(), "kv_heads": kv_heads, "batch": 64 if deterministic else batch}
    return dict(nearest("decode_attention", **sizes))


_operator = register(decode_attention_torch, mutates=("out",), triton=decode_attention_triton)


def decode_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slot_table: Tensor,
    b_row: Tensor,
    b_kv_len: Tensor,
    max_kv_len: int,
    scale: float,
    out: Tensor,
    deterministic: bool = False,
    options: AttentionOptions = NO_OPTIONS,
    scales: Tensor | None = None,
    new_tokens: int = 1,
) -> None:
    """Decode attention by Triton or torch, as `use_triton` says."""
    _operator(
        q, k_cache, v_cache, slot_table, b_row, b_kv_len, max_kv_len, scale, out, deterministic, *options.arguments(),
        scales, new_tokens,
    )  # fmt: skip
