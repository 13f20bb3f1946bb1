"""Weights of the inputs of each layer, whole on every rank but for the table of vectors, which ranks may share."""

from dataclasses import dataclass

from ...config.spec import NormSpec, PerLayerSpec
from .blocks import RowBlock
from .checkpoint import Checkpoint, NormWeights
from .ends import EmbeddingWeights, load_layer_embedding
from .linear import Linear
from .loading import column_parallel


@dataclass(frozen=True)
class PerLayerWeights:
    """What makes the inputs of all layers."""

    vectors: EmbeddingWeights
    """[rows, layers * width] by token id."""
    projection: Linear
    """From embeddings to layers * width."""
    norm: NormWeights
    """[width]"""


@dataclass(frozen=True)
class LayerInputWeights:
    """What one layer does with its input."""

    gate: Linear
    """From hidden to width."""
    out: Linear
    """From width to hidden."""
    norm: NormWeights
    """[hidden]"""


def load_per_layer(checkpoint: Checkpoint, spec: PerLayerSpec) -> PerLayerWeights:
    """Raises ModelFilesError."""
    names, hidden = checkpoint.names, checkpoint.spec.hidden_size
    width = len(checkpoint.spec.layers) * spec.width
    return PerLayerWeights(
        load_layer_embedding(checkpoint, spec.vocab_size, width),
        whole(checkpoint, checkpoint.outside(names.layer_projection), width, hidden),
        checkpoint.norm(checkpoint.outside(names.layer_projection_norm), spec.norm, spec.width),
    )


def load_layer_input(checkpoint: Checkpoint, layer: int, width: int, norm: NormSpec) -> LayerInputWeights:
    """Raises ModelFilesError."""
    names, hidden = checkpoint.names, checkpoint.spec.hidden_size
    return LayerInputWeights(
        whole(checkpoint, checkpoint.inside(layer, names.layer_gate), width, hidden),
        whole(checkpoint, checkpoint.inside(layer, names.layer_out), hidden, width),
        checkpoint.norm(checkpoint.inside(layer, names.layer_output_norm), norm, hidden),
    )


def whole(checkpoint: Checkpoint, name: str, outputs: int, inputs: int) -> Linear:
    """Reads a matrix that every rank has whole. Raises ModelFilesError."""
    return column_parallel(checkpoint, [RowBlock(name, outputs, ((0, outputs),))], inputs, False)
