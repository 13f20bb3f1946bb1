"""Weights of vision towers and their projectors, whole on every rank, in the type of the model.

Quantised checkpoints leave the tower as it was: what is stored in fewer bits is refused here.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from ...config.spec import NormSpec
from ...config.vision import BlockSpec, LevelSpec, LinearSpec, MarkSpec, QuerySpec, TowerSpec, VisionNames, VisionSpec
from ...weights import WeightSource
from .checkpoint import NormWeights, fold_norm_weight

MARKS = 5
"""Kinds of positions around and between tiles."""


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
    norm: NormWeights
    """Of patches."""
    kv: Affine
    """Keys above values."""
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


def vision_prefixes(names: VisionNames, has: Callable[[str], bool]) -> tuple[str, str] | None:
    """Returns the prefixes of tower and projector in a checkpoint; None where there is no tower. `has` says whether a
    tensor exists.
    """
    return next((pair for pair in names.prefixes if has(f"{pair[0]}{names.patch}.weight")), None)


def load_vision(source: WeightSource, spec: VisionSpec, prefixes: tuple[str, str]) -> VisionWeights:
    """Reads tower and projectors. Raises ModelFilesError."""
    reader = _Reader(source, spec.names, *prefixes)
    blocks = tuple(reader.block(index, spec.tower) for index in range(spec.tower.blocks))
    levels = tuple(reader.level(each, spec.tower) for each in spec.levels)
    newline = reader.newline(spec.hidden) if spec.tiles is not None else None
    marks = None if spec.marks is None else reader.marks(spec.marks, spec.hidden)
    return VisionWeights(reader.patches(spec.tower), blocks, levels, newline, marks)


@dataclass(frozen=True)
class _Reader:
    source: WeightSource
    names: VisionNames
    prefix: str
    projector: str

    def patches(self, tower: TowerSpec) -> PatchWeights:
        """Reads what stands before the blocks. The frames of a patch are equal, so their matrices are added up."""
        names, hidden = self.names, tower.hidden
        frames = (tower.frames,) if tower.frames > 1 else ()
        name = f"{self.prefix}{names.patch}"
        if names.patch_layout != "convolution":
            stored = self.source.read(f"{name}.weight", (hidden, tower.patch * tower.patch * 3))
            if names.patch_layout == "channels last":
                stored = stored.unflatten(1, (tower.patch * tower.patch, 3)).transpose(1, 2).contiguous()
        else:
            stored = self.source.read(f"{name}.weight", (hidden, 3, *frames, tower.patch, tower.patch))
        if frames:
            stored = stored.to(torch.float32).sum(2).to(stored.dtype)
        bias = self.source.read(f"{name}.bias", (hidden,)) if tower.patch_bias else None
        token = self._row(names.class_token, (hidden,)) if tower.class_token else None
        positions = None
        if tower.positions is not None:
            rows = tower.positions.rows + (1 if tower.class_token else 0)
            side = tower.positions.side
            shape = (rows // side, side, hidden) if names.positions_in_rows else (rows, hidden)
            positions = self._row(names.positions, shape).reshape(rows, hidden)
            positions = positions.roll(1, 0) if names.class_last else positions
        patch_norm = self._norm(f"{self.prefix}{names.patch_norm}", tower.patch_norm, hidden)
        first_norm = self._norm(f"{self.prefix}{names.first_norm}", tower.first_norm, hidden)
        return PatchWeights(Affine(stored.reshape(hidden, -1), bias), token, positions, patch_norm, first_norm)

    def _row(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Reads a tensor that some classes store with dimensions of one element in front."""
        name = f"{self.prefix}{name}"
        dimensions = self.names.dimensions
        return self.source.read(name, (*(1,) * (dimensions - len(shape)), *shape)).reshape(shape)

    def block(self, index: int, tower: TowerSpec) -> BlockWeights:
        """Reads block `index`."""
        names, spec, hidden = self.names, tower.block, tower.hidden
        inside = f"{self.prefix}{names.block.format(index)}"
        width = spec.heads * spec.head_dim
        norms = tuple(self._present(f"{inside}{name}", spec.norm, hidden) for name in names.norms)
        scales = tuple(self.source.read(f"{inside}{name}", (hidden,)) for name in names.scales) if spec.scaled else ()
        return BlockWeights(
            norms=(norms[0], norms[1]),
            qkv=self._qkv(inside, tower),
            qk_norms=self._qk_norms(inside, tower, width),
            out=self._stacked([f"{inside}{names.out}"], hidden, width, spec.out_bias, spec.clipped),
            first=self._stacked(
                [f"{inside}{name}" for name in names.first],
                spec.inner * (2 if spec.gated else 1),
                hidden,
                spec.ffn_bias,
                spec.clipped,
            ),
            second=self._stacked([f"{inside}{names.second}"], hidden, spec.inner, spec.ffn_bias, spec.clipped),
            scales=(scales[0], scales[1]) if scales else None,
            output_norms=self._output_norms(inside, spec, hidden),
        )

    def _qkv(self, inside: str, tower: TowerSpec) -> Affine:
        """Reads queries, keys and values. Elements of a head that are rotated together move half a head apart."""
        spec = tower.block
        names = [f"{inside}{name}" for name in self.names.qkv]
        qkv = self._stacked(names, 3 * spec.heads * spec.head_dim, tower.hidden, spec.qkv_bias, spec.clipped)
        if (of_head := _halves_apart(tower)) is None:
            return qkv
        each = torch.arange(3 * spec.heads * spec.head_dim).view(3, spec.heads, spec.head_dim)
        order = torch.cat([each[:2, :, of_head].flatten(), each[2].flatten()]).to(qkv.weight.device)
        return Affine(qkv.weight[order], None if qkv.bias is None else qkv.bias[order], qkv.bounds)

    def _qk_norms(self, inside: str, tower: TowerSpec, width: int) -> tuple[NormWeights, NormWeights] | None:
        spec = tower.block
        if (norm := spec.qk_norm) is None:
            return None
        size = spec.head_dim if spec.qk_norm_by_head else width
        q, k = (self._present(f"{inside}{name}", norm, size) for name in self.names.qk_norms)
        if (of_head := _halves_apart(tower)) is None or not spec.qk_norm_by_head:
            return q, k
        return NormWeights(q.weight[of_head], q.bias), NormWeights(k.weight[of_head], k.bias)

    def _output_norms(self, inside: str, spec: BlockSpec, hidden: int) -> tuple[NormWeights, NormWeights] | None:
        if not spec.output_norms:
            return None
        first, second = (self._present(f"{inside}{name}", spec.norm, hidden) for name in self.names.output_norms)
        return first, second

    def level(self, level: LevelSpec, tower: TowerSpec) -> LevelWeights:
        """Reads one projector."""
        width, joined = tower.hidden * len(level.reads), level.inputs(tower)
        norm_name = f"{self.projector}{level.norm_name}"
        return LevelWeights(
            last_norm=self._norm(f"{self.prefix}{self.names.last_norm}", level.last_norm, tower.hidden),
            norm=self._norm(norm_name, level.norm, width),
            of_patches=self._linears(level.of_patches, width),
            halvings=tuple(self._halving(name, width * 2**index) for index, name in enumerate(level.halvings)),
            queries=None if level.queries is None else self._queries(level.queries, width),
            joined_norm=self._norm(norm_name, level.joined_norm, joined),
            linears=self._linears(level.linears, joined),
            standard=self._standard(tower.hidden) if level.standardised else None,
        )

    def _standard(self, size: int) -> tuple[Tensor, Tensor]:
        bias, scale = (self.source.read(f"{self.prefix}{name}", (size,)) for name in self.names.standard)
        return bias, scale

    def newline(self, hidden: int) -> Tensor:
        """Reads what stands behind a row of patches of tiles. It is beside the projector, not in it."""
        return self.source.read(f"{self.projector.removesuffix(self.names.beside)}image_newline", (hidden,))

    def marks(self, spec: MarkSpec, hidden: int) -> Tensor:
        """Reads what stands around and between tiles."""
        return self.source.read(f"{self.projector}{spec.weight}", (spec.rows, hidden))[-MARKS:]

    def _linears(self, specs: Sequence[LinearSpec], inputs: int) -> tuple[LinearWeights, ...]:
        widths = [inputs, *(each.outputs for each in specs)]
        return tuple(self._linear(each, width) for each, width in zip(specs, widths, strict=False))

    def _queries(self, spec: QuerySpec, width: int) -> QueryWeights:
        """Reads queries with the names of Aria."""
        prefix, attention = f"{self.projector}cross_attn.", f"{self.projector}cross_attn.multihead_attn."

        def read(name: str, *shape: int) -> Tensor:
            return self.source.read(name, shape).float()

        before = torch.stack([read(f"{prefix}{each}_proj.weight", width, width) for each in "qkv"])
        inside = read(f"{attention}in_proj_weight", 3 * width, width).unflatten(0, (3, width)) @ before
        bias = read(f"{attention}in_proj_bias", 3 * width)
        last, last_bias = read(f"{prefix}linear.weight", width, width), read(f"{prefix}linear.bias", width)
        out, out_bias = read(f"{attention}out_proj.weight", width, width), read(f"{attention}out_proj.bias", width)
        stored = self.source.read(f"{self.projector}query", (max(spec.counts.values()), width))
        norm = read(f"{prefix}layer_norm.weight", width), read(f"{prefix}layer_norm.bias", width)
        queries = functional.layer_norm(stored.float(), (width,), *norm, spec.norm.eps) @ inside[0].t() + bias[:width]
        dtype = stored.dtype
        return QueryWeights(
            queries=queries.to(dtype),
            norm=self._present(f"{prefix}layer_norm_kv", spec.norm, width),
            kv=Affine(inside[1:].flatten(0, 1).to(dtype), bias[width:].to(dtype)),
            out=Affine((last @ out).to(dtype), (last @ out_bias + last_bias).to(dtype)),
        )

    def _halving(self, name: str, channels: int) -> Affine:
        weight = self.source.read(f"{self.prefix}{name}.weight", (2 * channels, channels, 3, 3))
        return Affine(weight, self.source.read(f"{self.prefix}{name}.bias", (2 * channels,)))

    def _linear(self, spec: LinearSpec, inputs: int) -> LinearWeights:
        norm = self._norm(f"{self.projector}{spec.norm_name}", spec.norm, spec.outputs)
        matrix = self._matrix(spec, inputs)
        if spec.gate:
            gate = self.source.read(f"{self.projector}{spec.gate}", (spec.outputs, inputs))
            matrix = Affine(_joined([gate, matrix.weight]), matrix.bias)
        return LinearWeights(matrix, norm)

    def _matrix(self, spec: LinearSpec, inputs: int) -> Affine:
        name, bias = f"{self.projector}{spec.weight}", None
        if side := spec.patches:
            shape = (spec.outputs, inputs // side**2, side, side)
            weight = self.source.read(name, shape).reshape(spec.outputs, inputs)
        elif spec.transposed:
            weight = self.source.read(name, (inputs + spec.rest, spec.outputs))[:inputs].t().contiguous()
        else:
            weight = self.source.read(name, (spec.outputs, inputs))
        if spec.bias is not None:
            bias = self.source.read(f"{self.projector}{spec.bias}", (spec.outputs,))
        return Affine(weight, bias)

    def _stacked(self, names: Sequence[str], outputs: int, inputs: int, bias: bool, clipped: bool = False) -> Affine:
        """Reads matrices of as many outputs each, one below the other."""
        each = outputs // len(names)
        weights = [self.source.read(_tensor(name, "weight"), (each, inputs)) for name in names]
        biases = [self.source.read(_tensor(name, "bias"), (each,)) for name in names] if bias else []
        bounds = tuple(self._bounds(name.removesuffix(self.names.clipped)) for name in names) if clipped else ()
        return Affine(_joined(weights), _joined(biases) if biases else None, bounds)

    def _bounds(self, name: str) -> Bounds:
        ends = [self.source.read(f"{name}.{end}", ()).item() for end in ("input_min", "input_max")]
        others = [self.source.read(f"{name}.{end}", ()).item() for end in ("output_min", "output_max")]
        return Bounds((ends[0], ends[1]), (others[0], others[1]))

    def _norm(self, name: str, spec: NormSpec | None, size: int) -> NormWeights | None:
        return None if spec is None or not spec.weight else self._present(name, spec, size)

    def _present(self, name: str, spec: NormSpec, size: int) -> NormWeights:
        weight = fold_norm_weight(self.source.read(f"{name}.weight", (size,)), spec)
        return NormWeights(weight, self.source.read(f"{name}.bias", (size,)) if spec.bias else None)


def _halves_apart(tower: TowerSpec) -> Tensor | None:
    """The stored elements of a head in the order in which those that are rotated together are half a head apart; None:
    they are.
    """
    each = torch.arange(tower.block.head_dim)
    if tower.rope is not None and tower.rope.order in ("neighbours", "neighbours by half"):
        return each.view(-1, 2).t().flatten()
    if tower.rope is not None and tower.rope.order == "quarters":
        return each.view(2, 2, -1).transpose(0, 1).flatten()
    if tower.rope is not None and tower.rope.order == "thirds":
        rotated, rest = each.split([6 * tower.rope.third(len(each)), len(each) % 6])
        return torch.cat([half for both in zip(rotated.chunk(2), rest.chunk(2), strict=True) for half in both])
    return None


def _tensor(name: str, kind: str) -> str:
    return f"{name}{kind}" if name.endswith("_") else f"{name}.{kind}"


def _joined(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))
