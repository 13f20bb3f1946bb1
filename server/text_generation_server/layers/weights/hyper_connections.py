"""Weights of hyper-connections between several residual streams, whole on every rank: they are small."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ...config.streams import HyperConnectionsSpec
from .checkpoint import Checkpoint


@dataclass(frozen=True)
class HyperConnectionWeights:
    """Of one sublayer, in float32. Rows are in the order of `stream_coefs` of the kernels."""

    matrix: Tensor
    """[(streams + 2) * streams, streams * hidden], from all streams to what their coefficients are made of."""
    base: Tensor
    """[(streams + 2) * streams], what is added to that."""
    scale: Tensor
    """[3], what each of its three parts is multiplied by before."""


@dataclass(frozen=True)
class HyperEndWeights:
    """Of the sum of all streams that the head reads, in float32."""

    matrix: Tensor
    """[streams, streams * hidden], from all streams to what their weights are made of."""
    base: Tensor
    """[streams], what is added to that."""
    scale: Tensor
    """[1], what it is multiplied by before."""


def load_hyper_end(checkpoint: Checkpoint, spec: HyperConnectionsSpec, name: str) -> HyperEndWeights:
    """Reads the sum `name` outside the layers. Raises ModelFilesError."""
    whole, columns = checkpoint.outside(name), spec.count * checkpoint.spec.hidden_size
    matrix, base, scale = (
        checkpoint.source.read(f"{whole}{part}", shape, dtype=torch.float32)
        for part, shape in (("fn", (spec.count, columns)), ("base", (spec.count,)), ("scale", (1,)))
    )
    return HyperEndWeights(matrix, base, scale)


def load_hyper_connection(
    checkpoint: Checkpoint, layer: int, spec: HyperConnectionsSpec, name: str
) -> HyperConnectionWeights:
    """Reads the connection `name` of a layer. Raises ModelFilesError."""
    rows, columns = (spec.count + 2) * spec.count, spec.count * checkpoint.spec.hidden_size
    whole = checkpoint.inside(layer, name)
    matrix, base, scale = (
        checkpoint.source.read(f"{whole}{part}", shape, dtype=torch.float32)
        for part, shape in (("fn", (rows, columns)), ("base", (rows,)), ("scale", (3,)))
    )
    return HyperConnectionWeights(matrix, base, scale)
