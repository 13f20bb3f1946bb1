"""Rings of tiles in shared memory, as kernels in Gluon have them: what is copied next takes the oldest place."""

# pyright: basic, reportArgumentType=false
from .triton import gl, gluon


@gluon.jit
def advance(stage, phase, STAGES: gl.constexpr):
    """The next tile of a ring, and the phase of its barriers."""
    stage += 1
    if stage == STAGES:
        stage = 0
        phase ^= 1
    return stage, phase
