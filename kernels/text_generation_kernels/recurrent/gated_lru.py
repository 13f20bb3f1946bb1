"""Real-gated linear recurrent unit (RG-LRU, De et al., 2024): each channel has a state of one number.

Token by token of a run, for each channel k with state S:

    r = sigmoid(gates[t, k, 0] + bias[0, k]),  i = sigmoid(gates[t, k, 1] + bias[1, k])
    a = exp(rate[k] * r)                        with rate < 0
    S = a * S + sqrt(1 - a^2) * i * x[t, k]     and S = i * x[t, k] for the first token of a request
    out[t, k] = S * gelu_tanh(z[t, k])

Layouts: `x`, `z`, `out` `[tokens, channels]` and `gates` `[tokens, 2 * channels]`, one floating type, unit stride in
the last dimension, any stride between tokens. Gates lie in blocks of `width` channels: for each block, all r, then all
i. `state` `[rows, channels]` float32, contiguous; `rate` and `bias` are the layer's (`LruDynamics`), the new tokens are
`Runs`. All is float32 in one order: a token's result is the same to the bit wherever its run is cut, and in a decode as
in a chunk.

A thread block has one warp of chunks, four of decodes, a channel a thread, and loads the next tokens while it computes.

Called once a layer for decodes and once for chunks, after the GEMMs that make `gates`. Raises ValueError for layouts
that the kernel does not read. Bytes floor: 5 * channels * tokens * element size, and 8 * channels for the state of each
run.
"""

# pyright: basic, reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false
from dataclasses import dataclass

import torch
from torch import Tensor

from ..norm.activations import activation, sigmoid
from ..runtime.constants import LOG2_E
from ..runtime.launch import Launcher, launch_dependents, wait_for_previous
from ..runtime.register import register
from ..runtime.shapes import shapes_error
from ..runtime.triton import tl, triton
from ._recurrence import find_run, list_runs
from .runs import Runs

_LOG2_E = tl.constexpr(LOG2_E)
_AHEAD_BYTES = 16
"""Bytes of a channel's x that are computed while as many are prefetched."""
_DECODE_WARPS = 4


@triton.jit
def _load_tokens(
    x_ptr,
    gates_ptr,
    z_ptr,
    first,  # int64
    left,  # tokens of the run from there on
    channels,
    inside,
    stride_x_token: tl.constexpr,
    stride_gates_token: tl.constexpr,
    stride_z_token: tl.constexpr,
    WIDTH: tl.constexpr,
    COUNT: tl.constexpr,
):
    """x, both gates and z of COUNT tokens, zeros past the end of the run."""
    gates = gates_ptr + channels + channels // WIDTH * WIDTH
    loaded = ()
    for place in tl.static_range(COUNT):
        here = (place < left) & inside
        x = tl.load(x_ptr + (first + place) * stride_x_token + channels, mask=here, other=0.0)
        r = tl.load(gates + (first + place) * stride_gates_token, mask=here, other=0.0)
        i = tl.load(gates + (first + place) * stride_gates_token + WIDTH, mask=here, other=0.0)
        z = tl.load(z_ptr + (first + place) * stride_z_token + channels, mask=here, other=0.0)
        loaded = loaded + ((x, r, i, z),)  # noqa: RUF005 - Triton knows no star here
    return loaded


@triton.jit
def _kept(twice):
    """sqrt(1 - exp(-twice)) of float32 from 0 on, precise for small ones too: there 1 - exp(-y) is four terms of its
    series.
    """
    series = twice * (1.0 - twice * 0.5 * (1.0 - twice / 3.0 * (1.0 - twice * 0.25)))
    return tl.sqrt(tl.where(twice < 0.03, series, 1.0 - tl.exp2(-twice * _LOG2_E)))


