"""Formats of group-quantised weights, from the tensors of a checkpoint to codes: a file for each format. Nothing of the
engine is known here.
"""

from .groups import Groups, stacked
from .online import OnlineKind, quantise_groups
from .part import Part
from .reading import input_order, read_groups

__all__ = [
    "Groups",
    "OnlineKind",
    "Part",
    "input_order",
    "quantise_groups",
    "read_groups",
    "stacked",
]
