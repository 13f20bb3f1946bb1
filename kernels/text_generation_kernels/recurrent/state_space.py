"""State space duality (Mamba 2, Dao and Gu, 2024): heads with a scalar decay each.

Token by token of a run, for each head h with state S `[p, n]`:

    step = clamp(softplus(dt[t, h] + dt_bias[h]), low, high)
    S = exp(step * A[h]) * S + outer(step * x[t, h], b[t, g])        with A = -exp(a_log), g = h // (heads / groups)
    out[t, h] = S c[t, g] + d[h] * x[t, h]

Layouts: `x`, `out` `[tokens, heads, p]` and `b`, `c` `[tokens, groups, n]`, contiguous but for any stride between
tokens; `dt` `[tokens, heads]`, unit stride in the last dimension; one floating type for these; n is at most 256.
`state` `[rows, heads, p, n]` float32, contiguous; `a_log`, `d`, `dt_bias` and the bounds of time steps are the layer's
(`SpaceDynamics`), the new tokens are `Runs`.

Chunks of 16-bit types are computed by GEMMs in blocks of tokens, one block of a run after the other. With L the sums of
step * A within a block up to each token, L_end the last of them, and S the state before the block:

    out[t] = sum over s <= t of exp(L[t] - L[s]) * (c[t] . b[s]) * step[s] * x[s] + exp(L[t]) * S c[t] + d * x[t]
    S = exp(L_end) * S + sum over s of exp(L_end - L[s]) * step[s] * outer(x[s], b[s])

No exponent is positive. GEMM operands, the state among them, are rounded to the type of `x`; the state itself stays
float32. Everything else goes token by token in float32: decodes, short chunks, float32 types, and everything where
`deterministic`. A token's result is then the same to the bit wherever its run is cut, in a decode as in a chunk, and
whatever else is in the step.

Called once a layer for decodes and once for chunks, after the causal convolution. Raises ValueError for layouts that
the kernels do not read. Bytes floor: (2 * heads * p + 2 * groups * n + heads) * tokens * element size, and
8 * heads * p * n for the state of each run, nearly all of it in a decode. On an H100 in bfloat16 with 128 heads of 64,
n = 128: 64 decodes take 193 us, 93 % of copy bandwidth. Measurements: docs/lab/2026-11-recurrent-layers.md.
"""

# pyright: basic, reportArgumentType=false, reportCallIssue=false
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ..runtime.device import shared_kib
from ..runtime.launch import Launcher, compiling_only
from ..runtime.register import register
from ..runtime.settings import nearest
from ..runtime.shapes import padded_head_dim, shapes_error
from ..runtime.triton import triton
from ._recurrence import list_runs, softplus_torch
from ._state_space_kernels import state_space_blocks_kernel, state_space_tokens_kernel
from .runs import Runs

_WIDTH = 16
"""Width of the tensors that a state is cut into, of which a thread holds four adjacent elements."""
_WARP_ELEMENTS = 2048
"""Most elements of the state in a warp."""
_WARP_ROWS = 16
"""Most rows of a warp: with 32, one for each thread, Triton would make threads exchange the x of each token."""
_DECODE_WARPS = 4
_AHEAD_BYTES = 512
"""Bytes of b that are computed while as many are prefetched, four tokens at most."""
_LEAST_LEN = 8
"""Length of the longest run from which blocks are used."""

_launch_tokens = Launcher(
    state_space_tokens_kernel, writes=("out", "state:rows"), reads_early=("a_log", "d", "dt_bias")
)
_launch_blocks = Launcher(
    state_space_blocks_kernel, writes=("out", "state:rows"), reads_early=("a_log", "d", "dt_bias")
)


@dataclass(frozen=True, slots=True, eq=False)
class SpaceDynamics:
    """How the heads of one layer decay. Tensors are float32 and contiguous, and the layer's weights own them."""

    a_log: Tensor
    """[heads], the logarithms of decay rates."""
    d: Tensor
    """[heads], the weight of the input in the result."""
    dt_bias: Tensor
    """[heads], added to time steps before the softplus."""
    low: float = 0.0
    """Least time step."""
    high: float = math.inf
    """Largest time step."""


def _check(
    x: Tensor,
    dt: Tensor,
    b: Tensor,
    c: Tensor,
    dynamics: SpaceDynamics,
    state: Tensor,
    runs: Runs,
    out: Tensor,
) -> None:
    """Raises ValueError for what the kernels do not read."""
    (tokens, heads, p), (_, groups, n), count = x.shape, b.shape, runs.rows.shape[0]
    of_type = {"x": x, "b": b, "c": c, "out": out}
    of_float = {"a_log": dynamics.a_log, "d": dynamics.d, "dt_bias": dynamics.dt_bias}
    named = of_type | of_float | {"dt": dt, "state": state, "kv_lens": runs.kv_lens}
    named |= {} if runs.starts is None else {"starts": runs.starts}
    expected = dict.fromkeys(("x", "out"), (tokens, heads, p)) | dict.fromkeys(("b", "c"), (tokens, groups, n))
    expected |= dict.fromkeys(of_float, (heads,)) | {"dt": (tokens, heads), "state": (state.shape[0], heads, p, n)}
    expected |= {"kv_lens": (count,), "starts": (count + 1,)}
    if heads % groups or any(tensor.shape != expected[name] for name, tensor in named.items()):
        raise shapes_error("state_space", **named)
    if n > 256:
        raise ValueError(f"state_space: a row of a state has {n} numbers, and may have 256")
    if dt.stride(1) != 1 or not all(tensor[:1].squeeze(0).is_contiguous() for tensor in of_type.values()):
        raise ValueError("state_space: x, dt, b, c and out must be contiguous but for the stride between tokens")
    if any(tensor.dtype != x.dtype for tensor in (dt, *of_type.values())):
        raise ValueError("state_space: x, dt, b, c and out must have one type")
    if not all(tensor.is_contiguous() and tensor.dtype == torch.float32 for tensor in (*of_float.values(), state)):
        raise ValueError("state_space: a_log, d, dt_bias and state must be float32 and contiguous")