@triton.jit(do_not_specialize_on_alignment=["rows_ptr", "starts_ptr", "kv_lens_ptr"])
def gated_lru_kernel(
    x_ptr,  # [tokens, CHANNELS]
    gates_ptr,  # [tokens, 2 * CHANNELS]
    z_ptr,  # [tokens, CHANNELS]
    rate_ptr,  # [CHANNELS]
    bias_ptr,  # [2, CHANNELS]
    state_ptr,  # [rows, CHANNELS]
    rows_ptr,  # [runs]
    starts_ptr,  # [runs + 1] or None
    kv_lens_ptr,  # [runs]
    out_ptr,  # [tokens, CHANNELS]
    stride_x_token: tl.constexpr,
    stride_gates_token: tl.constexpr,
    stride_z_token: tl.constexpr,
    stride_out_token: tl.constexpr,
    CHANNELS: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    COUNT: tl.constexpr,
    PDL: tl.constexpr,
):
    """One thread block computes BLOCK channels of one run, COUNT tokens at a time, and prefetches the next COUNT."""
    channels = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = channels < CHANNELS
    rate = tl.load(rate_ptr + channels, mask=inside, other=0.0)
    bias_r = tl.load(bias_ptr + channels, mask=inside, other=0.0)
    bias_i = tl.load(bias_ptr + CHANNELS + channels, mask=inside, other=0.0)
    launch_dependents(PDL)
    wait_for_previous(PDL)
    start, length, continued, state_row_ptr = find_run(
        tl.program_id(1), rows_ptr, starts_ptr, kv_lens_ptr, state_ptr, CHANNELS
    )
    if length == 0:
        return
    state = tl.load(state_row_ptr + channels, mask=inside & continued, other=0.0)
    loaded = _load_tokens(
        x_ptr, gates_ptr, z_ptr, start, length, channels, inside, stride_x_token, stride_gates_token, stride_z_token,
        WIDTH, COUNT,
    )  # fmt: skip
    for first in range(0, length, COUNT):
        left = length - first
        coming = _load_tokens(
            x_ptr, gates_ptr, z_ptr, start + first + COUNT, left - COUNT, channels, inside, stride_x_token,
            stride_gates_token, stride_z_token, WIDTH, COUNT,
        )  # fmt: skip
        out_ptrs = out_ptr + (start + first) * stride_out_token + channels
        for place in tl.static_range(COUNT):
            x, r, i, z = loaded[place]
            decay = tl.sigmoid(r.to(tl.float32) + bias_r) * rate
            begins = (first + place == 0) & (continued == 0)
            kept = tl.where(begins, 1.0, _kept(-2.0 * decay))
            added = kept * (tl.sigmoid(i.to(tl.float32) + bias_i) * x.to(tl.float32))
            exists = place < left
            # The state of a request that begins is 0.
            state = tl.where(exists, tl.fma(state, tl.exp2(decay * _LOG2_E), added), state)
            out = state * activation(z.to(tl.float32), "gelu_tanh")
            tl.store(out_ptrs + place * stride_out_token, out.to(out_ptr.dtype.element_ty), mask=exists & inside)
        loaded = coming
    tl.store(state_row_ptr + channels, state, mask=inside)


_launch = Launcher(gated_lru_kernel, writes=("out", "state:rows"), reads_early=("rate", "bias"))


@dataclass(frozen=True, slots=True, eq=False)
class LruDynamics:
    """How the channels of one layer decay. Both are float32 and contiguous, and the layer's weights own them."""

    rate: Tensor
    """[channels], log decays where the gate is open, below 0."""
    bias: Tensor
    """[2, channels], of the gates of the decay and of those of the input."""
    width: int
    """Channels of a block of gates."""


