"""Weights of a layer with a short convolution between two gates. Each rank has some of the channels."""

from dataclasses import dataclass

from torch import Tensor

from ...config.recurrent import ShortConvSpec
from .blocks import RowBlock, in_step, read_ranges
from .checkpoint import Checkpoint
from .linear import Linear
from .loading import column_parallel, row_parallel
from .split import even_span


@dataclass(frozen=True)
class ShortConvWeights:
    """The weights of one layer. Channels are those of this rank."""

    first: Linear
    """Column parallel: gates of the convolution's input, gates of its result, and its input."""
    conv: Tensor
    """[channels, kernel]"""
    conv_bias: Tensor | None
    """[channels]"""
    out: Linear
    """Output projection, row parallel."""


def load_short_conv(checkpoint: Checkpoint, layer: int, spec: ShortConvSpec) -> ShortConvWeights:
    """Reads the channels of this rank. Raises ModelFilesError."""
    names, source, hidden = checkpoint.names, checkpoint.source, checkpoint.spec.hidden_size
    start, stop = even_span(spec.channels, checkpoint.group.rank, checkpoint.group.world_size)
    cuts = tuple((part * spec.channels + start, part * spec.channels + stop) for part in range(3))
    first = RowBlock(checkpoint.inside(layer, names.conv_in), 3 * spec.channels, cuts)
    conv, out = checkpoint.inside(layer, names.conv), checkpoint.inside(layer, names.conv_out)
    weight = read_ranges(source, f"{conv}.weight", (spec.channels, 1, spec.kernel), 0, cuts[:1])
    bias = read_ranges(source, f"{conv}.bias", (spec.channels,), 0, cuts[:1]) if spec.bias else None
    return ShortConvWeights(
        column_parallel(checkpoint, [first], hidden, spec.bias),
        in_step(weight),
        bias,
        row_parallel(checkpoint, out, (hidden, spec.channels), cuts[0], spec.bias and checkpoint.is_first),
    )
