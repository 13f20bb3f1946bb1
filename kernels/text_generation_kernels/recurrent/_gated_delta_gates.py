"""What the kernels of `gated_delta` share: gates, and the lengths of queries and keys."""

# pyright: basic, reportArgumentType=false, reportCallIssue=false
from ..runtime.constants import LOG2_E
from ..runtime.triton import tl, triton
from ._recurrence import softplus

EPS = 1e-6
"""Added to the square of a length before the root is taken."""

_EPS = tl.constexpr(EPS)
_LOG2_E = tl.constexpr(LOG2_E)


@triton.jit
def open_gates(b, a, rate, bias):
    """Of tokens of one head, float32: beta, and the power of two by which the state decays, at most 0."""
    log_decay = -tl.exp2(rate * _LOG2_E) * softplus(a.to(tl.float32) + bias)
    return tl.sigmoid(b.to(tl.float32)), log_decay * _LOG2_E


@triton.jit
def over_length(square):
    """What a vector whose length has this square is multiplied by."""
    return tl.rsqrt(square + _EPS)
