"""Weights of a layer with a gated linear recurrent unit (RG-LRU). Each rank has some of the blocks of channels."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from ...config.recurrent import GatedLruSpec
from ...weights import Slice
from .blocks import RowBlock, in_step, read_ranges
from .checkpoint import Checkpoint
from .linear import Linear
from .loading import column_parallel, row_parallel
from .split import even_span

_SHARPNESS = 8.0
"""What decays are raised to, a constant of the unit."""


@dataclass(frozen=True)
class GatedLruWeights:
    """The weights of one layer. Blocks and channels are those of this rank."""

    first: Linear
    """Column parallel: inputs of the convolution, then gates of the results."""
    conv: Tensor
    """[channels, kernel]"""
    conv_bias: Tensor
    """[channels]"""
    gates: Tensor
    """[blocks, width, 2 * width], from the channels of a block to the gates of their decays, then of their inputs."""
    gates_bias: Tensor
    """[2, channels] float32"""
    rate: Tensor
    """[channels] float32, log decays where the gate is open."""
    out: Linear
    """Output projection, row parallel."""


def load_gated_lru(checkpoint: Checkpoint, layer: int, spec: GatedLruSpec) -> GatedLruWeights:
    """Reads the blocks of this rank. Raises ModelFilesError."""
    names, source, hidden = checkpoint.names, checkpoint.source, checkpoint.spec.hidden_size
    blocks = even_span(spec.blocks, checkpoint.group.rank, checkpoint.group.world_size)
    span = blocks[0] * spec.width, blocks[1] * spec.width
    mine = Slice(0, *blocks)
    first = [RowBlock(checkpoint.inside(layer, name), spec.channels, (span,)) for name in names.lru_in]
    conv, out = checkpoint.inside(layer, names.lru_conv), checkpoint.inside(layer, names.lru_out)
    gates = [checkpoint.inside(layer, name) for name in names.lru_gates]
    weights = [source.read(f"{name}_weight", (spec.blocks, spec.width, spec.width), mine) for name in gates]
    biases = [source.read(f"{name}_bias", (spec.blocks, spec.width), mine, torch.float32) for name in gates]
    rate = source.read(checkpoint.inside(layer, names.lru_rate), (spec.channels,), Slice(0, *span), torch.float32)
    return GatedLruWeights(
        column_parallel(checkpoint, first, hidden, bias=True),
        in_step(read_ranges(source, f"{conv}.weight", (spec.channels, 1, spec.kernel), 0, (span,))),
        read_ranges(source, f"{conv}.bias", (spec.channels,), 0, (span,)),
        torch.cat(weights, dim=2),
        torch.stack([each.flatten() for each in biases]),
        functional.softplus(rate).mul_(-_SHARPNESS),
        row_parallel(checkpoint, out, (hidden, spec.channels), span, checkpoint.is_first),
    )
