"""Runs, time steps and the one-token state update that the Mamba kernels share.

In kernels a state is a tuple of PARTS tensors [rows, WIDTH] that lie side by side. They are narrow so that few threads
share a row: each of these computes what belongs to the whole row, such as its time step, and reductions pass from one
tensor to the next. FMAs are explicit: left to the compiler, variants of a kernel might round differently.
"""

# pyright: basic, reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false
from collections.abc import Iterator

from torch import Tensor

from ..runtime.constants import LOG2_E
from ..runtime.triton import tl, triton
from .runs import Runs

_LOG2_E = tl.constexpr(LOG2_E)


def list_runs(runs: Runs) -> Iterator[tuple[int, int, int, bool]]:
    """Yields, for each run with tokens to compute: its row, its first token, the one past its last, and whether its
    request has tokens before it.
    """
    lengths = runs.kv_lens.tolist()
    bounds = list(range(len(lengths) + 1)) if runs.starts is None else runs.starts.tolist()
    for row, kv_len, begin, end in zip(runs.rows.tolist(), lengths, bounds[:-1], bounds[1:], strict=True):
        if kv_len > 0 and end > begin:
            yield row, begin, end, kv_len > end - begin


def softplus_torch(x: Tensor) -> Tensor:
    """`torch.nn.functional.softplus`, but the bits of an element do not depend on its place: on a CPU torch rounds the
    end of a tensor otherwise than the rest.
    """
    return x.clamp(min=0.0).add_(x.abs().neg_().exp_().log1p_())


@triton.jit
def find_run(run, rows_ptr, starts_ptr, kv_lens_ptr, state_ptr, STATE: tl.constexpr):
    """First token of a run, its length, whether its request has tokens before it, and a pointer to its state of STATE
    elements. Length 0: there is nothing to do.
    """
    kv_len = tl.load(kv_lens_ptr + run)
    start = run.to(tl.int64)
    length = 1
    if starts_ptr is not None:
        start = tl.load(starts_ptr + run).to(tl.int64)
        length = (tl.load(starts_ptr + run + 1) - start).to(tl.int32)
    length = tl.where(kv_len == 0, 0, length)
    return start, length, kv_len > length, state_ptr + tl.load(rows_ptr + run) * STATE


@triton.jit
def decay_rate(a_log):
    """-exp(a_log) * log2(e): times a time step, log2 of a state's decay."""
    return tl.exp2(a_log * _LOG2_E) * -_LOG2_E


@triton.jit
def softplus(x):
    """log(1 + exp(x)) of float32, precise for small results too.

    It is max(x, 0) + log(1 + w) with w = exp(-|x|), and log(1 + w) = 2 * atanh(s) with s = w / (2 + w), at most 1/3:
    six terms of atanh's series are enough. The logarithm of the sum 1 + w would lose the last bits of a small w.
    """
    w = tl.exp2(-tl.abs(x) * _LOG2_E)
    s = w / (2.0 + w)
    square = s * s
    series = 2.0 / 11.0
    for denominator in tl.static_range(9, 0, -2):
        series = tl.fma(square, series, 2.0 / denominator)
    return tl.fma(s, series, tl.maximum(x, 0.0))


@triton.jit
def load_vector(vector_ptr, exists, N: tl.constexpr, WIDTH: tl.constexpr, PARTS: tl.constexpr):
    """A vector [N] as PARTS tensors [WIDTH], zeros where it does not exist."""
    parts = ()
    for part in tl.static_range(PARTS):
        columns = part * WIDTH + tl.arange(0, WIDTH)
        loaded = tl.load(vector_ptr + columns, mask=exists & (columns < N), other=0.0)
        parts = parts + (loaded,)  # noqa: RUF005 - Triton knows no star here
    return parts


@triton.jit
def load_rows(matrix_ptr, rows, exist, N: tl.constexpr, WIDTH: tl.constexpr, PARTS: tl.constexpr):
    """`rows` of a matrix [any, N] as PARTS tensors [rows, WIDTH], zeros where they do not exist."""
    parts = ()
    for part in tl.static_range(PARTS):
        columns = part * WIDTH + tl.arange(0, WIDTH)
        places = rows.to(tl.int64)[:, None] * N + columns[None, :]
        loaded = tl.load(matrix_ptr + places, mask=exist[:, None] & (columns < N)[None, :], other=0.0)
        parts = parts + (loaded,)  # noqa: RUF005 - as above
    return parts


@triton.jit
def store_rows(matrix_ptr, parts, rows, exist, N: tl.constexpr, WIDTH: tl.constexpr, PARTS: tl.constexpr):
    """Stores what `load_rows` loads."""
    for part in tl.static_range(PARTS):
        columns = part * WIDTH + tl.arange(0, WIDTH)
        places = rows.to(tl.int64)[:, None] * N + columns[None, :]
        tl.store(matrix_ptr + places, parts[part], mask=exist[:, None] & (columns < N)[None, :])


@triton.jit
def advance(
    state,  # PARTS of [rows, WIDTH]
    rates,  # PARTS of what `decay_rate` gives, [rows, WIDTH] or numbers
    step,  # [rows, 1] or a number, float32
    written,  # [rows] float32
    b,  # PARTS of [WIDTH]
    c,  # PARTS of [WIDTH]
    PARTS: tl.constexpr,
):
    """The state after one token, and c's reading of it, [rows]. A time step of zero leaves the state unchanged."""
    after = ()
    read = tl.zeros_like(state[0])
    for part in tl.static_range(PARTS):
        added = written[:, None] * b[part].to(tl.float32)[None, :]
        new = tl.fma(state[part], tl.exp2(step * rates[part]), added)
        read = tl.fma(new, c[part].to(tl.float32)[None, :], read)
        after = after + (new,)  # noqa: RUF005 - as above
    return after, tl.sum(read, axis=1)
