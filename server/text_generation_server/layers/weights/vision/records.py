"""Weights of an encoder of images."""

from dataclasses import dataclass

from torch import Tensor

from ..checkpoint import NormWeights


@dataclass(frozen=True)
class Bounds:
    """Least and largest values, of what a matrix reads and of what it makes."""

    inputs: tuple[float, float]
    outputs: tuple[float, float]


@dataclass(frozen=True)
class Affine:
    """A linear layer that no scheme quantises."""

    weight: Tensor
    """[outputs, inputs]"""
    bias: Tensor | None
    """[outputs]"""
    bounds: tuple[Bounds, ...] = ()
    """Of each of the matrices of as many outputs that it consists of."""


@dataclass(frozen=True)
class PatchWeights:
    """What makes the first hidden states."""

    patch: Affine
    """[hidden, 3 * patch * patch], in the order channel, row, column."""
    class_token: Tensor | None
    """[hidden]"""
    positions: Tensor | None
    """[rows of `PositionSpec`, hidden], with one more row before, for the class token, where there is one."""
    patch_norm: NormWeights | None
    first_norm: NormWeights | None


@dataclass(frozen=True)
class BlockWeights:
    """The weights of one block."""

    norms: tuple[NormWeights, NormWeights]
    qkv: Affine
    qk_norms: tuple[NormWeights, NormWeights] | None
    out: Affine
    first: Affine
    """The first matrix of the feed-forward network, gate above up where it is gated."""
    second: Affine
    scales: tuple[Tensor, Tensor] | None
    """[hidden] each: of the outputs of both sublayers."""
    output_norms: tuple[NormWeights, NormWeights] | None


@dataclass(frozen=True)
class LinearWeights:
    """The weights of one linear layer of a projector."""

    matrix: Affine
    """The gate above it, where there is one."""
    norm: NormWeights | None


@dataclass(frozen=True)
class QueryWeights:
    """Learned queries. Linear layers that follow each other are one matrix here."""

    queries: Tensor
    """[queries, width]: as they attend."""
    positions: Tensor | None
    """[rows of the table of `QuerySpec`, width], where there is one."""
    norm: NormWeights
    """Of patches."""
    k: Affine
    v: Affine
    out: Affine


@dataclass(frozen=True)
class LevelWeights:
    """The weights of one projector."""

    last_norm: NormWeights | None
    norm: NormWeights | None
    of_patches: tuple[LinearWeights, ...]
    halvings: tuple[Affine, ...]
    """[2 * channels, channels, 3, 3] each."""
    queries: QueryWeights | None
    joined_norm: NormWeights | None
    linears: tuple[LinearWeights, ...]
    standard: tuple[Tensor, Tensor] | None
    """[inputs] each: what is subtracted, and what multiplies then."""


@dataclass(frozen=True)
class VisionWeights:
    """All weights of an encoder of images."""

    patches: PatchWeights
    blocks: tuple[BlockWeights, ...]
    levels: tuple[LevelWeights, ...]
    newline: Tensor | None
    """[decoder's hidden]: what stands behind a row of patches of tiles."""
    marks: Tensor | None
    """[5, decoder's hidden]: what stands around and between tiles."""
