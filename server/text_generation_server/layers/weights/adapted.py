"""Linear layers with adapters beside them (LoRA, Hu et al., 2021): `y = c (W x + s B A x) + b`.

A step whose tokens use adapters runs through layers that have `AdaptedLinear` in place of what the adapters change, and
share everything else with the layers of the base. A step of the base alone never comes here.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Protocol, TypeVar

from torch import Tensor

from text_generation_kernels import OUTPUT_BLOCK, empty_shrunk, lora_expand, lora_shrink, part_of_blocks

from .activations import Activations, ActivationScheme
from .adapted_experts import ExpertSite, ExpertTables
from .adapted_norm import ReplacedNorm
from .checkpoint import NormWeights
from .current_adapters import CurrentAdapters, Room, by_number, first_of
from .linear import Linear, activated, total_bytes
from .low_rank import LowRankPages
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
    parts: slice
    """Which parts of the layer these are."""


class SitePages:
    """What all adapters add to one linear layer of this rank, in rank pages on the device."""

    def __init__(self, site: Site, made: Sequence[LowRankPages | None], room: Room, bias: Tensor | None) -> None:
        """Allocates what any of `made` needs; `put` fills it. `bias` [outputs] is that of the base's layer."""
        changing = [each for each in made if each is not None]
        factors = first_of([each.row_factors for each in changing])
        changes_bias = first_of([each.bias for each in changing]) is not None
        self.pieces = _pieces(site, changing[0], room) if any(len(each.a) for each in changing) else []
        """All outputs, each in one piece; none, where adapters change nothing but the bias."""
        self.factors = None if factors is None else by_number(room, factors, 1.0)
        """[1 + adapters, outputs] float32, by which DoRA multiplies the outputs; None: no adapter has any."""
        like = changing[0].b.new_zeros(site.outputs).float()
        self.bias = by_number(room, like, 0.0) if changes_bias else None
        """[1 + adapters, outputs] float32, what is added to the bias of the base; None: nothing."""
        self.unscaled_bias = self.bias
        """The same, where the base's bias was added before outputs are multiplied: `b = c b + (1 - c) b`. So outputs
        of tokens without adapter keep their bits.
        """
        if self.factors is not None and bias is not None:
            self.unscaled_bias = by_number(room, like, 0.0)
        self._base_bias = bias

    def put(self, number: int, pages: slice, made: LowRankPages | None) -> None:
        """Writes what an adapter adds to its pages, and to the row of its number. None: nothing."""
        for each in self.pieces:
            each.a[pages], each.b[pages], each.scale[pages] = 0.0, 0.0, 0.0
            if made is not None and len(made.a):
                own = slice(pages.start, pages.start + len(made.a))
                each.a[own], each.b[own] = made.a[:, each.parts], made.b[:, each.first : each.end]
                each.scale[own] = made.scales[each.parts]
        if self.factors is not None:
            self.factors[number] = 1.0 if made is None or made.row_factors is None else made.row_factors
        if self.bias is not None:
            self.bias[number] = 0.0 if made is None or made.bias is None else made.bias
        if self.factors is not None and self.unscaled_bias is not None and self._base_bias is not None:
            rest = (1 - self.factors[number]) * self._base_bias.float()
            self.unscaled_bias[number] = rest if self.bias is None else rest + self.bias[number]

    @property
    def nbytes(self) -> int:
        """The bytes of all its tensors."""
        tensors = [tensor for each in self.pieces for tensor in (each.a, each.b, each.scale, each.blocks)]
        return total_bytes(*tensors, self.factors, self.bias, self.unscaled_bias)


class AdaptedLinear(Linear):
    """A linear layer, and what the adapters of a step's tokens add to its outputs."""

    def __init__(self, base: Linear, pages: SitePages, current: CurrentAdapters) -> None:
        self._base = base
        self._pages = pages
        self._current = current

    @property
    def site(self) -> Site | None:
        """See `Linear`."""
        return self._base.site

    @property
    def bias(self) -> Tensor | None:
        """See `Linear`. Biases of adapters are added by `matmul` already."""
        return self._base.bias

    @property
    def wants(self) -> ActivationScheme | None:
        """See `Linear`."""
        return self._base.wants

    @property
    def outputs(self) -> int:
        """See `Linear`."""
        return self._base.outputs

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

    def _changed(self, out: Tensor, x: Activations, bias: Tensor | None) -> Tensor:
        """Adds to the base's outputs, in place, what the adapters do. For a token that depends on nothing else in the
        step, so it has no blocks; outputs of tokens without adapter keep their bits.
        """
        step, pages = self._current.step, self._pages
        # The GEMV of one token has normalised `x` by now, and 8-bit inputs are kept in 16 bits beside the codes.
        tables = step.order, step.tiles, step.work
        for each in pages.pieces:
            shrunk = empty_shrunk(x.x, each.a, step.work, step.tile_tokens)
            lora_shrink(x.x, each.a, each.scale, *tables, shrunk)
            lora_expand(shrunk, each.b, each.blocks, *tables, out[:, each.first : each.end], True)
        if pages.factors is not None:
            out.mul_(pages.factors.index_select(0, step.numbers))
        if bias is not None:
            out.add_(bias.index_select(0, step.numbers))
        return out

    def gated(
        self, x: Activations, activation: str, wants: ActivationScheme | None, block: int | None = None
    ) -> Activations:
        """See `Linear`."""
        return activated(self.apply(x, block), activation, wants, block)


def _pieces(site: Site, like: LowRankPages, room: Room) -> list[_Piece]:
    """One piece, where the parts of the layer begin at blocks of outputs, else one for each range of a part."""
    a = like.a.new_zeros(room.pages, *like.a.shape[1:])
    b = like.b.new_zeros(room.pages, *like.b.shape[1:])
    scale = like.scales.new_zeros(room.pages, len(like.scales))
    outputs, ranges, every = b.shape[1], site.ranges(), slice(None)
    if len(site.modules) == 1:
        return [_Piece(a, b, scale, None, 0, outputs, every)]
    if ranges[-1][1] < outputs:
        # Padding belongs to the last part, whose B is zero there.
        ranges[-1] = (ranges[-1][0], outputs, ranges[-1][2])
    if all(first % OUTPUT_BLOCK == 0 for first, _, _ in ranges):
        return [_Piece(a, b, scale, part_of_blocks(ranges, outputs, b.device), 0, outputs, every)]
    return [
        _Piece(
            a[:, part : part + 1],
            b[:, first:end],
            scale.new_zeros(room.pages, 1),
            None,
            first,
            end,
            slice(part, part + 1),
        )
        for first, end, part in ranges
    ]


def wrapped(weights: Weights, adapting: Adapting, but: Sequence[str] = ()) -> Weights:
    """Returns the weights of a layer, a dataclass, with each linear layer among its fields for tokens with adapters,
    `but` for some.
    """
    found = {each.name: getattr(weights, each.name) for each in fields(weights) if each.name not in but}  # type: ignore[arg-type]
    linear = {name: adapting.linear(value) for name, value in found.items() if hasattr(value, "site")}
    return replace(weights, **linear)  # type: ignore[type-var]
