"""The parts of a model that adapters can change, with a number for each, and what the host has to know of them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..layers.infer import AddNorm, Embedding, Head, Layer
from ..layers.weights import Adapting, CurrentAdapters, EmbeddingWeights, ExpertSite, HostSite, Linear, NormWeights


@dataclass(frozen=True)
class Parts:
    """The parts of a model."""

    embedding: Embedding
    embedding_weights: EmbeddingWeights
    layers: Sequence[Layer]
    last: AddNorm
    head: Head


class AdaptableParts(Adapting):
    """Numbers linear layers and norms, in the order in which the model has them."""

    def __init__(self, parts: Parts) -> None:
        self.of_model = parts
        self.embedding_weights = parts.embedding_weights
        self.sites: list[HostSite] = []
        self.norms: list[NormWeights] = []
        """On the host."""
        self.experts_of: list[ExpertSite] = []
        self.current = CurrentAdapters()
        self._numbers: dict[int, int] = {}
        self._in_layer = True
        parts.embedding.adapted(self, None)
        for layer in parts.layers:
            layer.adapted(self)
        parts.last.adapted(self)
        self._in_layer = False
        self.linear(parts.head.linear)

    def linear(self, linear: Linear) -> Linear:
        """See `Adapting`: notes a layer."""
        if linear.site is not None and id(linear) not in self._numbers:
            self._numbers[id(linear)] = len(self.sites)
            self.sites.append(HostSite.of(linear, linear.site, self._in_layer))
        return linear

    def norm(self, weights: NormWeights) -> None:
        """See `Adapting`: notes the weights of a norm."""
        if weights.stored is not None and id(weights) not in self._numbers:
            self._numbers[id(weights)] = len(self.norms)
            bias, stored = weights.bias, replace(weights.stored, like=weights.stored.like.cpu())
            self.norms.append(NormWeights(weights.weight.cpu(), None if bias is None else bias.cpu(), stored))

    def experts(self, site: ExpertSite) -> None:
        """See `Adapting`: notes the experts of a layer."""
        if id(site) not in self._numbers:
            self._numbers[id(site)] = len(self.experts_of)
            self.experts_of.append(site)

    def number_of(self, part: Linear | NormWeights | ExpertSite) -> int | None:
        """Returns the number of a layer among `sites`, of a norm among `norms`, or of experts among `experts_of`; None:
        adapters do not change it.
        """
        return self._numbers.get(id(part))

    @property
    def head_module(self) -> str:
        """The module of which the rows of the head are stored; empty: adapters cannot replace any."""
        site = self.of_model.head.linear.site
        return "" if site is None else site.blocks[0].name

    @property
    def head_span(self) -> tuple[int, int]:
        """The ids whose rows the head of this rank has."""
        site = self.of_model.head.linear.site
        return (0, 0) if site is None else site.blocks[0].ranges[0]