def state_space_triton(
    x: Tensor,
    dt: Tensor,
    b: Tensor,
    c: Tensor,
    dynamics: SpaceDynamics,
    state: Tensor,
    runs: Runs,
    out: Tensor,
    deterministic: bool,
) -> None:
    """Triton implementation. Nothing is read back from the device.

    Raises ValueError for layouts that the kernels do not read.
    """
    _check(x, dt, b, c, dynamics, state, runs, out)
    (tokens, heads, p), (_, groups, n), count = x.shape, b.shape, runs.rows.shape[0]
    if tokens == 0 or count == 0:
        return
    weights, starts = (dynamics.a_log, dynamics.d, dynamics.dt_bias), runs.starts
    pointers = (x, dt, b, c, *weights, state, runs.rows, starts, runs.kv_lens, out)
    bounds = dynamics.low, dynamics.high
    strides = tuple(tensor.stride(0) for tensor in (x, dt, b, c, out))
    of_model = {"HEADS": heads, "GROUP": heads // groups, "P": p, "N": n}
    in_blocks = starts is not None and not deterministic and x.element_size() == 2
    # A compile dry run does not meet every length.
    if in_blocks and (compiling_only() or runs.max_len >= _LEAST_LEN):
        settings = block_settings(n, p, shared_kib(x.device))
        grid = (heads * triton.cdiv(p, settings["BLOCK_P"]), count)
        _launch_blocks(grid, pointers, strides, bounds, **of_model, **settings)
        if not compiling_only():
            return
    settings = token_settings(n, p, x.element_size(), starts is None)
    grid = (heads * triton.cdiv(p, settings["BLOCK_P"]), count)
    _launch_tokens(grid, pointers, strides, bounds, **of_model, **settings)


def token_settings(n: int, p: int, element_size: int, decodes: bool) -> dict[str, int]:
    """Launch settings of the token-by-token kernel.

    A thread block of chunks is one warp, so that no token waits at a barrier. Decodes have one token, and thread blocks
    of several warps where there are enough rows. Threads hold four adjacent elements in both, so that sums have one
    order.
    """
    block_n = padded_head_dim(n)
    settings = {"WIDTH": _WIDTH, "PARTS": block_n // _WIDTH}
    rows, block_p = min(_WARP_ROWS, _WARP_ELEMENTS // block_n), 1 << (p - 1).bit_length()
    if decodes:
        block_p = min(block_p, rows * _DECODE_WARPS)
        least = 32 * 4 // _WIDTH
        return settings | {"BLOCK_P": block_p, "COUNT": 1, "num_warps": max(1, min(block_p // least, _DECODE_WARPS))}
    count = max(1, min(4, _AHEAD_BYTES // (block_n * element_size)))
    return settings | {"BLOCK_P": min(block_p, rows), "COUNT": count, "num_warps": 1}


def block_settings(n: int, p: int, kib: int) -> dict[str, int]:
    """Launch settings of the blocks kernel, on a card with `kib` of shared memory for a thread block."""
    block_n = padded_head_dim(n)
    settings = dict(nearest("state_space", shared_kib=kib, n=block_n))
    return settings | {"BLOCK_N": block_n, "BLOCK_P": min(settings["BLOCK_P"], padded_head_dim(p))}


def state_space_torch(
    x: Tensor,
    dt: Tensor,
    b: Tensor,
    c: Tensor,
    dynamics: SpaceDynamics,
    state: Tensor,
    runs: Runs,
    out: Tensor,
    deterministic: bool,  # noqa: ARG001 - it always is
) -> None:
    """Torch implementation: the CPU path and the reference of the tests. Runs are computed one after the other."""
    rates, of_group = -dynamics.a_log.exp(), (b.shape[1], x.shape[1] // b.shape[1])
    for row, begin, end, continued in list_runs(runs):
        run, current = slice(begin, end), state[row] if continued else state[row].zero_()
        current = current.unflatten(0, of_group)
        inputs, reads, writes = (each[run].float() for each in (x, c, b))
        steps = softplus_torch(dt[run].float() + dynamics.dt_bias).clamp_(dynamics.low, dynamics.high)
        remaining = torch.exp(steps * rates).unflatten(1, of_group)
        written, results = ((each[..., None] * inputs).unflatten(1, of_group) for each in (steps, dynamics.d))
        for token in range(end - begin):
            current.mul_(remaining[token, ..., None, None])
            current.addcmul_(written[token, ..., None], writes[token, :, None, None])
            results[token] += (current * reads[token, :, None, None]).sum(-1)
        out[run] = results.flatten(1, 2)


state_space = register(state_space_torch, mutates=("state", "out"), triton=state_space_triton)
