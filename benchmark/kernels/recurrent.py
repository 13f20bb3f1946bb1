"""Bars of recurrent mixers and of what stands around them, beside the bytes that they move.

`recurrent_parts`: sizes of Qwen3-Next: `causal_conv` of 8,192 channels, `gated_norm` of 32 groups of 128,
`sigmoid_gate` of 4,096 columns; and `gated_norm` of one group of 8,192, as Mamba 2 has it. Up to 256 tokens are
decodes, more are chunks.
`gated_delta`: sizes of Qwen3-Next: 32 heads of 128 keys by 128 values, and 16 key heads. `one by one`: token by token,
as decodes are computed, and prompts in deterministic mode; `by blocks`: as prompts are computed otherwise.
`kimi_delta`: sizes of Kimi Linear: 32 heads of 128 by 128, whose channels decay by themselves; otherwise as
`gated_delta`.
`mamba`: Mamba 1 with 8,192 channels of 16 numbers, and Nemotron-H 8B: 128 heads of 64 times 128 numbers, 8 groups.
Decodes of several rows, and prompts that begin their requests. `deterministic` goes token after token.
`lightning`: the same kernels with the sizes of Ling 2.6 Flash: 32 heads of 128 times 128 numbers, each with queries and
keys of its own, and one time step that all tokens have.
"""

import functools
from dataclasses import replace

import torch
from torch import Tensor

import text_generation_kernels as kernels

from .bar import Bar, Operator, beside_floor, grid, table
from .timing import Plan, Prepared

TAPS, EPS, MOST_DECODES = 4, 1e-6, 256
CHANNELS = 8192


def causal_conv(plan: Plan, tokens: int, runs: int) -> Prepared:
    """Reads x, writes out, and reads and writes a state for each run."""
    channels = 64 if plan.dry_run else CHANNELS
    num_bytes = 2 * (tokens + runs * (TAPS - 1)) * channels * plan.dtype.itemsize
    buffers, lengths = plan.buffers(num_bytes), tokens // runs
    x, out = plan.normal(2, buffers, tokens, channels)
    states, order = plan.normal(buffers, runs, TAPS - 1, channels), torch.randperm(runs, device=plan.device)
    weight, bias = plan.normal(TAPS, channels).t(), plan.normal(channels)
    starts = starts_of(plan, runs, lengths) if tokens > MOST_DECODES else None
    kv_lens = torch.full((runs,), 10 + lengths, dtype=torch.int32, device=plan.device)
    where = kernels.Runs(order, starts, kv_lens, lengths)

    def call(index: int) -> None:
        kernels.causal_conv(x[index], weight, bias, states[index], where, out[index])

    return num_bytes, call


def starts_of(plan: Plan, runs: int, length: int) -> Tensor:
    """Where runs of one length begin."""
    return (length * torch.arange(runs + 1, device=plan.device)).int()


def gated_norm(plan: Plan, tokens: int, one_group: bool) -> Prepared:
    """Reads x and gate, writes out."""
    groups, size = (4, 16) if plan.dry_run else (32, 128)
    if one_group:
        groups, size = 1, 64 if plan.dry_run else CHANNELS
    num_bytes = 3 * tokens * groups * size * plan.dtype.itemsize
    x, gates, out = plan.normal(3, plan.buffers(num_bytes), tokens, groups, size)
    weight = plan.normal(size)
    return num_bytes, lambda index: kernels.gated_norm(x[index], gates[index], weight, EPS, one_group, out[index])


def sigmoid_gate(plan: Plan, tokens: int) -> Prepared:
    """Reads x and gate, writes out."""
    n = 32 if plan.dry_run else 4096
    num_bytes = 3 * tokens * n * plan.dtype.itemsize
    x, gates, out = plan.normal(3, plan.buffers(num_bytes), tokens, n)
    return num_bytes, lambda index: kernels.sigmoid_gate(x[index], gates[index], out[index])


def gated_delta(plan: Plan, runs: int, tokens_each: int, way: str) -> Prepared:
    """Reads and writes states, reads qkv and writes out of each token. Runs of one token are decodes."""
    heads, key_heads, key_dim, value_dim = (2, 1, 8, 8) if plan.dry_run else (32, 16, 128, 128)
    tokens, width = runs * tokens_each, 2 * key_heads * key_dim + heads * value_dim
    num_bytes = 8 * runs * heads * key_dim * value_dim + tokens * (width + heads * value_dim) * plan.dtype.itemsize
    buffers = plan.buffers(num_bytes)
    qkv, gates = plan.normal(buffers, tokens, width), plan.normal(tokens, 2 * heads)
    out = torch.empty((buffers, tokens, heads, value_dim), dtype=plan.dtype, device=plan.device)
    states = torch.zeros(buffers, runs, heads, key_dim, value_dim, device=plan.device)
    rate, bias = torch.zeros(heads, device=plan.device), torch.full((heads,), -3.0, device=plan.device)
    order = torch.randperm(runs, device=plan.device)
    starts = None if tokens_each == 1 else starts_of(plan, runs, tokens_each)
    kv_lens = torch.full((runs,), 10 + tokens_each, dtype=torch.int32, device=plan.device)
    # Short runs are computed one by one as well, were they not said to be longer.
    max_len = 1 << 20 if way == "by blocks" else tokens_each

    where = kernels.Runs(order, starts, kv_lens, max_len)

    def call(index: int) -> None:
        kernels.gated_delta(qkv[index], gates, rate, bias, states[index], where, out[index], way == "one by one")

    return num_bytes, call


