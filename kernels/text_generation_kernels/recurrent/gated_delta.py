"""Gated delta rule (Yang et al., 2024, "Gated Delta Networks"), the recurrence of Qwen3-Next, Qwen3.5 and OLMo
Hybrid.

For each head, a state S [key_dim, value_dim], and each token of a run after the other:

    q, k = q / |q|, k / |k|                    where |x| = sqrt(sum(x ** 2) + 1e-6)
    beta = most_beta * sigmoid(b),  g = -exp(rate) * softplus(a + bias)
    S = exp(g) * S
    S = S + outer(k, beta * (v - S^T k))
    out = S^T q / sqrt(key_dim)

Head h reads the query and the key of key head h // (heads / key_heads). `most_beta` is 1, or 2 where a token may turn
what the state holds for its key into the opposite (negative eigenvalues, Grazzi et al., 2024).

Layouts: `qkv` `[tokens, 2 * key_heads * key_dim + heads * value_dim]`: queries of all key heads, then keys, then
values; `gates` `[tokens, 2 * heads]`: b of all heads, then a; both with unit stride in the last dimension and any
stride between tokens. `out` `[tokens, heads, value_dim]`, contiguous. These have one floating type. `rate` and `bias`
`[heads]` and the state pool `[rows, heads, key_dim, value_dim]`, updated in place, are float32 and contiguous. The new
tokens are `Runs`. Head dimensions are 256 at most.

Two algorithms, both with a float32 state:
- Token by token (`_gated_delta_recurrent.py`), all in float32: decodes, short runs, float32 models, and everything
  where `deterministic`. One variant serves all of these, so a token's result is the same to the bit wherever its run is
  cut, whatever else is in the step, and in a decode as in a chunk.
- Blocks of 64 tokens by GEMMs: what needs no state for all blocks at once (`_gated_delta_blocks.py`), then the scan
  over blocks (`_gated_delta_states.py`). GEMM operands have the model's 16 bits, so errors are about twice the rounding
  of `out`; where `most_beta` is 2 they do not fade, and grow with the tokens of a run whose keys are all alike and
  whose beta is all near 2. Not for keys of more than 128 elements, for which some cards lack the shared memory.

Decodes and short runs read rows, lengths and states while the previous kernel may still run. So between two calls for
the same rows, and between what writes `rows`, `starts` and `kv_lens` and this operator, there must be a kernel that
does not launch dependents early: `newest_tokens`, with which a step begins, or any operator of torch.

Called once a layer for decodes and once for chunks, after the convolution that makes `qkv`. Raises ValueError for
layouts that the kernels do not read. Bytes floor: 8 * heads * key_dim * value_dim for each run (read and write its
state), and qkv and out of each token; blocks also write and read key_dim + value_dim + 64 numbers of the model's type
for each token and head. On an H100 with 32 heads of 128 by 128 in bfloat16: 64 decodes take 113 us, 79 % of copy
bandwidth. Measurements, and why tiles have at least 32 elements (Triton 3.6 miscompiles smaller ones):
docs/lab/2026-11-recurrent-layers.md.
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
from ._gated_delta_blocks import BLOCK_T, FACTORS, gated_delta_blocks_kernel
from ._gated_delta_recurrent import gated_delta_recurrent_kernel
from ._gated_delta_states import gated_delta_states_kernel
from ._recurrence import list_runs
from .runs import Runs

_WIDTH = 64
"""Elements of keys and values that the blocks kernel loads at a time."""
_BLOCKS_LAUNCH = {"num_warps": 4, "num_stages": 3, "maxnreg": 168}
"""Launch settings of the blocks kernel: three thread blocks fit an SM, though some addresses are spilled."""

_launch_recurrent = Launcher(
    gated_delta_recurrent_kernel,
    writes=("out", "state:rows"),
    reads_early=("rows", "starts", "kv_lens", "rate", "bias", "state:rows"),
)
_launch_blocks = Launcher(
    gated_delta_blocks_kernel, writes=("u", "w", "scores", "factors", "decays"), reads_early=("rate", "bias")
)
_launch_states = Launcher(gated_delta_states_kernel, writes=("out", "state:rows"))


def _check(qkv: Tensor, gates: Tensor, rate: Tensor, bias: Tensor, state: Tensor, runs: Runs, out: Tensor) -> None:
    """Raises ValueError for what the kernels do not read."""
    tokens, heads, value_dim = out.shape
    rows, starts, kv_lens = runs.rows, runs.starts, runs.kv_lens
    key_dim, count = state.shape[2], rows.shape[0]
    key_heads, rest = divmod(qkv.shape[1] - heads * value_dim, 2 * key_dim)
    if (
        rest
        or key_heads < 1
        or heads % key_heads
        or state.shape[1:] != (heads, key_dim, value_dim)
        or qkv.shape[0] != tokens
        or gates.shape != (tokens, 2 * heads)
        or not rate.shape == bias.shape == (heads,)
        or kv_lens.shape != (count,)
        or (starts is not None and starts.shape != (count + 1,))
    ):
        of_runs = {"state": state, "rows": rows, "starts": starts, "kv_lens": kv_lens}
        raise shapes_error("gated_delta", qkv=qkv, gates=gates, rate=rate, bias=bias, **of_runs, out=out)
    if max(key_dim, value_dim) > LARGEST:
        raise ValueError(f"gated_delta: heads have {key_dim} by {value_dim} elements; {LARGEST} are the most")
    if not qkv.dtype == gates.dtype == out.dtype or not rate.dtype == bias.dtype == state.dtype == torch.float32:
        raise ValueError("gated_delta: qkv, gates and out must have one type, and rate, bias and state be float32")
    if not qkv.stride(1) == gates.stride(1) == 1:
        raise ValueError("gated_delta: the last dimension of qkv and gates must have stride 1")
    if not all(each.is_contiguous() for each in (rate, bias, state, out)):
        raise ValueError("gated_delta: rate, bias, state and out must be contiguous")


def gated_delta_triton(
    qkv: Tensor,
    gates: Tensor,
    rate: Tensor,
    bias: Tensor,
    state: Tensor,
    runs: Runs,
    out: Tensor,
    deterministic: bool,
    most_beta: int = 1,
) -> None:
    """Triton implementation. Raises ValueError for layouts that the kernels do not read."""
    _check(qkv, gates, rate, bias, state, runs, out)
    if out.shape[0] == 0 or runs.rows.shape[0] == 0:
        return
    # A compile dry run does not meet every length.
    long = runs.max_len > SHORT or compiling_only()
    can = qkv.element_size() == 2 and state.shape[2] <= LARGEST_BY_BLOCKS
    if runs.starts is not None and long and can and not deterministic:
        _by_blocks(qkv, gates, rate, bias, state, runs, out, most_beta)
        if not compiling_only():
            return
    _one_by_one(qkv, gates, rate, bias, state, runs, out, most_beta)


def _sizes(qkv: Tensor, state: Tensor) -> dict[str, int]:
    """Constexprs of all kernels."""
    _, heads, key_dim, value_dim = state.shape
    key_heads = (qkv.shape[1] - heads * value_dim) // (2 * key_dim)
    return {"HEADS": heads, "KEY_HEADS": key_heads, "KEY_DIM": key_dim, "VALUE_DIM": value_dim}


def _one_by_one(
    qkv: Tensor, gates: Tensor, rate: Tensor, bias: Tensor, state: Tensor, runs: Runs, out: Tensor, most_beta: int
) -> None:
    """Launches the token-by-token kernel."""
    rows, starts, kv_lens = runs.rows, runs.starts, runs.kv_lens
    _, heads, key_dim, value_dim = state.shape
    sizes = warp_sizes(key_dim, value_dim)
    _launch_recurrent(
        (triton.cdiv(value_dim, sizes["BLOCK_V"]) * heads, rows.shape[0]),
        (qkv, gates, rate, bias, state, rows, kv_lens if starts is None else starts, kv_lens, out),
        (qkv.stride(0), gates.stride(0)),
        (int(starts is not None),),
        MOST_BETA=most_beta,
        num_warps=1,
        **sizes,
        **_sizes(qkv, state),
    )


def _by_blocks(
    qkv: Tensor, gates: Tensor, rate: Tensor, bias: Tensor, state: Tensor, runs: Runs, out: Tensor, most_beta: int
) -> None:
    """Launches the blocks kernel, then the scan over blocks."""
    rows, starts, kv_lens = runs.rows, runs.starts, runs.kv_lens
    (tokens, heads, value_dim), key_dim, count = out.shape, state.shape[2], rows.shape[0]
    block_k, block_v = tile(key_dim), tile(value_dim)
    # Each run adds less than one block that is not full.
    blocks = triton.cdiv(tokens, BLOCK_T) + count
    w, u, scores = (qkv.new_empty(blocks, heads, BLOCK_T, size) for size in (key_dim, value_dim, BLOCK_T))
    factors, decays = rate.new_empty(blocks, heads, FACTORS, BLOCK_T), rate.new_empty(blocks, heads)
    made = (w, u, scores, factors, decays)
    settings = {"BLOCK_T": BLOCK_T, "FACTORS": FACTORS, "BLOCK_B": padded_batch(count), **_sizes(qkv, state)}
    _launch_blocks(
        (heads, blocks),
        (qkv, gates, rate, bias, starts, kv_lens, *made),
        (qkv.stride(0), gates.stride(0)),
        (count,),
        WIDTH_K=min(block_k, _WIDTH),
        WIDTH_V=min(block_v, _WIDTH),
        MOST_BETA=most_beta,
        **settings,
        **_BLOCKS_LAUNCH,
    )
    config = dict(nearest("gated_delta", shared_kib=shared_kib(qkv.device)))
    columns = min(config.pop("BLOCK_V"), block_v)
    _launch_states(
        (triton.cdiv(value_dim, columns) * heads, count),
        (qkv, state, rows, starts, kv_lens, *made, out),
        (qkv.stride(0),),
        BLOCK_K=block_k,
        BLOCK_V=columns,
        **settings,
        **config,
    )


def gated_delta_torch(
    qkv: Tensor,
    gates: Tensor,
    rate: Tensor,
    bias: Tensor,
    state: Tensor,
    runs: Runs,
    out: Tensor,
    deterministic: bool,  # noqa: ARG001 - it always is
    most_beta: int = 1,
) -> None:
    """Torch implementation: the CPU path and the reference of the tests. Runs are computed one after the other, token
    by token, so all results are deterministic.
    """
    for row, begin, end, continued in list_runs(runs):
        held = state[row] if continued else torch.zeros_like(state[row])
        for token in range(begin, end):
            held, out[token] = _advance(held, qkv[token].float(), gates[token].float(), rate, bias, most_beta)
        state[row] = held


def _advance(
    held: Tensor, qkv: Tensor, gates: Tensor, rate: Tensor, bias: Tensor, most_beta: int
) -> tuple[Tensor, Tensor]:
    """The state [heads, key_dim, value_dim] after a token, and its result [heads, value_dim]; all float32."""
    heads, key_dim, value_dim = held.shape
    b, a = gates.chunk(2)
    keys = (len(qkv) - heads * value_dim) // 2
    q, k, v = qkv.split((keys, keys, heads * value_dim))
    q, k = (normalised(each.view(-1, key_dim)).repeat_interleave(heads * key_dim // keys, dim=0) for each in (q, k))
    held = held * (-rate.exp() * functional.softplus(a + bias)).exp()[:, None, None]
    added = most_beta * sigmoid(b)[:, None] * (v.view(heads, value_dim) - look_up(held, k))
    held = held + k[:, :, None] * added[:, None, :]
    return held, look_up(held, q * key_dim**-0.5)


gated_delta = register(gated_delta_torch, mutates=("state", "out"), triton=gated_delta_triton)
