"""Causal attention of new tokens over everything before them, for requests of any length side by side.

    out[t] = sum over c <= position(t) of softmax(scale * q[t] . k[c]) * v[c]

Head h of q reads K and V of head h // (heads / kv_heads) (grouped queries, Ainslie et al., 2023).
`options` (`AttentionOptions`) are window, softcap, sinks and slopes. With a window a tile begins with the first block
that one of its queries sees; only blocks at an edge of the window and at the diagonal are masked.

Layouts: `q` `[tokens, heads, head_dim]`, `out` `[tokens, heads, v_head_dim]` (as in `decode_attention`), tokens of
request b at `b_q_start[b] : b_q_start[b + 1]`, no padding; they are the last of its `b_kv_len[b]` tokens, so a prompt
may come in pieces or continue a cached one. Position c of request b lies in slot `slot_table[b_row[b], c]`. Caches
`[slots, kv_heads, head_dim or v_head_dim]`, already holding K and V of the new tokens. `b_row` `[batch]` int64,
`b_q_start` `[batch + 1]`, `b_kv_len` `[batch]`, `slot_table` int32.
Caches may hold codes of 8 bits with `scales` (`kv_quantisation.py`): a tile of them becomes float16, times its scales,
once for all queries of a program. Queries and weights are float16 then.
A request without new tokens is allowed; nothing is written for tokens of one whose `b_kv_len` is 0. Scores and sums
are float32 on CUDA and CPU alike.

Called once a layer when a batch holds prompt tokens.
Floor: bytes of q, out, and K and V of each request once; operations 4 * heads * head_dim * (q, k pairs), bound by the
matrix rate from a few hundred tokens on.
On an H200 with 32 heads, 8 KV heads and head size 128 in bfloat16, scattered slots, the kernel for any card has 154
TFLOP/s at 512 tokens, 380 at 2,048, 452 at 8,192 (cuDNN on contiguous tensors 601), 458 at 16,384. Chunks behind
8,192 tokens, microseconds for 1 / 16 / 128 / 448 / 960 tokens: 30 / 38 / 77 / 155 / 319
(benchmark/results/prefill_attention.json).

Long chunks on a Hopper card, with heads of 128 or 256 and 16-bit queries, have a kernel of their own
(`prefill_hopper.py`). Microseconds before and with it, in one run on that card: 1,175 and 1,049 at 8,192 tokens
(524 TFLOP/s), 99 and 89 at 2,048, 177 and 147 at 16 prompts of 512, 395 and 333 at 4 of 2,048, 1,768 and 1,663 at
10,000, 167 and 141 for 448 behind 8,192 (benchmark/results/prefill_attention_hopper.json). Over codes it took 1,363
where the other took 1,750 for 8,192: only the warp group that copies converts them. Not used where `deterministic`:
its sums have other steps.

What the first rests on, each measured on that card:
- Slots are read one step ahead of their keys: 1.18 ms instead of 1.82 at 8,192 tokens for the same tile. With slots in
  a row and no table at all it is 1.17, so ranges of slots have no path of their own; bulk copies (TMA) gave 1.21.
- The heads of a group share a tile, so one token of a chunk is a row for each of them: 64 chunks of 16 tokens behind
  512 take 50 us instead of 142.
- Where tiles are too few for the card, programs share what a tile sees, and the last adds up: one token behind 8,192
  takes 30 us instead of 196, and behind 32,768 70 instead of 801.

`deterministic`: a token's result is the same to the bit wherever its prompt is plan_splits, whichever requests are beside it
and whatever `max_q_len` is, so a decode may be a chunk of one token. It costs 142 us instead of 129 for 64 decodes at
2,048, 288 instead of 254 for 256 at 1,024, but 195 instead of 16 for one at 8,192, whose keys are not shared then. The
steps of a sum follow from BLOCK_N and from the rows of a warp, so all entries of one head size and type agree in both.
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

_launch = Launcher(prefill_attention_kernel)


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
    # A rehearsal does not meet every length.
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
    """The operator: Triton or torch, as `use_triton` says."""
    batch = (slot_table, b_row, b_q_start, b_kv_len, max_q_len)
    _operator(q, k_cache, v_cache, *batch, scale, out, deterministic, *options.arguments(), scales)
