"""Selective scan (Mamba, Gu and Dao, 2023): each channel has a state of n numbers with an input-dependent decay.

Token by token of a run, for each channel k with state S:

    step = softplus(dt[t, k] + dt_bias[k])
    S = exp(step * A[k]) * S + step * x[t, k] * b[t]        with A = -exp(a_log)
    out[t, k] = (sum(S * c[t]) + d[k] * x[t, k]) * silu(z[t, k])

Layouts: `x`, `dt`, `z`, `out` `[tokens, channels]` and `b`, `c` `[tokens, n]`, one floating type, unit stride in the
last dimension, any stride between tokens; n is at most 256. `state` `[rows, channels, n]` float32, contiguous; `a_log`,
`d` and `dt_bias` are the layer's (`ScanDynamics`), the new tokens are `Runs`. Sums are float32 in one order: a token's
result is the same to the bit wherever its run is cut, and in a decode as in a chunk.

A thread block of chunks is one warp, so that no token waits at a barrier, and prefetches the next tokens while it
computes; with n = 16 two threads share a channel. A thread block of decodes has one token and four warps.

Called once a layer for decodes and once for chunks, after the GEMMs that make `dt`, `b` and `c`. Raises ValueError for
layouts that the kernel does not read. Bytes floor: (4 * channels + 2 * n) * tokens * element size, and
8 * channels * n for the state of each run. Long prompts are bound by instructions: channels * n exponentials a token.
On an H100 in bfloat16 with 8,192 channels and n = 16: 64 decodes take 28 us, 84 % of copy bandwidth. Measurements:
docs/lab/2026-11-recurrent-layers.md.
"""

# pyright: basic, reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false
from dataclasses import dataclass

import torch
from torch import Tensor

from ..norm.activations import activation, sigmoid
from ..runtime.launch import Launcher, launch_dependents, wait_for_previous
from ..runtime.register import register
from ..runtime.shapes import padded_head_dim, shapes_error
from ..runtime.triton import tl, triton
from ._recurrence import (
    advance,
    decay_rate,
    find_run,
    list_runs,
    load_rows,
    load_vector,
    softplus,
    softplus_torch,
    store_rows,
)
from .runs import Runs

_PARTS = 2
_THREAD_ELEMENTS = 4
"""Adjacent elements of each of the _PARTS tensors in a thread: it loads 16 bytes of the state at a time."""
_AHEAD_BYTES = 16
"""Bytes of a channel's x that are computed while as many are prefetched."""
_DECODE_WARPS = 4


@triton.jit
def _load_tokens(
    x_ptr,
    dt_ptr,
    b_ptr,
    c_ptr,
    z_ptr,
    first,  # int64
    left,  # tokens of the run from there on
    channels,
    inside,
    stride_x_token: tl.constexpr,
    stride_dt_token: tl.constexpr,
    stride_b_token: tl.constexpr,
    stride_c_token: tl.constexpr,
    stride_z_token: tl.constexpr,
    N: tl.constexpr,
    WIDTH: tl.constexpr,
    PARTS: tl.constexpr,
    COUNT: tl.constexpr,
):
    """x, dt, b, c and z of COUNT tokens, zeros past the end of the run."""
    loaded = ()
    for place in tl.static_range(COUNT):
        exists = place < left
        here = exists & inside
        x = tl.load(x_ptr + first * stride_x_token + place * stride_x_token + channels, mask=here, other=0.0)
        dt = tl.load(dt_ptr + first * stride_dt_token + place * stride_dt_token + channels, mask=here, other=0.0)
        z = tl.load(z_ptr + first * stride_z_token + place * stride_z_token + channels, mask=here, other=0.0)
        b = load_vector(b_ptr + first * stride_b_token + place * stride_b_token, exists, N, WIDTH, PARTS)
        c = load_vector(c_ptr + first * stride_c_token + place * stride_c_token, exists, N, WIDTH, PARTS)
        loaded = loaded + ((x, dt, b, c, z),)  # noqa: RUF005 - Triton knows no star here
    return loaded


