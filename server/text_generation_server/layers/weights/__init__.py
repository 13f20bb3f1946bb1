"""What layers hold, and how the ranks of a group share it."""

from .linear import Linear, RowBlock, column_parallel, row_parallel
from .model import PostLayerWeights, PreLayerWeights, TransformerLayerWeights, padded_rows, vocabulary_shard
from .split import HeadSplit, even_span

__all__ = [
    "HeadSplit",
    "Linear",
    "PostLayerWeights",
    "PreLayerWeights",
    "RowBlock",
    "TransformerLayerWeights",
    "column_parallel",
    "even_span",
    "padded_rows",
    "row_parallel",
    "vocabulary_shard",
]
