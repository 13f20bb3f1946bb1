"""Kimi delta attention (KDA; Kimi Team, 2025, "Kimi Linear"): the gated delta rule of `gated_delta.py` whose states
decay by channel of a key; the recurrence of Kimi Linear and Ling 3.

For each head, a state S [key_dim, value_dim], and each token of a run after the other:

    q, k = q / |q|, k / |k|                    where |x| = sqrt(sum(x ** 2) + 1e-6)
    beta = sigmoid(b)
    g = -exp(rate) * softplus(a + bias)        for each channel; with `least` below 0:
    g = least * sigmoid(exp(rate) * (a + bias))
    S = diag(exp(g)) * S
    S = S + outer(k, beta * (v - S^T k))
    out = S^T q / sqrt(key_dim)

Layouts: `qkv` `[tokens, heads * (2 * key_dim + value_dim)]`: queries of all heads, then keys, then values; `betas`
`[tokens, heads]`, b; `gates` `[tokens, heads * key_dim]`, a; all with unit stride in the last dimension and any stride
between tokens. `out` `[tokens, heads, value_dim]`, contiguous. These have one floating type. `rate` `[heads]`, `bias`
`[heads, key_dim]` and the state pool `[rows, heads, key_dim, value_dim]`, updated in place, are float32 and contiguous.
The new tokens are `Runs`. Head dimensions are 256 at most.

Two algorithms, both with a float32 state, chosen as `gated_delta.py` chooses: token by token
(`_kimi_delta_recurrent.py`), and blocks of 64 tokens by GEMMs (`_kimi_delta_blocks.py`, then
`_kimi_delta_states.py`). What that file says of reads while the previous kernel may still run counts here too.

Called once a layer for decodes and once for chunks, after the convolution that makes `qkv`. Raises ValueError for
layouts that the kernels do not read. Bytes floor: 8 * heads * key_dim * value_dim for each run (read and write its
state), and qkv, gates and out of each token; blocks also write and read 3 * key_dim + 128 numbers of the model's type
for each token and head.
"""

# pyright: basic, reportArgumentType=false
import torch
from torch import Tensor
from torch.nn import functional

from ..norm.activations import sigmoid
from ..runtime.batches import padded_batch
from ..runtime.device import shared_kib
from ..runtime.launch import Launcher, compiling_only
from ..runtime.register import register
from ..runtime.settings import nearest
from ..runtime.shapes import shapes_error
from ..runtime.triton import triton
from ._delta_rule import LARGEST, LARGEST_BY_BLOCKS, SHORT, look_up, normalised, tile, warp_sizes
from ._gated_delta_blocks import BLOCK_T
from ._kimi_delta_blocks import kimi_delta_blocks_kernel
from ._kimi_delta_recurrent import kimi_delta_recurrent_kernel
from ._kimi_delta_states import kimi_delta_states_kernel
from ._recurrence import list_runs
from .runs import Runs

_WIDTH = 32
"""Elements of keys that the blocks kernel loads at a time."""
_BLOCKS_LAUNCH = {"num_warps": 8, "num_stages": 1}
"""Launch settings of the blocks kernel."""

_launch_recurrent = Launcher(
    kimi_delta_recurrent_kernel,
    writes=("out", "state:rows"),
    reads_early=("rows", "starts", "kv_lens", "rate", "bias", "state:rows"),
)
_launch_blocks = Launcher(kimi_delta_blocks_kernel, writes=("of_state", "of_block", "decays"), reads_early=("rate",))
_launch_states = Launcher(kimi_delta_states_kernel, writes=("out", "state:rows"))


def _check(
    qkv: Tensor, betas: Tensor, gates: Tensor, rate: Tensor, bias: Tensor, state: Tensor, runs: Runs, out: Tensor
) -> None:
    """Raises ValueError for what the kernels do not read."""
    tokens, heads, value_dim = out.shape
    rows, starts, kv_lens = runs.rows, runs.starts, runs.kv_lens
    key_dim, count = state.shape[2], rows.shape[0]
    if (
        state.shape[1:] != (heads, key_dim, value_dim)
        or qkv.shape != (tokens, heads * (2 * key_dim + value_dim))
        or betas.shape != (tokens, heads)
        or gates.shape != (tokens, heads * key_dim)
        or rate.shape != (heads,)
        or bias.shape != (heads, key_dim)
        or kv_lens.shape != (count,)
        or (starts is not None and starts.shape != (count + 1,))
    ):
        of_runs = {"state": state, "rows": rows, "starts": starts, "kv_lens": kv_lens}
        raise shapes_error("kimi_delta", qkv=qkv, betas=betas, gates=gates, rate=rate, bias=bias, **of_runs, out=out)
    if max(key_dim, value_dim) > LARGEST:
        raise ValueError(f"kimi_delta: heads have {key_dim} by {value_dim} elements; {LARGEST} are the most")
    if not qkv.dtype == betas.dtype == gates.dtype == out.dtype:
        raise ValueError("kimi_delta: qkv, betas, gates and out must have one type")
    if not rate.dtype == bias.dtype == state.dtype == torch.float32:
        raise ValueError("kimi_delta: rate, bias and state must be float32")
    if not qkv.stride(1) == betas.stride(1) == gates.stride(1) == 1:
        raise ValueError("kimi_delta: the last dimension of qkv, betas and gates must have stride 1")
    if not all(each.is_contiguous() for each in (rate, bias, state, out)):
        raise ValueError("kimi_delta: rate, bias, state and out must be contiguous")