@triton.jit(do_not_specialize_on_alignment=["rows_ptr", "starts_ptr", "kv_lens_ptr"])
def selective_scan_kernel(
    x_ptr,  # [tokens, CHANNELS]
    dt_ptr,  # [tokens, CHANNELS]
    b_ptr,  # [tokens, N]
    c_ptr,  # [tokens, N]
    z_ptr,  # [tokens, CHANNELS]
    a_log_ptr,  # [CHANNELS, N]
    d_ptr,  # [CHANNELS]
    dt_bias_ptr,  # [CHANNELS]
    state_ptr,  # [rows, CHANNELS, N]
    rows_ptr,  # [runs]
    starts_ptr,  # [runs + 1] or None
    kv_lens_ptr,  # [runs]
    out_ptr,  # [tokens, CHANNELS]
    stride_x_token: tl.constexpr,
    stride_dt_token: tl.constexpr,
    stride_b_token: tl.constexpr,
    stride_c_token: tl.constexpr,
    stride_z_token: tl.constexpr,
    stride_out_token: tl.constexpr,
    CHANNELS: tl.constexpr,
    N: tl.constexpr,
    WIDTH: tl.constexpr,
    PARTS: tl.constexpr,  # WIDTH * PARTS is at least N
    BLOCK: tl.constexpr,
    COUNT: tl.constexpr,
    PDL: tl.constexpr,
):
    """One thread block computes BLOCK channels of one run, COUNT tokens at a time, and prefetches the next COUNT."""
    channels = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = channels < CHANNELS
    skip = tl.load(d_ptr + channels, mask=inside, other=0.0)
    bias = tl.load(dt_bias_ptr + channels, mask=inside, other=0.0)
    a_log, rates = load_rows(a_log_ptr, channels, inside, N, WIDTH, PARTS), ()
    for part in tl.static_range(PARTS):
        rates = rates + (decay_rate(a_log[part]),)  # noqa: RUF005 - as above
    launch_dependents(PDL)
    wait_for_previous(PDL)
    start, length, continued, state_row_ptr = find_run(
        tl.program_id(1), rows_ptr, starts_ptr, kv_lens_ptr, state_ptr, CHANNELS * N
    )
    if length == 0:
        return
    state = load_rows(state_row_ptr, channels, inside & continued, N, WIDTH, PARTS)
    loaded = _load_tokens(
        x_ptr, dt_ptr, b_ptr, c_ptr, z_ptr, start, length, channels, inside, stride_x_token, stride_dt_token,
        stride_b_token, stride_c_token, stride_z_token, N, WIDTH, PARTS, COUNT,
    )  # fmt: skip
    for first in range(0, length, COUNT):
        left = length - first
        coming = _load_tokens(
            x_ptr, dt_ptr, b_ptr, c_ptr, z_ptr, start + first + COUNT, left - COUNT, channels, inside, stride_x_token,
            stride_dt_token, stride_b_token, stride_c_token, stride_z_token, N, WIDTH, PARTS, COUNT,
        )  # fmt: skip
        out_ptrs = out_ptr + (start + first) * stride_out_token + channels
        for place in tl.static_range(COUNT):
            x, dt, b, c, z = loaded[place]
            x = x.to(tl.float32)
            step = tl.where(place < left, softplus(dt.to(tl.float32) + bias), 0.0)
            state, read = advance(state, rates, step[:, None], step * x, b, c, PARTS)
            out = tl.fma(skip, x, read) * activation(z.to(tl.float32), "silu")
            stored = (place < left) & inside
            tl.store(out_ptrs + place * stride_out_token, out.to(out_ptr.dtype.element_ty), mask=stored)
        loaded = coming
    store_rows(state_row_ptr, state, channels, inside, N, WIDTH, PARTS)


_launch = Launcher(selective_scan_kernel, writes=("out", "state:rows"), reads_early=("a_log", "d", "dt_bias"))


@dataclass(frozen=True, slots=True, eq=False)
class ScanDynamics:
    """How the channels of one layer decay. All are float32 and contiguous, and the layer's weights own them."""

    a_log: Tensor
    """[channels, n], the logarithms of decay rates."""
    d: Tensor
    """[channels], the weight of the input in the result."""
    dt_bias: Tensor
    """[channels], added to time steps before the softplus."""


