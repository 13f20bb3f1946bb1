"""Ring buffers of shared-memory tiles in Gluon kernels: the next copy goes to the oldest stage."""

# pyright: basic, reportArgumentType=false
from .triton import gl, gluon


@gluon.jit
def advance(stage, phase, STAGES: gl.constexpr):
    """The next stage of a ring, and the phase of its mbarriers."""
    stage += 1
    if stage == STAGES:
        stage = 0
        phase ^= 1
    return stage, phase
