"""Reading of projectors, and of positions between the results of several views."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from ....config.vision import LevelSpec, LinearSpec, MarkSpec, QuerySpec, TowerSpec
from .reading import Reader, joined
from .records import Affine, LevelWeights, LinearWeights, QueryWeights

MARKS = 5
"""Kinds of positions around and between tiles."""


@dataclass(frozen=True)
class ProjectorReader(Reader):
    """Reads projectors."""

    def level(self, level: LevelSpec, tower: TowerSpec) -> LevelWeights:
        """Reads one projector."""
        width, inputs = tower.hidden * len(level.reads), level.inputs(tower)
        norm_name = f"{self.projector}{level.norm_name}"
        return LevelWeights(
            last_norm=self.norm(f"{self.prefix}{self.names.last_norm}", level.last_norm, tower.hidden),
            norm=self.norm(norm_name, level.norm, width),
            of_patches=self._linears(level.of_patches, width),
            halvings=tuple(self._halving(name, width * 2**index) for index, name in enumerate(level.halvings)),
            queries=None if level.queries is None else self._queries(level.queries, inputs),
            joined_norm=self.norm(norm_name, level.joined_norm, inputs),
            linears=self._linears(level.linears, inputs),
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
        return self._queries_of_aria(spec, width) if spec.names == "aria" else self._queries_of_minicpm(spec, width)

    def _queries_of_minicpm(self, spec: QuerySpec, width: int) -> QueryWeights:
        prefix = f"{self.projector}{spec.prefix}"
        names = ("query", "attn.in_proj_weight", "attn.in_proj_bias")
        shapes = ((max(spec.counts.values()), width), (3 * width, width), (3 * width,))
        pairs = zip(names, shapes, strict=True)
        stored, weight, bias = (self.source.read(f"{prefix}{name}", shape) for name, shape in pairs)
        norm = self.present(f"{prefix}ln_q", spec.norm, width)
        asked = functional.layer_norm(
            stored.float(),
            (width,),
            norm.weight.float(),
            None if norm.bias is None else norm.bias.float(),
            spec.norm.eps,
        )
        positions = None
        if spec.table is not None:
            positions = self.source.read(f"{prefix}pos_embed", (spec.table.rows, width))
            asked = asked + positions.float()
        (q, k, v), (q_bias, k_bias, v_bias) = weight.chunk(3), bias.chunk(3)
        return QueryWeights(
            queries=(asked @ q.float().t() + q_bias.float()).to(stored.dtype),
            positions=positions,
            norm=self.present(f"{prefix}ln_kv", spec.norm, width),
            k=Affine(k, k_bias),
            v=Affine(v, v_bias),
            out=self.stacked([f"{prefix}attn.out_proj"], width, width, bias=True),
        )

    def _queries_of_aria(self, spec: QuerySpec, width: int) -> QueryWeights:
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
            positions=None,
            norm=self.present(f"{prefix}layer_norm_kv", spec.norm, width),
            k=Affine(inside[1].to(dtype), bias[width : 2 * width].to(dtype)),
            v=Affine(inside[2].to(dtype), bias[2 * width :].to(dtype)),
            out=Affine((last @ out).to(dtype), (last @ out_bias + last_bias).to(dtype)),
        )

    def _halving(self, name: str, channels: int) -> Affine:
        weight = self.source.read(f"{self.prefix}{name}.weight", (2 * channels, channels, 3, 3))
        return Affine(weight, self.source.read(f"{self.prefix}{name}.bias", (2 * channels,)))

    def _linear(self, spec: LinearSpec, inputs: int) -> LinearWeights:
        norm = self.norm(f"{self.projector}{spec.norm_name}", spec.norm, spec.outputs)
        matrix = self._matrix(spec, inputs)
        if spec.gate:
            gate = self.source.read(f"{self.projector}{spec.gate}", (spec.outputs, inputs))
            matrix = Affine(joined([gate, matrix.weight]), matrix.bias)
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
