"""Bars of norms, gated activations, residual streams, and of RoPE with the writes into the KV cache.

Sizes of Llama 3.1 8B and 70B, from one token to a large prefill. Each operator's docstring says which bytes count.
"""

import torch

import text_generation_kernels as kernels

from .bar import Bar, Operator, beside_copy, grid, table
from .pool import filled
from .timing import Plan, Prepared

EPS = 1e-5
POSITIONS = 8192
TOKENS, DRY_TOKENS = (1, 64, 4096, 16384), (1, 8)


def rms_norm(plan: Plan, tokens: int, hidden: int) -> Prepared:
    """Reads x, writes out."""
    num_bytes = 2 * tokens * hidden * plan.dtype.itemsize
    x, out = plan.normal(2, plan.buffers(num_bytes), tokens, hidden)
    weight = torch.ones(hidden, dtype=plan.dtype, device=plan.device)
    return num_bytes, lambda index: kernels.rms_norm(x[index], weight, EPS, out[index])


def add_rms_norm(plan: Plan, tokens: int, hidden: int) -> Prepared:
    """Reads x and residual, writes residual and out."""
    num_bytes = 4 * tokens * hidden * plan.dtype.itemsize
    x, residual, out = plan.normal(3, plan.buffers(num_bytes), tokens, hidden, std=1e-3)
    weight = torch.ones(hidden, dtype=plan.dtype, device=plan.device)
    return num_bytes, lambda index: kernels.add_rms_norm(x[index], residual[index], weight, EPS, out[index])


def act_and_mul(plan: Plan, tokens: int, n: int, activation: str = "silu") -> Prepared:
    """Reads gate and up, writes out."""
    num_bytes = 3 * tokens * n * plan.dtype.itemsize
    buffers = plan.buffers(num_bytes)
    gate_up, out = plan.normal(buffers, tokens, 2 * n), plan.normal(buffers, tokens, n)
    return num_bytes, lambda index: kernels.act_and_mul(gate_up[index], activation, out[index])


def mix_streams(plan: Plan, tokens: int, read: int) -> Prepared:
    """Four streams of Gemma 3n. Reads them and coefficients, writes them; `read` other streams are read besides."""
    streams, hidden = 4, 64 if plan.dry_run else 2048
    num_bytes = tokens * ((2 * streams + read) * hidden * plan.dtype.itemsize + 4 * streams * read)
    buffers = plan.buffers(num_bytes)
    base, out = plan.normal(2, buffers, tokens, streams, hidden)
    x, coefs = plan.normal(buffers, tokens, read, hidden), torch.rand(tokens, streams, read, device=plan.device)
    return num_bytes, lambda index: kernels.mix_streams(base[index], coefs, x[index], out[index])


def stream_coefs(plan: Plan, tokens: int) -> Prepared:
    """Four streams of GLM 5.3. Reads mixes, writes the coefficients with which a sublayer reads and writes streams."""
    streams, size = 4, 24
    num_bytes = tokens * 4 * (size + streams + streams * (streams + 1))
    buffers = plan.buffers(num_bytes)
    mixes = torch.randn(buffers, tokens, size, device=plan.device)
    base, scale = torch.randn(size, device=plan.device), torch.ones(3, device=plan.device)
    into = torch.empty(buffers, tokens, 1, streams, device=plan.device)
    back = torch.empty(buffers, tokens, streams, streams + 1, device=plan.device)
    return num_bytes, lambda index: kernels.stream_coefs(mixes[index], base, scale, EPS, 20, into[index], back[index])


def qkv_postprocess(plan: Plan, tokens: int, heads: int, kv_heads: int, head_dim: int) -> Prepared:
    """Reads q, k and v, writes q and both caches. Slots are scattered over the pool and positions over the table."""
    size = (heads + 2 * kv_heads) * head_dim
    num_bytes = 2 * tokens * size * plan.dtype.itemsize
    buffers = plan.buffers(num_bytes)
    qkv = plan.normal(buffers, tokens, size)
    angles = torch.rand(POSITIONS, head_dim // 2, device=plan.device) * 6
    cos_sin = torch.cat((angles.cos(), angles.sin()), dim=-1)
    positions = torch.randint(POSITIONS, (buffers, tokens), device=plan.device)
    slots = torch.randperm(buffers * tokens, device=plan.device).view(buffers, tokens)
    cache = filled(plan, buffers * tokens, kv_heads, head_dim)
    steps = [kernels.NewTokens(cos_sin, positions[index], slots[index]) for index in range(buffers)]

    def call(index: int) -> None:
        kernels.qkv_postprocess(qkv[index], kernels.NO_PROLOGUE, steps[index], cache)

    return num_bytes, call


_HIDDEN = (grid(hidden=(4096, 8192), tokens=TOKENS), grid(hidden=(64,), tokens=DRY_TOKENS))
_ACTIVATIONS = (
    grid(tokens=TOKENS, n=[14336], activation=["silu"])
    + grid(tokens=[4096], n=[14336], activation=["gelu", "gelu_tanh"]),
    grid(tokens=DRY_TOKENS, n=[96], activation=["silu"]) + grid(tokens=[8], n=[96], activation=["gelu", "gelu_tanh"]),
)
_STREAMS = (grid(tokens=TOKENS, read=(1, 4)), grid(tokens=DRY_TOKENS, read=(1, 4)))
# Of the 8B whole, and on one of eight ranks.
_HEADS = (
    table("heads kv_heads head_dim tokens", *((*heads, n) for heads in ((32, 8, 128), (4, 1, 128)) for n in TOKENS)),
    grid(heads=[4], kv_heads=[2], head_dim=[16], tokens=DRY_TOKENS),
)
BARS = {
    "rms_norm": Bar("RMSNorm", beside_copy(Operator(rms_norm, *_HIDDEN))),
    "add_rms_norm": Bar("residual addition and RMSNorm", beside_copy(Operator(add_rms_norm, *_HIDDEN))),
    "act_and_mul": Bar("gated activations", beside_copy(Operator(act_and_mul, *_ACTIVATIONS))),
    "mix_streams": Bar("residual streams with coefficients", beside_copy(Operator(mix_streams, *_STREAMS))),
    "stream_coefs": Bar(
        "coefficients of residual streams",
        beside_copy(Operator(stream_coefs, grid(tokens=TOKENS), grid(tokens=DRY_TOKENS))),
    ),
    "qkv_postprocess": Bar("RoPE, and writes into the KV cache", beside_copy(Operator(qkv_postprocess, *_HEADS))),
}
PREPARE = {each.__name__: each for each in (rms_norm, add_rms_norm, act_and_mul, qkv_postprocess)}
"""What `tune.py` times."""
