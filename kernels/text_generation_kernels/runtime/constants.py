"""Numerical constants of several rooms."""

LOG2_E = 1.4426950408889634
