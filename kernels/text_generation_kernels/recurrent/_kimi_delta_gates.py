"""Gates of Kimi delta attention."""

# pyright: basic, reportArgumentType=false, reportCallIssue=false
from ..runtime.constants import LOG2_E
from ..runtime.triton import tl, triton
from ._recurrence import softplus

_LOG2_E = tl.constexpr(LOG2_E)


@triton.jit
def decay_of_channels(
    a,  # any shape
    rate,  # a number or a shape that fits, as `bias`
    bias,
    LEAST: tl.constexpr,
):
    """log2 of the decay of channels of a state, at most 0, float32."""
    opened = a.to(tl.float32) + bias
    speed = tl.exp2(rate * _LOG2_E)
    if LEAST == 0:
        return -speed * softplus(opened) * _LOG2_E
    return tl.sigmoid(speed * opened) * (LEAST * _LOG2_E)
