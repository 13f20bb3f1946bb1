"""Single-token decode attention fused with `qkv_postprocess`: RoPE, KV store and split-KV attention in one kernel.

    qkv_postprocess(qkv, ...), then decode_attention(queries of qkv, ...)

The thread block with the end of a context normalises and rotates the new key, stores it with the new value, and attends
to both from registers. Results are as close to the formula as those of the two operators, but not the same to the bit.
`qkv` is unspecified afterwards. First positions are prefetched before the wait for the QKV GEMV; dependents, which
prefetch megabytes of weights, are launched after these loads, or, where most SMs read positions, at the end.

Layouts: those of `qkv_postprocess` and `decode_attention` for one token; the cache holds values, not codes, and K and V
have one head size.

Called once a layer in a step of a single token. Bytes floor: that of `decode_attention`. Measurements:
docs/lab/2026-11-single-token-decode.md.
"""

# pyright: basic, reportArgumentType=false
from torch import Tensor

from ..runtime.constants import LOG2_E
from ..runtime.device import num_sms, shared_kib
from ..runtime.launch import Launcher
from ..runtime.register import register
from ..runtime.settings import nearest
from ..runtime.shapes import padded_head_dim
from ..runtime.triton import triton
from ._chunking import Chunking
from ._decode_torch import decode_attention_torch
from ._token_attention_kernel import token_attention_kernel
from .attention_options import NO_OPTIONS, AttentionOptions
from .kv_cache import KvCache
from .new_tokens import NewTokens
from .qkv_postprocess import check_qkv, qkv_postprocess_torch
from .qkv_prologue import QkvPrologue
from .requests import Decodes

_launch = Launcher(
    token_attention_kernel,
    writes=("out", "partial", "partial_log_sum", "k_cache:newest", "v_cache:newest"),
    reads_early=(
        "b_row",
        "b_kv_len",
        "position",
        "slot",
        "cos_sin",
        "q_norm",
        "k_norm",
        "slot_table",
        "k_cache:older",
        "v_cache:older",
    ),
)


def token_attention_triton(
    qkv: Tensor,
    prologue: QkvPrologue,
    tokens: NewTokens,
    cache: KvCache,
    batch: Decodes,
    scale: float,
    out: Tensor,
    options: AttentionOptions = NO_OPTIONS,
) -> None:
    """Triton implementation. Raises ValueError for layouts that the kernel does not read.

    `tokens`, rows and lengths of `batch`, and keys and values of earlier positions are read while the previous kernel
    may still run, see `decode_attention`.
    """
    if cache.scales is not None:
        raise ValueError("token_attention: the cache must hold values, not codes")
    check_qkv(qkv, prologue, tokens, cache)
    k_cache, v_cache, cos_sin, slot_table = cache.k, cache.v, tokens.cos_sin, batch.slot_table
    _, kv_heads, head_dim = k_cache.shape
    heads, window = out.shape[1], options.window
    if len(qkv) != 1 or not out.is_contiguous() or slot_table.stride(1) != 1:
        raise ValueError("token_attention: qkv must hold one token, and out and rows of the slot table be contiguous")
    block_d = padded_head_dim(head_dim)
    sizes = {"head_dim": block_d, "element_bytes": qkv.element_size()}
    config = dict(nearest("token_attention", shared_kib=shared_kib(qkv.device), **sizes))
    merge_warps = config.pop("merge_warps")
    resident = config.pop("resident") * num_sms(qkv.device) // kv_heads
    chunks = Chunking.of(out, batch.max_kv_len, resident, resident, config.pop("min_chunk"), False, window)
    group = heads // kv_heads
    _launch(
        (kv_heads, chunks.items),
        (
            qkv, prologue.bias, prologue.q_norm, prologue.k_norm, cos_sin, tokens.positions, tokens.slots, k_cache,
            v_cache, slot_table, batch.rows, batch.kv_lens, options.sinks, options.slopes, out, chunks.partial,
            chunks.partial_log_sum,
        ),
        (cos_sin.stride(0), *k_cache.stride()[:2], *v_cache.stride()[:2], slot_table.stride(0)),
        (prologue.norm_eps, scale * LOG2_E, *chunks.planned),
        GROUP=group,
        HEAD_DIM=head_dim,
        BLOCK_D=block_d,
        BLOCK_G=max(16, triton.next_power_of_2(group)),
        NORM_OF_EACH_HEAD=prologue.q_norm is not None and prologue.q_norm.dim() == 2,
        NORM_AFTER_ROPE=prologue.norm_after_rope,
        SOFTCAP=options.softcap,
        **chunks.constants,
        **config,
    )  # fmt: skip
    chunks.merge(batch.kv_lens, options.sinks, out, block_d, 16, merge_warps)


def token_attention_torch(
    qkv: Tensor,
    prologue: QkvPrologue,
    tokens: NewTokens,
    cache: KvCache,
    batch: Decodes,
    scale: float,
    out: Tensor,
    options: AttentionOptions = NO_OPTIONS,
) -> None:
    """Torch implementation: the CPU path and the reference of the tests."""
    qkv_postprocess_torch(qkv, prologue, tokens, cache)
    decode_attention_torch(_queries(qkv, out), cache, batch, scale, out, False, options)


def _queries(qkv: Tensor, out: Tensor) -> Tensor:
    """[1, heads, head_dim]"""
    return qkv[:, : out.shape[1] * out.shape[2]].view(out.shape)


token_attention = register(
    token_attention_torch, mutates=("qkv", "cache_k", "cache_v", "out"), triton=token_attention_triton
)
