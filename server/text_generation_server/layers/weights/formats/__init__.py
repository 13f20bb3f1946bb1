"""Formats of group-quantised weights, from the tensors of a checkpoint to codes, with one file for each format. Nothing
here knows the engine.
"""

from .groups import FactoredScales, Groups, stacked
from .online import OnlineKind, quantise_groups
from .reading import input_order, read_groups
from .shard import MatrixShard

__all__ = [
    "FactoredScales",
    "Groups",
    "MatrixShard",
    "OnlineKind",
    "input_order",
    "quantise_groups",
    "read_groups",
    "stacked",
]