def _check(x: Tensor, gates: Tensor, z: Tensor, dynamics: LruDynamics, state: Tensor, runs: Runs, out: Tensor) -> None:
    """Raises ValueError for what the kernel does not read."""
    (tokens, channels), count = x.shape, runs.rows.shape[0]
    of_type = {"x": x, "gates": gates, "z": z, "out": out}
    of_float = {"rate": dynamics.rate, "bias": dynamics.bias, "state": state}
    named = of_type | of_float | {"kv_lens": runs.kv_lens} | ({} if runs.starts is None else {"starts": runs.starts})
    expected = dict.fromkeys(("x", "z", "out"), (tokens, channels)) | {"gates": (tokens, 2 * channels)}
    expected |= {"rate": (channels,), "bias": (2, channels), "kv_lens": (count,)}
    expected |= {"state": (state.shape[0], channels), "starts": (count + 1,)}
    if any(tensor.shape != expected[name] for name, tensor in named.items()):
        raise shapes_error("gated_lru", **named)
    if channels % dynamics.width:
        raise ValueError(f"gated_lru: {channels} channels are no blocks of {dynamics.width}")
    if any(tensor.stride(1) != 1 or tensor.dtype != x.dtype for tensor in of_type.values()):
        raise ValueError("gated_lru: x, gates, z and out must have one type and stride 1 in the last dimension")
    if not all(tensor.is_contiguous() and tensor.dtype == torch.float32 for tensor in of_float.values()):
        raise ValueError("gated_lru: rate, bias and state must be float32 and contiguous")


def gated_lru_triton(
    x: Tensor, gates: Tensor, z: Tensor, dynamics: LruDynamics, state: Tensor, runs: Runs, out: Tensor
) -> None:
    """Triton implementation. Raises ValueError for layouts that the kernel does not read."""
    _check(x, gates, z, dynamics, state, runs, out)
    (tokens, channels), count = x.shape, runs.rows.shape[0]
    if tokens == 0 or count == 0:
        return
    settings = lru_settings(x.element_size(), runs.starts is None)
    _launch(
        (triton.cdiv(channels, settings["BLOCK"]), count),
        (x, gates, z, dynamics.rate, dynamics.bias, state, runs.rows, runs.starts, runs.kv_lens, out),
        tuple(tensor.stride(0) for tensor in (x, gates, z, out)),
        CHANNELS=channels,
        WIDTH=dynamics.width,
        **settings,
    )


def lru_settings(element_size: int, decodes: bool) -> dict[str, int]:
    """Launch settings."""
    warps, count = (_DECODE_WARPS, 1) if decodes else (1, _AHEAD_BYTES // element_size)
    return {"BLOCK": 32 * warps, "COUNT": count, "num_warps": warps}


def gated_lru_torch(
    x: Tensor, gates: Tensor, z: Tensor, dynamics: LruDynamics, state: Tensor, runs: Runs, out: Tensor
) -> None:
    """Torch implementation: the CPU path and the reference of the tests. Runs are computed one after the other."""
    blocks = gates.unflatten(1, (-1, 2, dynamics.width))
    of_decays, of_inputs = (blocks[:, :, place].flatten(1) for place in (0, 1))
    for row, begin, end, continued in list_runs(runs):
        run, current = slice(begin, end), state[row] if continued else state[row].zero_()
        decays = sigmoid(of_decays[run].float() + dynamics.bias[0]).mul_(dynamics.rate)
        kept = decays.mul(2.0).expm1_().neg_().sqrt_()
        if not continued:
            kept[0] = 1.0
        added = sigmoid(of_inputs[run].float() + dynamics.bias[1]).mul_(x[run].float()).mul_(kept)
        decays.exp_()
        for token in range(end - begin):
            current.mul_(decays[token]).add_(added[token])
            added[token] = current
        out[run] = added.mul_(_gelu(z[run].float()))


def _gelu(z: Tensor) -> Tensor:
    """The "gelu_tanh" of `activations.py`, as its kernels compute it: bits do not depend on places."""
    return z * sigmoid(1.5957691216057308 * z * (1.0 + 0.044715 * z * z))  # 2 * sqrt(2 / pi)


gated_lru = register(gated_lru_torch, mutates=("state", "out"), triton=gated_lru_triton)
