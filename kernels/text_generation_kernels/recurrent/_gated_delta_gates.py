"""Gates of the gated delta rule, and normalisation of its queries and keys."""

# pyright: basic, reportArgumentType=false, reportCallIssue=false
from ..runtime.constants import LOG2_E
from ..runtime.triton import tl, triton
from ._recurrence import softplus

EPS = 1e-6
"""Added to a squared length before its root."""

_EPS = tl.constexpr(EPS)
_LOG2_E = tl.constexpr(LOG2_E)


@triton.jit
def open_gates(b, a, rate, bias, MOST_BETA: tl.constexpr):
    """Beta and log2 of the state's decay (at most 0) of tokens of one head, float32."""
    log_decay = -tl.exp2(rate * _LOG2_E) * softplus(a.to(tl.float32) + bias)
    beta = tl.sigmoid(b.to(tl.float32))
    if MOST_BETA != 1:
        beta *= MOST_BETA
    return beta, log_decay * _LOG2_E


@triton.jit
def over_length(square):
    """1 / length, from the squared length of a vector."""
    return tl.rsqrt(square + _EPS)
