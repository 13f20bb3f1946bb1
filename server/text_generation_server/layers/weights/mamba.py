"""Weights of both kinds of state space layers (Mamba 1 and 2). Each rank has some of the channels, or heads."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ...config.recurrent import Mamba2Spec, MambaSpec
from ...weights import Slice
from .blocks import RowBlock, in_step, ranges, read_ranges
from .checkpoint import Checkpoint
from .linear import Linear
from .loading import column_parallel, row_parallel
from .split import HeadSplit, even_span

Span = tuple[int, int]


@dataclass(frozen=True)
class MambaWeights:
    """The weights of one Mamba 1 layer. Channels are those of this rank."""

    first: Linear
    """Column parallel: inputs of the convolution, then gates of the results."""
    conv: Tensor
    """[channels, kernel]"""
    conv_bias: Tensor | None
    """[channels]"""
    selection: Linear
    """Row parallel: the low-rank vector of time steps, then what writes (B) and what reads (C) the states."""
    norms: tuple[Tensor, Tensor, Tensor] | None
    """Norm weights of these three."""
    steps: Linear
    """Column parallel: from the low-rank vector to the channels' time steps (delta)."""
    rate: Tensor
    """[channels, state_size] float32, logarithms of decay rates (A)."""
    skip: Tensor
    """[channels] float32, the factor by which each input is added to its own result (D)."""
    bias: Tensor
    """[channels] float32, the bias of the time steps."""
    out: Linear
    """Output projection, row parallel."""


@dataclass(frozen=True)
class Mamba2Weights:
    """The weights of one Mamba 2 layer. Heads are those of this rank."""

    first: Linear
    """Column parallel: gates of the results, inputs of the convolution (channels, then B, which writes the states, and
    C, which reads them), then time steps of the heads.
    """
    conv: Tensor
    """[inputs of the convolution, kernel]"""
    conv_bias: Tensor | None
    rate: Tensor
    """[heads] float32, logarithms of decay rates (A)."""
    skip: Tensor
    """[heads] float32, the factor by which each input is added to its own result (D)."""
    bias: Tensor
    """[heads] float32, the bias of the time steps."""
    norm: Tensor | None
    """[groups, channels of a group], or, where all channels are normalised together, [1, channels of this rank]. None:
    there is no norm."""
    out: Linear
    """Output projection, row parallel."""


def load_mamba(checkpoint: Checkpoint, layer: int, spec: MambaSpec) -> MambaWeights:
    """Reads the channels of this rank. Raises ModelFilesError."""
    names, source, hidden = checkpoint.names, checkpoint.source, checkpoint.spec.hidden_size
    span = even_span(spec.channels, checkpoint.group.rank, checkpoint.group.world_size)
    mine = Slice(0, *span)
    first = RowBlock(checkpoint.inside(layer, names.mamba_in), 2 * spec.channels, (span, _behind(span, spec.channels)))
    dt = checkpoint.inside(layer, names.mamba_dt)
    norms = None
    if spec.norm_eps is not None:
        sizes = spec.rank, spec.state_size, spec.state_size
        dt_norm, b_norm, c_norm = (
            source.read(f"{checkpoint.inside(layer, name)}.weight", (size,))
            if spec.norm_weights
            else source.empty((size,)).fill_(1.0)
            for name, size in zip(names.mamba_norms, sizes, strict=True)
        )
        norms = dt_norm, b_norm, c_norm
    selected = spec.rank + 2 * spec.state_size
    return MambaWeights(
        column_parallel(checkpoint, [first], hidden, spec.bias),
        *_convolution(checkpoint, layer, spec, spec.channels, (span,)),
        row_parallel(checkpoint, checkpoint.inside(layer, names.mamba_x), (selected, spec.channels), span, False),
        norms,
        column_parallel(checkpoint, [RowBlock(dt, spec.channels, (span,))], spec.rank, False),
        source.read(checkpoint.inside(layer, names.mamba_rate), (spec.channels, spec.state_size), mine, torch.float32),
        source.read(checkpoint.inside(layer, names.mamba_skip), (spec.channels,), mine, torch.float32),
        source.read(f"{dt}.bias", (spec.channels,), mine, torch.float32),
        _out(checkpoint, layer, spec, spec.channels, span),
    )


def load_mamba2(checkpoint: Checkpoint, layer: int, spec: Mamba2Spec, split: HeadSplit) -> Mamba2Weights:
    """Reads the heads of this rank, and their groups, which `split` counts as key heads. Raises ModelFilesError."""
    names, hidden = checkpoint.names, checkpoint.spec.hidden_size
    heads = split.q_start, split.q_stop
    channels, keys = _times(heads, spec.head_dim), ranges(split.kv_heads, spec.state_size)
    width, all_keys = spec.num_heads * spec.head_dim, spec.groups * spec.state_size
    conv = channels, *(_behind(each, width + place) for place in (0, all_keys) for each in keys)
    inputs = width + 2 * all_keys
    first = RowBlock(
        checkpoint.inside(layer, names.mamba_in),
        width + inputs + spec.num_heads,
        (channels, *(_behind(span, width) for span in conv), _behind(heads, width + inputs)),
    )

    def of_heads(name: str) -> Tensor:
        whole = checkpoint.inside(layer, name)
        return checkpoint.source.read(whole, (spec.num_heads,), Slice(0, *heads), torch.float32)

    norm = None
    if spec.norm is not None:
        name, dtype = f"{checkpoint.inside(layer, names.mamba_norm)}.weight", torch.float32 if spec.wide_norm else None
        norm = checkpoint.source.read(name, (width,), Slice(0, *channels), dtype)
        norm = norm.view(1 if spec.norm_over == "width" else split.num_kv_heads, -1)
    return Mamba2Weights(
        column_parallel(checkpoint, [first], hidden, spec.bias),
        *_convolution(checkpoint, layer, spec, inputs, conv),
        of_heads(names.mamba_rate),
        of_heads(names.mamba_skip),
        of_heads(names.mamba_bias),
        norm,
        _out(checkpoint, layer, spec, width, channels),
    )


def _convolution(
    checkpoint: Checkpoint, layer: int, spec: MambaSpec | Mamba2Spec, inputs: int, cuts: tuple[Span, ...]
) -> tuple[Tensor, Tensor | None]:
    """Reads the weight and the bias of the convolution for some of its inputs."""
    source, name = checkpoint.source, checkpoint.inside(layer, checkpoint.names.mamba_conv)
    weight = read_ranges(source, f"{name}.weight", (inputs, 1, spec.kernel), 0, cuts)
    return in_step(weight), read_ranges(source, f"{name}.bias", (inputs,), 0, cuts) if spec.conv_bias else None


def _out(checkpoint: Checkpoint, layer: int, spec: MambaSpec | Mamba2Spec, width: int, channels: Span) -> Linear:
    name, shape = checkpoint.inside(layer, checkpoint.names.mamba_out), (checkpoint.spec.hidden_size, width)
    return row_parallel(checkpoint, name, shape, channels, spec.bias and checkpoint.is_first)


def _behind(span: Span, first: int) -> Span:
    return first + span[0], first + span[1]


def _times(span: Span, size: int) -> Span:
    return span[0] * size, span[1] * size