def kimi_delta(plan: Plan, runs: int, tokens_each: int, way: str) -> Prepared:
    """As `gated_delta`, and reads the gates of each channel."""
    heads, size = (2, 8) if plan.dry_run else (32, 128)
    tokens, width = runs * tokens_each, heads * size
    num_bytes = 8 * runs * width * size + tokens * 5 * width * plan.dtype.itemsize
    buffers = plan.buffers(num_bytes)
    qkv, betas = plan.normal(buffers, tokens, 3 * width), plan.normal(tokens, heads)
    gates = plan.normal(buffers, tokens, width)
    out = torch.empty((buffers, tokens, heads, size), dtype=plan.dtype, device=plan.device)
    states = torch.zeros(buffers, runs, heads, size, size, device=plan.device)
    rate, bias = torch.zeros(heads, device=plan.device), torch.full((heads, size), -3.0, device=plan.device)
    starts = None if tokens_each == 1 else starts_of(plan, runs, tokens_each)
    kv_lens = torch.full((runs,), 10 + tokens_each, dtype=torch.int32, device=plan.device)
    max_len = 1 << 20 if way == "by blocks" else tokens_each
    where = kernels.Runs(torch.randperm(runs, device=plan.device), starts, kv_lens, max_len)

    def call(index: int) -> None:
        of_model = (qkv[index], betas, gates[index], rate, bias)
        kernels.kimi_delta(*of_model, states[index], where, out[index], way == "one by one")

    return num_bytes, call


def runs_of(plan: Plan, tokens: int, runs: int) -> kernels.Runs:
    """Decodes, as many as tokens, or one prompt."""
    rows = torch.randperm(runs, device=plan.device)
    if runs == tokens:
        return kernels.Runs(rows, None, torch.full_like(rows, 10, dtype=torch.int32), 1)
    starts = torch.tensor([0, tokens], dtype=torch.int32, device=plan.device)
    return kernels.Runs(rows, starts, starts[1:], tokens)


def mamba_weights(plan: Plan, *shape: int) -> tuple[Tensor, Tensor, Tensor]:
    """a_log, d and dt_bias. Steps are about 0.1."""
    a_log, d, bias = (plan.normal(*size, dtype=torch.float32) for size in (shape, shape[:1], shape[:1]))
    return a_log, d, bias.sub_(2)


def selective_scan(plan: Plan, tokens: int, runs: int) -> Prepared:
    """Reads x, dt, z, b and c, writes out, and reads the state of a decode and writes that of each run."""
    channels, n = (40, 4) if plan.dry_run else (CHANNELS, 16)
    state_bytes = runs * channels * n * 4 * (2 if runs == tokens else 1)
    num_bytes = tokens * (4 * channels + 2 * n) * plan.dtype.itemsize + state_bytes
    buffers, where = plan.buffers(num_bytes), runs_of(plan, tokens, runs)
    x, dt, z, out = plan.normal(4, buffers, tokens, channels)
    b, c = plan.normal(2, buffers, tokens, n)
    states = plan.normal(buffers, runs, channels, n, dtype=torch.float32)
    dynamics = kernels.ScanDynamics(*mamba_weights(plan, channels, n))

    def call(index: int) -> None:
        inputs = (x[index], dt[index], b[index], c[index], z[index])
        kernels.selective_scan(*inputs, dynamics, states[index], where, out[index])

    return num_bytes, call


def gated_lru(plan: Plan, tokens: int, runs: int) -> Prepared:
    """Of RecurrentGemma 2B: reads x, both gates and z, writes out, and the states as `selective_scan`."""
    blocks, width = (2, 8) if plan.dry_run else (10, 256)
    channels = blocks * width
    state_bytes = runs * channels * 4 * (2 if runs == tokens else 1)
    num_bytes = tokens * 5 * channels * plan.dtype.itemsize + state_bytes
    buffers, where = plan.buffers(num_bytes), runs_of(plan, tokens, runs)
    x, z, out = plan.normal(3, buffers, tokens, channels)
    gates = plan.normal(buffers, tokens, 2 * channels)
    states = plan.normal(buffers, runs, channels, dtype=torch.float32)
    rate, bias = plan.normal(channels, dtype=torch.float32).abs_().neg_(), plan.normal(2, channels, dtype=torch.float32)
    dynamics = kernels.LruDynamics(rate, bias, width)

    def call(index: int) -> None:
        kernels.gated_lru(x[index], gates[index], z[index], dynamics, states[index], where, out[index])

    return num_bytes, call


