"""Decode attention over a token-granular KV pool (split-KV): new tokens of each request attend to its context.

    out[t] = sum over c < kv_lens[t] of softmax(scale * q[t] . k[c]) * v[c]

Head h of q reads K and V of head h // (heads / kv_heads). A token of length 0 (a padded row) gets zeros.
`options` (`AttentionOptions`): window, softcap, sinks and slopes. With a window only visible positions are read and
divided into chunks; of several chunks the merge counts the sink.

Layouts: `q` `[D, heads, head_dim]`, `out` `[D, heads, v_head_dim]`. Position c of token t (`Decodes`) lies in slot
`slot_table[rows[t], c]` of the cache (`KvCache`), which already holds K and V of the new tokens. Table entries from
`kv_lens[t]` on may be stale and are never followed: another request's data must not reach this one, not even times
zero.

A request has `width` successive tokens (a window of `speculation`), each of which attends to those before it too. Their
heads are rows of one tile, so that K and V are read once for all of them. A weight of zero stands for positions that a
token does not see: values there that are not finite would reach it, as they do in prefill attention.

The cache may hold codes of 8 or 4 bits (`kv_quantisation.py`). Heads are then columns of the GEMMs, of which an MMA
instruction takes 8 where it takes 16 rows. Codes reach tensor cores from registers, scales apply to scores and softmax
weights, and queries and weights are float16. Of 4-bit codes each of the eight places within a word has GEMMs of its
own. `deterministic`: a token's result does not depend, to the bit, on the rest of the batch, so that each token of a
window is computed as a request of its own.

Called once a layer in a decode step. Bytes floor: sum over requests of their longest kv_len * kv_heads * head_dim * 2 *
element size (each K and V once). On an H200 with 8 KV heads, groups of 4 and head size 128 in bfloat16: 98 % of copy
bandwidth at 64 x 2,048.
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
from ._chunking import Chunking
from ._decode_kernel import decode_attention_kernel
from ._decode_torch import decode_attention_torch
from ._kv_conversion import E4M3, E4M3_BY_HARDWARE, INT4
from ._online_softmax import check_layouts
from .attention_options import NO_OPTIONS, AttentionOptions
from .kv_cache import KvCache
from .kv_quantisation import as_pairs, as_words, codes_of_word, format_of, head_dim_of
from .requests import Decodes, tokens_of_a_request

# Least positions of a chunk: the first number for batches of up to _SMALL_BATCH, which would leave most SMs idle.
_MIN_CHUNKS = (64, 128)
_SMALL_BATCH = 2

# With this many requests the GEMM before launches dependents early (`bf16_small_hopper.py`), and first tiles are
# prefetched.
_EARLY = range(33, 65)

EARLY_BYTES = 256
"""Heads of more bytes leave no registers for queries that are loaded within the loop: nothing is read early."""

# Up to so many requests of three and more tokens a separate kernel merges: a request has several chunks then, and one
# thread block would merge the rows of all tokens of them.
_FEW_WINDOWS = 32

# Partials that a merge reads at a time, of one chunk and head each: enough to hide the latency of loads. Several tokens
# leave registers for so many elements alone.
_MERGED_ROWS, _MERGED_ELEMENTS = 32, 4096

# Heads of an MMA instruction: as rows, or as columns where the cache holds codes.
_ROWS, _COLUMNS = 16, 8

_launch = Launcher(
    decode_attention_kernel,
    writes=("out", "partial", "partial_log_sum", "arrived"),
    reads_early=("b_row", "b_kv_len", "slopes", "slot_table:older", "k_cache:older", "v_cache:older", "scales:older"),
)


def decode_attention_triton(
    q: Tensor,
    cache: KvCache,
    batch: Decodes,
    scale: float,
    out: Tensor,
    deterministic: bool = False,
    options: AttentionOptions = NO_OPTIONS,
) -> None:
    """Triton implementation: split-KV decoding (Flash-Decoding, Dao et al., 2023), planned on the device.

    The grid depends on the number of requests and on `max_kv_len` alone, and kernels read the lengths: one captured
    graph serves every length up to `max_kv_len`. Where `deterministic`, a request's chunks depend on its own length
    alone.
    Raises ValueError for layouts that the kernel does not read.

    The kernel reads `rows` and `kv_lens` while the previous kernel may still run; where the cache holds codes or the
    requests, of one token each, are in `_EARLY`, also `slot_table` and positions before the newest. Between the kernel
    that writes them and this operator there must be another, which is no operator of this package but `linear`,
    `linear_split_k` or `token_linear`, as in every model.

    Partials are allocated here, because their size follows from the plan. They are free again when the call returns; in
    a graph they lie in the graph's pool.
    """
    slot_table, kv_lens = batch.slot_table, batch.kv_lens
    check_layouts("decode_attention", q, cache, slot_table, out, options)
    tokens, num_heads, head_dim = q.shape
    width = tokens_of_a_request("decode_attention", batch, tokens, deterministic)
    num_kv_heads, v_head_dim = cache.v.shape[1], head_dim_of(cache.v)
    if (requests := tokens // width) == 0:
        return
    format = format_of(cache.k)
    if format == E4M3 and q.is_cuda and has_fp8_gemms(q.device):
        format = E4M3_BY_HARDWARE
    k_cache, v_cache = as_words(cache.k), as_words(cache.v)
    block_d, block_v = (padded_head_dim(size, codes_of_word(cache.k)) for size in (head_dim, v_head_dim))
    group = num_heads // num_kv_heads
    config = _settings(q, block_d, num_kv_heads, width, format, deterministic)
    row_tiles, sizes = _row_tiles(config, group, width, block_v, bool(format))
    tiles, processors = num_kv_heads * row_tiles, num_sms(q.device)
    programs, resident = (config.pop(name) * processors // tiles for name in ("programs", "resident"))
    min_chunk = _MIN_CHUNKS[requests > _SMALL_BATCH]
    chunks = Chunking.of(out, batch.max_kv_len, programs, resident, min_chunk, deterministic, options.window, width)
    # A separate kernel merges the heads of few requests in parallel, which is faster, but adds in other steps.
    last_merges = deterministic or requests > (_FEW_WINDOWS if width > 2 else 1)
    pairs = as_pairs(cache.scales)
    scale_strides = (0, 0) if pairs is None else pairs.stride()[:2]
    _launch(
        (tiles, chunks.items),
        (
            q, k_cache, v_cache, pairs, slot_table, batch.rows, kv_lens, options.sinks, options.slopes, out,
            chunks.partial, chunks.partial_log_sum, arrivals(q.device, requests * tiles),
        ),
        (
            *q.stride()[:2], *k_cache.stride()[:2], *v_cache.stride()[:2], *scale_strides, slot_table.stride(0),
            *out.stride()[:2],
        ),
        (*chunks.planned, batch.width, scale * LOG2_E),
        GROUP=group,
        HEAD_DIM=head_dim,
        BLOCK_D=block_d,
        V_DIM=v_head_dim,
        BLOCK_V=block_v,
        SOFTCAP=options.softcap,
        LAST_MERGES=last_merges,
        FORMAT=format,
        EARLY=bool(format) or (width == 1 and requests in _EARLY and block_d * q.element_size() <= EARLY_BYTES),
        AHEAD=config["num_stages"],
        **sizes,
        **chunks.constants,
        **config,
    )  # fmt: skip
    if not last_merges:
        chunks.merge(kv_lens, options.sinks, out, block_v, 16)


def _settings(q: Tensor, block_d: int, kv_heads: int, width: int, format: int, deterministic: bool) -> dict[str, int]:
    """Tiles and numbers of thread blocks, by the number of requests unless `deterministic`. With few heads and
    requests, fewer thread blocks with more tiles in flight leave fewer chunks to merge. Several tokens, of more rows
    than an MMA instruction takes, have settings of their own.
    """
    requests, rows, codes = q.shape[0] // width, _padded(q.shape[1] // kv_heads * width), format > 0
    sizes = {"shared_kib": shared_kib(q.device), "head_dim": block_d}
    if format == INT4:
        batch = 1 if requests == 1 and not deterministic else 16
        config = dict(nearest("decode_attention_int4", **sizes, rows=max(_COLUMNS, rows), batch=batch))
        # The heads of single tokens are one tile.
        return config if width > 1 else {name: value for name, value in config.items() if name != "BLOCK_G"}
    if width > 1 and rows > (_COLUMNS if codes else _ROWS):
        sizes |= {"element_bytes": 1 if codes else q.element_size(), "rows": rows}
        return dict(nearest("decode_attention_rows", **sizes))
    if codes:
        return dict(nearest("decode_attention_codes", **sizes, batch=1 if requests == 1 and not deterministic else 16))
    sizes |= {"element_bytes": q.element_size(), "kv_heads": kv_heads, "batch": 64 if deterministic else requests}
    return dict(nearest("decode_attention", **sizes))


def _row_tiles(config: dict[str, int], group: int, width: int, block_v: int, codes: bool) -> tuple[int, dict[str, int]]:
    """How many tiles the rows of a KV head of one request take, and the sizes of these. Takes the most rows of a tile
    out of `config`, if it names it.
    """
    rows, merged = _padded(group * width), _MERGED_ROWS
    if width > 1:
        merged = min(merged, _MERGED_ELEMENTS // block_v)
    block_g = config.pop("BLOCK_G", max(_COLUMNS if codes else _ROWS, rows))
    block_h = min(rows, block_g)
    sizes = {"BLOCK_G": block_g, "BLOCK_H": block_h, "BLOCK_C": max(1, merged // block_h)}
    return -(-group * width // block_g), sizes


def _padded(rows: int) -> int:
    return 1 << (rows - 1).bit_length()


decode_attention = register(decode_attention_torch, mutates=("out",), triton=decode_attention_triton)
