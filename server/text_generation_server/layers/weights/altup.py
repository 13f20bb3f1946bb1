"""Weights of several residual streams (AltUp), and of the low-rank matrices beside attention (LAuReL), whole on every
rank: they are small, and sharing them would cost an all-reduce each.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ...config.spec import NormSpec
from ...config.streams import AltUpSpec
from .checkpoint import Checkpoint, NormWeights
from .linear import Linear
from .per_layer import whole


@dataclass(frozen=True)
class AltUpEndWeights:
    """What makes one stream of the embedding, or its part of the last hidden state."""

    matrix: Linear
    """From hidden to hidden."""


@dataclass(frozen=True)
class AltUpWeights:
    """What one layer does with its streams, and beside attention."""

    router: Tensor
    """[streams, hidden], from a normalised stream to the mixes of a token."""
    router_norm: NormWeights
    """[hidden], divided by `hidden`."""
    prediction: Tensor
    """[streams * streams, streams] float32, from mixes to coefficients by predicted stream."""
    correction: Tensor
    """[streams, streams] float32"""
    scale: Tensor | None
    """[hidden], where the active stream is scaled."""
    down: Linear
    """From hidden to rank."""
    up: Linear
    """From rank to hidden."""
    norm: NormWeights
    """[hidden]"""


def load_altup_end(checkpoint: Checkpoint, spec: AltUpSpec, name: str) -> list[AltUpEndWeights]:
    """Reads what stands before the first layer or after the last one, for each stream but the first. Raises
    ModelFilesError.
    """
    hidden = checkpoint.spec.hidden_size
    names = (checkpoint.outside(name.format(index)) for index in range(spec.count - 1))
    return [AltUpEndWeights(whole(checkpoint, each, hidden, hidden)) for each in names]


def load_altup(checkpoint: Checkpoint, layer: int, spec: AltUpSpec, norm: NormSpec) -> AltUpWeights:
    """Reads a layer. Raises ModelFilesError."""
    names, source, hidden, count = checkpoint.names, checkpoint.source, checkpoint.spec.hidden_size, spec.count

    def inside(name: str) -> str:
        return checkpoint.inside(layer, name)

    router_norm = checkpoint.norm(inside(names.stream_router_norm), norm, hidden)
    scale = source.read(inside(names.stream_scale), (hidden,)) if spec.scaled else None
    return AltUpWeights(
        source.read(f"{inside(names.stream_router)}.weight", (count, hidden)),
        NormWeights(router_norm.weight / hidden, None),
        source.read(f"{inside(names.stream_prediction)}.weight", (count * count, count), dtype=torch.float32),
        source.read(f"{inside(names.stream_correction)}.weight", (count, count), dtype=torch.float32),
        scale,
        whole(checkpoint, inside(names.laurel_down), spec.rank, hidden),
        whole(checkpoint, inside(names.laurel_up), hidden, spec.rank),
        checkpoint.norm(inside(names.laurel_norm), norm, hidden),
    )