def state_space(plan: Plan, tokens: int, runs: int, deterministic: bool = False, lightning: bool = False) -> Prepared:
    """As `selective_scan`, without z. With `lightning` no time step is read either."""
    heads, p, groups, n = (4, 6, 2, 4) if plan.dry_run else (128, 64, 8, 128)
    if lightning:
        heads, p, groups, n = (2, 8, 2, 8) if plan.dry_run else (32, 128, 32, 128)
    state_bytes = runs * heads * p * n * 4 * (2 if runs == tokens else 1)
    steps = 0 if lightning else heads
    num_bytes = tokens * (2 * heads * p + 2 * groups * n + steps) * plan.dtype.itemsize + state_bytes
    buffers, where = plan.buffers(num_bytes), runs_of(plan, tokens, runs)
    x, out = plan.normal(2, buffers, tokens, heads, p)
    b, c = plan.normal(2, buffers, tokens, groups, n)
    dt = plan.normal(buffers, tokens, heads)
    states = plan.normal(buffers, runs, heads, p, n, dtype=torch.float32)
    dynamics = kernels.SpaceDynamics(*mamba_weights(plan, heads))
    if lightning:
        dt = plan.normal(heads).as_strided((buffers, tokens, heads), (0, 0, 1))
        dynamics = replace(dynamics, low=n**-0.5, high=n**-0.5)

    def call(index: int) -> None:
        inputs = (x[index], dt[index], b[index], c[index])
        kernels.state_space(*inputs, dynamics, states[index], where, out[index], deterministic)

    return num_bytes, call


_TOKENS = (grid(tokens=(1, 64, 256, 8192)), grid(tokens=(1, 8)))
_DELTA = [(1, 64), (1, 512), (1, 2048), (1, 8192), (4, 2048), (64, 16)]
_WAYS = ("one by one", "by blocks")
_DELTA_STEPS = (
    grid(runs=(1, 8, 64, 256), tokens_each=[1], way=_WAYS[:1])
    + table("runs tokens_each way", *((*size, way) for size in _DELTA for way in _WAYS)),
    grid(runs=(1, 2), tokens_each=[1], way=_WAYS[:1]) + grid(runs=[1], tokens_each=[3], way=_WAYS),
)
_PROMPTS = (grid(tokens=(512, 2048, 8192), runs=[1]), grid(tokens=[20], runs=[1]))
_STEPS = (
    table("tokens runs", (1, 1), (64, 64), (256, 256)) + _PROMPTS[0],
    table("tokens runs", (1, 1), (3, 3)) + _PROMPTS[1],
)
BARS = {
    "recurrent_parts": Bar(
        "convolution, gated norm and gate around recurrent mixers",
        beside_floor(
            Operator(
                causal_conv,
                table("tokens runs", (1, 1), (64, 64), (256, 256), (8192, 1), (8192, 256)),
                table("tokens runs", (1, 1), (300, 2)),
                "causal_conv",
            ),
            Operator(functools.partial(gated_norm, one_group=False), *_TOKENS, "gated_norm"),
            Operator(functools.partial(gated_norm, one_group=True), *_TOKENS, "gated_norm of one group"),
            Operator(sigmoid_gate, *_TOKENS, "sigmoid_gate"),
        ),
    ),
    "gated_delta": Bar(
        "the gated delta rule of decodes and prompts",
        beside_floor(Operator(gated_delta, *_DELTA_STEPS)),
    ),
    "kimi_delta": Bar(
        "Kimi delta attention of decodes and prompts",
        beside_floor(Operator(kimi_delta, *_DELTA_STEPS)),
    ),
    "mamba": Bar(
        "the recurrences of Mamba 1 and 2",
        beside_floor(
            Operator(selective_scan, *_STEPS, "selective_scan"),
            Operator(state_space, *_STEPS, "state_space"),
            Operator(functools.partial(state_space, deterministic=True), *_PROMPTS, "state_space, deterministic"),
        ),
    ),
    "gated_lru": Bar("the gated linear recurrent units of RecurrentGemma", beside_floor(Operator(gated_lru, *_STEPS))),
    "lightning": Bar(
        "lightning attention of decodes and prompts",
        beside_floor(Operator(functools.partial(state_space, lightning=True), *_STEPS)),
    ),
}