def kimi_delta_triton(
    qkv: Tensor,
    betas: Tensor,
    gates: Tensor,
    rate: Tensor,
    bias: Tensor,
    state: Tensor,
    runs: Runs,
    out: Tensor,
    deterministic: bool,
    least: float = 0.0,
) -> None:
    """Triton implementation. Raises ValueError for layouts that the kernels do not read."""
    _check(qkv, betas, gates, rate, bias, state, runs, out)
    if out.shape[0] == 0 or runs.rows.shape[0] == 0:
        return
    # A compile dry run does not meet every length.
    long = runs.max_len > SHORT or compiling_only()
    can = qkv.element_size() == 2 and state.shape[2] <= LARGEST_BY_BLOCKS
    inputs = (qkv, betas, gates, rate, bias)
    if runs.starts is not None and long and can and not deterministic:
        _by_blocks(inputs, state, runs, runs.starts, out, least)
        if not compiling_only():
            return
    _one_by_one(inputs, state, runs, out, least)


def _sizes(state: Tensor) -> dict[str, int]:
    """Constexprs of all kernels."""
    _, heads, key_dim, value_dim = state.shape
    return {"HEADS": heads, "KEY_DIM": key_dim, "VALUE_DIM": value_dim}


def _strides(inputs: tuple[Tensor, ...]) -> tuple[int, int, int]:
    """Of tokens, in qkv, betas and gates."""
    qkv, betas, gates = inputs[:3]
    return qkv.stride(0), betas.stride(0), gates.stride(0)


def _one_by_one(inputs: tuple[Tensor, ...], state: Tensor, runs: Runs, out: Tensor, least: float) -> None:
    """Launches the token-by-token kernel."""
    rows, starts, kv_lens = runs.rows, runs.starts, runs.kv_lens
    _, heads, key_dim, value_dim = state.shape
    sizes = warp_sizes(key_dim, value_dim)
    _launch_recurrent(
        (triton.cdiv(value_dim, sizes["BLOCK_V"]) * heads, rows.shape[0]),
        (*inputs, state, rows, kv_lens if starts is None else starts, kv_lens, out),
        _strides(inputs),
        (int(starts is not None),),
        LEAST=least,
        num_warps=1,
        **sizes,
        **_sizes(state),
    )


def _by_blocks(
    inputs: tuple[Tensor, ...], state: Tensor, runs: Runs, starts: Tensor, out: Tensor, least: float
) -> None:
    """Launches the blocks kernel, then the scan over blocks."""
    qkv, rows, kv_lens = inputs[0], runs.rows, runs.kv_lens
    (tokens, heads, value_dim), key_dim, count = out.shape, state.shape[2], rows.shape[0]
    block_k, block_v = tile(key_dim), tile(value_dim)
    # Each run adds less than one block that is not full.
    blocks = triton.cdiv(tokens, BLOCK_T) + count
    of_state = qkv.new_empty(blocks, heads, 3, BLOCK_T, key_dim)
    of_block = qkv.new_empty(blocks, heads, 2, BLOCK_T, BLOCK_T)
    made = (of_state, of_block, state.new_empty(blocks, heads, key_dim))
    settings = {"BLOCK_T": BLOCK_T, "BLOCK_B": padded_batch(count), "HEADS": heads, "KEY_DIM": key_dim}
    _launch_blocks(
        (heads, blocks),
        (*inputs, starts, kv_lens, *made),
        _strides(inputs),
        (count,),
        WIDTH=_WIDTH,
        LEAST=least,
        **settings,
        **_BLOCKS_LAUNCH,
    )
    config = dict(nearest("kimi_delta", shared_kib=shared_kib(qkv.device)))
    columns = min(config.pop("BLOCK_V"), block_v)
    _launch_states(
        (triton.cdiv(value_dim, columns) * heads, count),
        (qkv, state, rows, starts, kv_lens, *made, out),
        (qkv.stride(0),),
        BLOCK_K=block_k,
        VALUE_DIM=value_dim,
        BLOCK_V=columns,
        **settings,
        **config,
    )


def kimi_delta_torch(
    qkv: Tensor,
    betas: Tensor,
    gates: Tensor,
    rate: Tensor,
    bias: Tensor,
    state: Tensor,
    runs: Runs,
    out: Tensor,
    deterministic: bool,  # noqa: ARG001 - it always is
    least: float = 0.0,
) -> None:
    """Torch implementation: the CPU path and the reference of the tests. Runs are computed one after the other, token
    by token, so all results are deterministic.
    """
    _, heads, key_dim, value_dim = state.shape
    for row, begin, end, continued in list_runs(runs):
        held = state[row] if continued else torch.zeros_like(state[row])
        for token in range(begin, end):
            opened = gates[token].float().view(heads, key_dim) + bias
            speed = rate.exp()[:, None]
            log_decay = least * sigmoid(speed * opened) if least else -speed * functional.softplus(opened)
            q, k, v = qkv[token].float().split((heads * key_dim, heads * key_dim, heads * value_dim))
            q, k = (normalised(each.view(heads, key_dim)) for each in (q, k))
            held = held * log_decay.exp()[:, :, None]
            added = sigmoid(betas[token].float())[:, None] * (v.view(heads, value_dim) - look_up(held, k))
            held = held + k[:, :, None] * added[:, None, :]
            out[token] = look_up(held, q * key_dim**-0.5)
        state[row] = held


kimi_delta = register(kimi_delta_torch, mutates=("state", "out"), triton=kimi_delta_triton)
