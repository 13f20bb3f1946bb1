"""Depthwise causal convolution over the tokens of each request, before the recurrence (Mamba, Gu and Dao, 2023; Gated
DeltaNet in Qwen3-Next) or in its place (LFM 2).

    out[t, c] = silu(bias[c] + sum over j < K of weight[c, j] * x[t - (K - 1) + j, c])

without the activation where `silu` is false. x before the first token of a run is the request's state: its last K - 1
inputs, or zeros where the run begins the request. Afterwards the state holds the last K - 1 inputs of the run.

Layouts: `x`, `out` `[tokens, channels]`, unit stride in the last dimension, any stride between tokens, two tensors;
`weight` `[channels, K]`, K from 2 to 4, any strides; `bias` `[channels]` or None; `state` `[rows, K - 1, channels]`,
contiguous, oldest input first. One floating type for all of them. The new tokens are `Runs`. A weight with adjacent
channels (`weight.t()` contiguous) is fastest: a thread loads a tap of its channels at once. Sums are float32 in a fixed
order, bias first: a token's result is the same to the bit wherever its run is cut, and in a decode as in a chunk.

Called once a layer for decodes and once for chunks, after the GEMM that makes `x`. Raises ValueError for layouts that
the kernels do not read. Bytes floor: 2 * tokens * channels * element size (read x, write out), and
2 * (K - 1) * channels * element size for the state of each run. On an H100 in bfloat16, 8,192 tokens of 8,192 channels:
87 % of copy bandwidth. Measurements: docs/lab/2026-11-recurrent-layers.md.
"""

# pyright: basic, reportArgumentType=false
import torch
from torch import Tensor

from ..norm.activations import sigmoid
from ..runtime.batches import padded_batch
from ..runtime.launch import Launcher
from ..runtime.register import register
from ..runtime.shapes import shapes_error
from ..runtime.triton import triton
from ._causal_conv_kernels import conv_chunks_kernel, conv_decodes_kernel, conv_states_kernel
from ._recurrence import list_runs
from .runs import Runs

_TOKENS = 16
"""Tokens of a thread block of chunks. It reads K - 1 more, which the thread block before has read too."""
_WARPS = 2
_THREAD_BYTES = 16
"""Bytes of a token that a thread loads at a time."""

_launch_decodes = Launcher(conv_decodes_kernel, writes=("out", "state:rows"), reads_early=("weight", "bias"))
_launch_chunks = Launcher(conv_chunks_kernel, writes=("out",), reads_early=("weight", "bias"))
_launch_states = Launcher(conv_states_kernel, writes=("state:rows",))


def _check(x: Tensor, weight: Tensor, bias: Tensor | None, state: Tensor, runs: Runs, out: Tensor) -> None:
    """Raises ValueError for what the kernels do not read."""
    channels, taps = weight.shape
    rows, starts, kv_lens = runs.rows, runs.starts, runs.kv_lens
    count = rows.shape[0]
    if not 2 <= taps <= 4:
        raise ValueError(f"causal_conv: weight has {taps} numbers for each channel, and must have 2 to 4")
    if (
        x.shape[1] != channels
        or out.shape != x.shape
        or state.shape[1:] != (taps - 1, channels)
        or (bias is not None and bias.shape != (channels,))
        or kv_lens.shape != (count,)
        or (starts is not None and starts.shape != (count + 1,))
    ):
        of_runs = {"state": state, "rows": rows, "starts": starts, "kv_lens": kv_lens}
        raise shapes_error("causal_conv", x=x, weight=weight, bias=bias, **of_runs, out=out)
    if not x.stride(1) == out.stride(1) == 1 or (bias is not None and bias.stride(0) != 1):
        raise ValueError("causal_conv: the last dimension of x, bias and out must have stride 1")
    if not state.is_contiguous() or state.dtype != x.dtype:
        raise ValueError("causal_conv: state must be contiguous, and of the type of x")


def causal_conv_triton(
    x: Tensor, weight: Tensor, bias: Tensor | None, state: Tensor, runs: Runs, out: Tensor, silu: bool = True
) -> None:
    """Triton implementation. Raises ValueError for layouts that the kernels do not read."""
    _check(x, weight, bias, state, runs, out)
    rows, starts, kv_lens = runs.rows, runs.starts, runs.kv_lens
    (tokens, channels), taps, count = x.shape, weight.shape[1], rows.shape[0]
    if tokens == 0 or count == 0:
        return
    block = 32 * _WARPS * _THREAD_BYTES // x.element_size()
    blocks = triton.cdiv(channels, block)
    strides = (x.stride(0), *weight.stride(), out.stride(0))
    settings = {"CHANNELS": channels, "K": taps, "BLOCK": block, "num_warps": _WARPS}
    if starts is None:
        _launch_decodes((blocks, count), (x, weight, bias, state, rows, kv_lens, out), strides, SILU=silu, **settings)
        return
    # Each run adds less than one tile that is not full.
    tiles = triton.cdiv(tokens, _TOKENS) + count
    pointers = (x, weight, bias, state, rows, starts, kv_lens, out)
    padded = padded_batch(count)
    _launch_chunks((blocks, tiles), pointers, strides, (count,), SILU=silu, TOKENS=_TOKENS, BLOCK_B=padded, **settings)
    _launch_states((blocks, count), (x, state, rows, starts, kv_lens), (x.stride(0),), **settings)


def causal_conv_torch(
    x: Tensor, weight: Tensor, bias: Tensor | None, state: Tensor, runs: Runs, out: Tensor, silu: bool = True
) -> None:
    """Torch implementation: the CPU path and the reference of the tests. Runs are computed one after the other."""
    taps = weight.float().t()
    for row, begin, end, continued in list_runs(runs):
        before = state[row] if continued else torch.zeros_like(state[row])
        inputs = torch.cat((before, x[begin:end]))
        total = _sums(inputs.float(), taps, bias)
        out[begin:end] = total.mul_(sigmoid(total)) if silu else total
        state[row] = inputs[end - begin :]


def _sums(inputs: Tensor, taps: Tensor, bias: Tensor | None) -> Tensor:
    """Sums [tokens, channels] over `inputs` [K - 1 + tokens, channels] and `taps` [K, channels], float32."""
    tokens = inputs.shape[0] - len(taps) + 1
    total = inputs.new_zeros(tokens, inputs.shape[1])
    if bias is not None:
        total += bias
    for first, tap in enumerate(taps):
        total += inputs[first : first + tokens] * tap
    return total


causal_conv = register(causal_conv_torch, mutates=("state", "out"), triton=causal_conv_triton)