def _check(
    x: Tensor,
    dt: Tensor,
    b: Tensor,
    c: Tensor,
    z: Tensor,
    dynamics: ScanDynamics,
    state: Tensor,
    runs: Runs,
    out: Tensor,
) -> None:
    """Raises ValueError for what the kernel does not read."""
    a_log, rows = dynamics.a_log, runs.rows
    (tokens, channels), n, count = x.shape, a_log.shape[1], rows.shape[0]
    of_type = {"x": x, "dt": dt, "b": b, "c": c, "z": z, "out": out}
    of_float = {"a_log": a_log, "d": dynamics.d, "dt_bias": dynamics.dt_bias, "state": state}
    named = of_type | of_float | {"kv_lens": runs.kv_lens} | ({} if runs.starts is None else {"starts": runs.starts})
    expected = dict.fromkeys(("x", "dt", "z", "out"), (tokens, channels)) | dict.fromkeys(("b", "c"), (tokens, n))
    expected |= {"a_log": (channels, n), "d": (channels,), "dt_bias": (channels,), "kv_lens": (count,)}
    expected |= {"state": (state.shape[0], channels, n), "starts": (count + 1,)}
    if any(tensor.shape != expected[name] for name, tensor in named.items()):
        raise shapes_error("selective_scan", **named)
    if n > 256:
        raise ValueError(f"selective_scan: a channel has {n} numbers, and may have 256")
    if any(tensor.stride(1) != 1 or tensor.dtype != x.dtype for tensor in of_type.values()):
        raise ValueError("selective_scan: x, dt, b, c, z and out must have one type and stride 1 in the last dimension")
    if not all(tensor.is_contiguous() and tensor.dtype == torch.float32 for tensor in of_float.values()):
        raise ValueError("selective_scan: a_log, d, dt_bias and state must be float32 and contiguous")


def selective_scan_triton(
    x: Tensor,
    dt: Tensor,
    b: Tensor,
    c: Tensor,
    z: Tensor,
    dynamics: ScanDynamics,
    state: Tensor,
    runs: Runs,
    out: Tensor,
) -> None:
    """Triton implementation. Raises ValueError for layouts that the kernel does not read."""
    _check(x, dt, b, c, z, dynamics, state, runs, out)
    a_log, rows, starts = dynamics.a_log, runs.rows, runs.starts
    (channels, n), count = a_log.shape, rows.shape[0]
    if x.shape[0] == 0 or count == 0:
        return
    settings = scan_settings(n, x.element_size(), starts is None)
    _launch(
        (triton.cdiv(channels, settings["BLOCK"]), count),
        (x, dt, b, c, z, a_log, dynamics.d, dynamics.dt_bias, state, rows, starts, runs.kv_lens, out),
        tuple(tensor.stride(0) for tensor in (x, dt, b, c, z, out)),
        CHANNELS=channels,
        N=n,
        **settings,
    )


def scan_settings(n: int, element_size: int, decodes: bool) -> dict[str, int]:
    """Launch settings. A channel has the same number of threads in all of them, so that sums have one order."""
    warps, count = (_DECODE_WARPS, 1) if decodes else (1, _AHEAD_BYTES // element_size)
    width = padded_head_dim(n) // _PARTS
    block = 32 * warps * _THREAD_ELEMENTS // width
    return {"WIDTH": width, "PARTS": _PARTS, "BLOCK": block, "COUNT": count, "num_warps": warps}


def selective_scan_torch(
    x: Tensor,
    dt: Tensor,
    b: Tensor,
    c: Tensor,
    z: Tensor,
    dynamics: ScanDynamics,
    state: Tensor,
    runs: Runs,
    out: Tensor,
) -> None:
    """Torch implementation: the CPU path and the reference of the tests. Runs are computed one after the other."""
    rates = -dynamics.a_log.exp()
    for row, begin, end, continued in list_runs(runs):
        run, current = slice(begin, end), state[row] if continued else state[row].zero_()
        inputs, reads, writes, gates = (each[run].float() for each in (x, c, b, z))
        steps = softplus_torch(dt[run].float() + dynamics.dt_bias)
        written, results = steps * inputs, dynamics.d * inputs
        for token in range(end - begin):
            current.mul_(torch.exp(steps[token, :, None] * rates))
            current.addcmul_(written[token, :, None], writes[token])
            results[token] += (current * reads[token]).sum(-1)
        out[run] = results.mul_(gates).mul_(sigmoid(gates))


selective_scan = register(selective_scan_torch, mutates=("state", "out"), triton=selective_scan_triton)
