"""Linear layers with adapters beside them (LoRA, Hu et al., 2021): `y = c (W x + s B A x) + b`.

A step whose tokens use adapters runs through layers that have `AdaptedLinear` in place of what the adapters change, and
share everything else with the layers of the base. A step of the base alone never comes here.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Protocol, TypeVar

from torch import Tensor

from text_generation_kernels import (
    LONGEST_RUN,
    OUTPUT_BLOCK,
    empty_shrunk,
    lora_expand,
    lora_expand_gated,
    lora_shrink,
    part_of_blocks,
    run_of,
)

from .activations import Activations, ActivationScheme
from .adapted_experts import ExpertSite, ExpertTables
from .adapted_norm import ReplacedNorm
from .checkpoint import NormWeights
from .current_adapters import CurrentAdapters
from .linear import Linear, LinearOver, total_bytes
from .sites import Site

Weights = TypeVar("Weights")


class Adapting(Protocol):
    """Makes parts of a model for tokens with adapters: `linear` returns what it is given where none changes it."""

    current: CurrentAdapters
    """The tables of the step that runs."""

    def linear(self, linear: Linear) -> Linear:
        """Returns a linear layer with what adapters add to it."""
        ...

    def norm(self, weights: NormWeights) -> ReplacedNorm | None:
        """Returns the weights of adapters in place of these; None: no adapter has any."""
        ...

    def experts(self, site: ExpertSite) -> ExpertTables | None:
        """Returns what adapters add to experts; None: nothing."""
        ...


@dataclass(frozen=True)
class _Piece:
    """Outputs `first` .. `end - 1` of a layer: what the kernels compute at once."""

    a: Tensor
    """[pages, parts, units, inputs]"""
    b: Tensor
    """[pages, end - first, units]"""
    scale: Tensor
    """[pages, parts] float32"""
    blocks: Tensor | None
    """[blocks of outputs] int32; None: there is one part."""
    first: int
    end: int
    run: int = LONGEST_RUN
    """See `run_of`."""


class SitePages:
    """What all adapters add to one linear layer of this rank, in rank pages on the device."""

    def __init__(
        self,
        site: Site,
        pages: tuple[Tensor, Tensor, Tensor] | None,
        factors: Tensor | None,
        bias: Tensor | None,
        unscaled_bias: Tensor | None,
    ) -> None:
        """`pages` are A, B and scales, as those of `LowRankPages`, in the pages of all adapters, with zeros where one
        does not change the layer; None: adapters change outputs and biases alone.
        """
        self.pieces = [] if pages is None else _pieces(site, *pages)
        """All outputs, each in one piece."""
        self.factors = factors
        """[1 + adapters, outputs] float32, by which DoRA multiplies the outputs; None: no adapter has any."""
        self.bias = bias
        """[1 + adapters, outputs] float32, what is added to the bias of the base; None: nothing."""
        self.unscaled_bias = unscaled_bias
        """The same, where the base's bias was added before outputs are multiplied: `b = c b + (1 - c) b`. So outputs
        of tokens without adapter keep their bits.
        """

    @property
    def changes_outputs(self) -> bool:
        """Whether an adapter may multiply outputs, or change biases."""
        return any(each is not None for each in (self.factors, self.bias, self.unscaled_bias))

    @property
    def nbytes(self) -> int:
        """The bytes of all its tensors."""
        tensors = [tensor for each in self.pieces for tensor in (each.a, each.b, each.scale, each.blocks)]
        return total_bytes(*tensors, self.factors, self.bias, self.unscaled_bias)


class AdaptedLinear(LinearOver):
    """A linear layer, and what the adapters of a step's tokens add to its outputs. Biases of adapters are added by
    `matmul` already.
    """

    def __init__(self, base: Linear, pages: SitePages, current: CurrentAdapters) -> None:
        super().__init__(base)
        self._pages = pages
        self._current = current
        piece = pages.pieces[0] if len(pages.pieces) == 1 else None
        self._piece = None if piece is None or piece.end < base.outputs else piece
        """All outputs, where they are in one piece."""

    @property
    def nbytes(self) -> int:
        """The bytes of the pages: those of the matrix are the base's."""
        return self._pages.nbytes

    def apply(self, x: Activations, block: int | None = None) -> Tensor:
        """See `Linear`."""
        return self._changed(self._base.apply(x, block), x, self._pages.unscaled_bias)

    def matmul(self, x: Activations, block: int | None = None) -> Tensor:
        """See `Linear`."""
        return self._changed(self._base.matmul(x, block), x, self._pages.bias)

    def gated(
        self, x: Activations, activation: str, wants: ActivationScheme | None, block: int | None = None
    ) -> Activations:
        """See `Linear`."""
        piece = self._piece
        if wants is not None or piece is None or not self._only_adds:
            return super().gated(x, activation, wants, block)
        sums = self._base.apply(x, block)
        out = sums.new_empty(len(sums), self.outputs // 2)
        shrunk, tables = self._shrunk(x, piece)
        lora_expand_gated(shrunk, piece.b, piece.blocks, *tables, sums, activation, out, piece.run)
        return Activations(out)

    @property
    def _only_adds(self) -> bool:
        """Whether adapters of this step add low-rank changes to the outputs, and nothing else."""
        return not (self._current.step.by_output and self._pages.changes_outputs)

    def _shrunk(self, x: Activations, piece: _Piece) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
        """Computes A of the adapters times the inputs, and returns it with the tables that say whose it is."""
        # The GEMV of one token has normalised `x` by now, and 8-bit inputs are kept in 16 bits beside the codes.
        step = self._current.step
        tables = step.order, step.tiles, step.work
        shrunk = empty_shrunk(x.x, piece.a, step.work, step.tile_tokens)
        lora_shrink(x.x, piece.a, piece.scale, *tables, shrunk)
        return shrunk, tables

    def _changed(self, out: Tensor, x: Activations, bias: Tensor | None) -> Tensor:
        """Adds to the base's outputs, in place, what the adapters do. For a token that depends on nothing else in the
        step, so it has no blocks; outputs of tokens without adapter keep their bits.
        """
        step, pages = self._current.step, self._pages
        for each in pages.pieces:
            shrunk, tables = self._shrunk(x, each)
            lora_expand(shrunk, each.b, each.blocks, *tables, out[:, each.first : each.end], True, each.run)
        if not step.by_output:
            return out
        if pages.factors is not None:
            out.mul_(pages.factors.index_select(0, step.numbers))
        if bias is not None:
            out.add_(bias.index_select(0, step.numbers))
        return out


def _pieces(site: Site, a: Tensor, b: Tensor, scale: Tensor) -> list[_Piece]:
    """One piece, where the parts of the layer begin at blocks of outputs, else one for each range of a part."""
    outputs, ranges = b.shape[1], site.ranges()
    if len(site.modules) == 1:
        return [_Piece(a, b, scale, None, 0, outputs)]
    if ranges[-1][1] < outputs:
        # Padding belongs to the last part, whose B is zero there.
        ranges[-1] = (ranges[-1][0], outputs, ranges[-1][2])
    if all(first % OUTPUT_BLOCK == 0 for first, _, _ in ranges):
        return [_Piece(a, b, scale, part_of_blocks(ranges, outputs, b.device), 0, outputs, run_of(ranges))]
    return [
        _Piece(a[:, part : part + 1], b[:, first:end], scale[:, part : part + 1], None, first, end)
        for first, end, part in ranges
    ]


def wrapped(weights: Weights, adapting: Adapting, but: Sequence[str] = ()) -> Weights:
    """Returns the weights of a layer, a dataclass, with each linear layer among its fields for tokens with adapters,
    `but` for some.
    """
    found = {each.name: getattr(weights, each.name) for each in fields(weights) if each.name not in but}  # type: ignore[arg-type]
    linear = {name: adapting.linear(value) for name, value in found.items() if hasattr(value, "site")}
    return replace(weights, **linear)  # type: ignore[type-var]
