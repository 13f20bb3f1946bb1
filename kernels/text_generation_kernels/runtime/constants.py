"""Numbers that kernels of several rooms compute with."""

LOG2_E = 1.4426950408889634
