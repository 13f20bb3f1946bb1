"""Attention of one new token for each request over the whole context of that request.

    out[b] = sum over c < b_kv_len[b] of softmax(scale * q[b] . k[c]) * v[c]

Head h of q reads K and V of head h // (heads / kv_heads). A request with `b_kv_len` 0 (a padded row) gets zeros.
`options` (`AttentionOptions`) are window, softcap, sinks and slopes. With a window only what is seen is read and shared
out among programs; a sink is counted once, by whoever has the whole sum.

Layouts: `q` `[batch, heads, head_dim]`, `out` `[batch, heads, v_head_dim]`, where `v_head_dim` is `head_dim` but for
caches of V with heads of another size; position c of request b lies in slot `slot_table[b_row[b], c]`. `slot_table`
`[rows, positions]` int32, `b_row` `[batch]` int64, `b_kv_len` `[batch]` int32. Caches `[slots, kv_heads, head_dim or
v_head_dim]`, already holding K and V of the new tokens. Entries of the table from `b_kv_len[b]` on may be stale and are
never followed: what another request left there must not reach this one, not even times zero.
Caches may hold codes of 8 bits with `scales` (`kv_quantisation.py`). Heads are then columns of products, of which a
matrix instruction takes eight, where it takes sixteen rows. Values are read as words of four codes, and each place
within the words has a product of its own, so that codes reach the matrix units from registers; scales are applied to
scores and to weights. Queries and weights are float16 then.
`deterministic`: the result of a request does not depend, to the bit, on which others are in the batch.

Called once a layer in a decode step.
Bytes floor: sum(b_kv_len) * kv_heads * head_dim * 2 * element size (each K and V once).
On an H200 with 8 KV heads, groups of 4 and head size 128 in bfloat16: 98 % of copy bandwidth at 64 x 2,048, 100 % at
256 x 1,024, 101 % at 16 x 32,768, 94 % at 64 lengths from 16 to 32,768; 49 % at one context of 8,192, 8 % at one of 512
(6 us, bound by latency). See benchmark/results/decode_attention.json. Within a layer of the 8B, starting before the
kernel ahead has finished saves 1.2 us at one context of 512 and at 64 of 2,048, and costs 2.5 us at one of 8,192.

With 4 KV heads and groups of 8, as a rank of two of Llama-3.1-70B has them: 67 us at 64 x 2,048 (93 % of 4.3 TB/s), 161
at 200 lengths from 1,024 to 2,019, 12 at 1 x 8,192; with the settings for 8 KV heads 72, 164 and 24
(benchmark/results/tune_two_ranks.json). Those are kept for more than 128 requests: 131 us at 256 x 1,024, not 139.

With 16 heads of 256 and 8 KV heads, 64 x 2,048: 254 us, the bandwidth of a copy.

Over float8_e4m3fn with heads of 128, programs read faster where a head's key and value of a slot lie side by side and
the scales of a head lie in the order of slots (`LayerCache`): 70.2 us instead of 77.1 at 64 x 2,176, which is 98 % of
4.3 TB/s, and 84.4 instead of 85.0 where slots are at random. A layer of an 8B in fp8 takes 147.4 us instead of 151.5
at 64 x 2,176, 220.7 instead of 222.3 at 256 x 640; with 16 bits it makes no difference. A tensor for each head was
slower (benchmark/results/kv_layouts.json). Tiles decide by how many programs fit a processor, presumably because they
gather where the product in front leaves first: tiles of 32 positions in 6 stages are best here, and were in 8 stages
with the layout before (decode_attention_layers.json). Contexts from 2,048 to 2,304 take 0.7 us more than as many of
2,176; other numbers of programs are slower for both. Tried and left out there: heads as columns over 16 bits,
154 us instead of 156 at 64 x 2,176, but 22.3 instead of 20.7 at 1 x 512 and 135 instead of 115 at 16 x 2,048 with
heads of 80; the next kernel let start after the wait or at the end, no faster within what runs differ by. Without
`qkv_postprocess` in front a layer whose tiles are asked for early took as long, so the two stay apart. All of this
is of scales with 32 bits; with 16 a step of 64 at 2,176 of an 8B in fp8 takes 5.00 ms instead of 5.03
(engine-llama-8b-fp8-kv.json), and these settings are still the best.
Over 16 bits, with heads as rows, first tiles are asked for before the wait with 33 to 64 requests, behind products that
let kernels start while they run: a step of an 8B takes 8.39 ms instead of 8.49 with 64 at 2,048, and 5.83 instead of
6.00 with 40 at 1,024, of a Qwen2.5-7B 5.99 instead of 6.02 and 5.26 instead of 5.29. With 16 requests, whose products
do not, it costs 0.4 to 0.8 % (benchmark/results/engine-early-starts.json). Alone it leaves a layer as long. One long
chunk of each request and short ones that start last, for processors that end before others, take 4 to 6 us more
(benchmark/results/tried-qwen2.5-7b.json).

Of a batch of 256 padded rows, which a step of prompts alone has in its graph, it takes 5.5 us
(benchmark/results/decode_attention_padding.json).

The last program of a request adds up its chunks: 249 us instead of 263 with a kernel after this one at 256 x 1,024, 15
instead of 17 at 8 x 1,024, 290 instead of 295 at 64 lengths from 16 to 32,768. One request alone keeps the kernel
after: 16 us instead of 20 at 8,192, because one program is slow to read 66 chunks.
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

# A chunk of K and V is at least this many positions: the first number for a batch so small that most processors would
# stay idle. Measured on an H200 with 8 KV heads: a layer at one context of 512 takes 122.3 us with 64 and 123.8 with
# 128, at eight of 1,024 137.2 and 135.1; 256 is worse for both.
_MIN_CHUNKS = (64, 128)
_SMALL_BATCH = 2

# In batches of so many requests the product in front lets kernels start while it runs (`bf16_small_hopper.py`). Heads
# of more bytes leave no registers for queries that come within the loop.
_EARLY, _EARLY_BYTES = range(33, 65), 256

# Results that a merge reads at a time, of one chunk and head each: so many that few loads wait for each other.
_MERGED_ROWS = 32

# So many heads a matrix instruction takes: as rows, or as columns where the cache holds codes.
_ROWS, _COLUMNS = 16, 8

_launch = Launcher(decode_attention_kernel)


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
) -> None:
    """Triton implementation: split-KV decoding (Flash-Decoding, Dao et al., 2023), planned on the device.

    The grid depends on `batch` and `max_kv_len` alone, lengths are read by the kernels: one captured graph serves
    every length up to `max_kv_len`. Where `deterministic`, a request's chunks depend on its own length alone.
    Raises ValueError for layouts that the kernel does not read.

    `b_row` and `b_kv_len` are read while the kernel before may still run, and so are `slot_table` and positions before
    the newest where caches hold codes, or where there are as many requests as `_EARLY` says: between the kernel that
    writes them and this operator there must be another that is no operator of this package but `skinny_linear`,
    `linear_split_k` or `token_linear`, as in every model.

    Partial results are allocated here, because their size follows from the plan, which nobody else knows; they are
    free again when the call returns, and in a graph they lie in the graph's pool.
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
    # One request alone waits less for a kernel that merges its heads side by side, but sums in other steps.
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
        (*chunks.planned, scale * LOG2_E),
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
    """Tiles, and how many programs there are. They depend on the number of requests where results may depend on the
    batch. With few heads and requests fewer programs, with more tiles under way, leave fewer chunks to merge.
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
) -> None:
    """The operator: Triton or torch, as `use_triton` says."""
    _operator(
        q, k_cache, v_cache, slot_table, b_row, b_kv_len, max_kv_len, scale, out, deterministic, *options.arguments(),
        scales,
    )  # fmt: skip
