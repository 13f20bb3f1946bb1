"""Slopes of ALiBi (Press et al., 2021), which differ among families where the heads are no power of two."""

import math


def slopes(heads: int) -> tuple[float, ...]:
    """A geometric sequence for the nearest power of two below, then every second one of the sequence twice as fine."""
    whole = 1 << (heads.bit_length() - 1)
    base = 2.0 ** -(2.0 ** -(math.log2(whole) - 3))
    finer = 2.0 ** -(2.0 ** -(math.log2(2 * whole) - 3))
    rest = [finer**power for power in range(1, 2 * (heads - whole) + 1, 2)]
    return (*(base**power for power in range(1, whole + 1)), *rest)


def mpt_slopes(heads: int, most: float) -> tuple[float, ...]:
    """MPT takes the sequence for the nearest power of two above: every second one, then the others."""
    whole = 1 << (heads - 1).bit_length()
    steps = [2.0 ** -(index * most / whole) for index in range(1, whole + 1)]
    return tuple(steps if whole == heads else (steps[1::2] + steps[::2])[:heads])
