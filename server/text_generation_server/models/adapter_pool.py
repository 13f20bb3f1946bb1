"""The adapters on the device, and the parts of a model for steps in which tokens use them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

import text_generation_kernels as kernels

from ..layers.infer import Embedding, Head
from ..layers.weights import (
    AdaptedDense,
    AdaptedEmbedding,
    AdaptedLinear,
    AdapterMemory,
    AdapterRoom,
    Adapting,
    CurrentAdapters,
    Dense,
    EmbeddingChange,
    ExpertChange,
    ExpertSite,
    ExpertTables,
    HostFactors,
    Linear,
    NewNorm,
    NewRows,
    NormWeights,
    ReplacedHead,
    ReplacedNorm,
    Room,
    SitePages,
)
from .adapter_parts import AdaptableParts

MOST_PAGES = 16
"""Pages of an adapter of the highest rank."""


@dataclass(frozen=True)
class HostAdapter:
    """An adapter in host memory, as this rank needs it: all that it brings to each part of the model."""

    generation: int
    """Not 0, 64 bits, the same for the same contents: keys and values of two adapters must not be taken for one."""
    rank: int
    """The highest of its matrices."""
    by_output: bool
    """Whether it multiplies outputs of linear layers (DoRA) or changes their biases, on any rank."""
    factors: HostFactors
    """Of linear layers."""
    embedding: EmbeddingChange | None
    head: NewRows | None
    """Rows of the head that it replaces."""
    norms: Mapping[int, NewNorm]
    """By number."""
    experts: Mapping[int, ExpertChange]
    """Likewise."""

    @property
    def pages(self) -> int:
        """The pages that it takes on the device."""
        return self.factors.pages

    @property
    def row_bytes(self) -> int:
        """The bytes of rows that it replaces in embedding and head."""
        embedding = None if self.embedding is None else self.embedding.rows
        return sum(each.rows.nbytes for each in (embedding, self.head) if each is not None)

    @property
    def num_bytes(self) -> int:
        """The bytes of host memory, without those of norms."""
        pages = None if self.embedding is None else self.embedding.pages
        embedding = 0 if pages is None else pages.a.nbytes + pages.b.nbytes
        return self.factors.nbytes + embedding + self.row_bytes + sum(each.nbytes for each in self.experts.values())


class AdapterPool(Adapting):
    """Room for adapters on the device. The engine thread owns it.

    Factors of linear layers, embeddings and experts come and go with pages. Rows of embedding and head, and norms, stay
    on the device: they are those of adapters that were loaded before.
    """

    def __init__(
        self,
        parts: AdaptableParts,
        room: AdapterRoom,
        adapters: Sequence[HostAdapter],
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """Allocates room for linear layers as `room` says, and for all else that `adapters` change."""
        self.current = CurrentAdapters()
        self.memory = AdapterMemory(parts.sites, room, dtype, device)
        self.words = torch.zeros(_words(parts, room.pages), dtype=torch.int64, device=device)
        """What kernels pass to each other (`kernels.SiteAdapters`)."""
        self._parts = parts
        self._adapters = {each.generation: each for each in adapters}
        self._room = Room(room.pages, room.pages)
        self._norms: dict[int, ReplacedNorm] = {}
        self._experts: dict[int, ExpertTables] = {}
        self._embedding: AdaptedEmbedding | None = None
        self._head: ReplacedHead | None = None
        whole = parts.of_model
        self.embedding = self._adapted_embedding(whole.embedding)
        self.layers = [layer.adapted(self) for layer in whole.layers]
        self.last = whole.last.adapted(self)
        self.head = self._adapted_head(whole.head)
        self.changes_head = self.head is not whole.head
        """Whether logits depend on the adapter."""

    def linear(self, linear: Linear) -> Linear:
        """See `Adapting`."""
        number = self._parts.number_of(linear)
        pages = None if number is None else self.memory.of_site(number)
        return linear if pages is None else _adapted(linear, pages, self.current)

    def norm(self, weights: NormWeights) -> ReplacedNorm | None:
        """See `Adapting`."""
        if (number := self._parts.number_of(weights)) is None:
            return None
        made = {each.generation: each.norms[number] for each in self._adapters.values() if number in each.norms}
        if made and number not in self._norms:
            self._norms[number] = ReplacedNorm(weights, made, self._room, self.current)
        return self._norms.get(number)

    def experts(self, site: ExpertSite) -> ExpertTables | None:
        """See `Adapting`."""
        if (number := self._parts.number_of(site)) is None:
            return None
        made = [each.experts[number] for each in self._adapters.values() if number in each.experts]
        if made and number not in self._experts:
            self._experts[number] = ExpertTables(made, self._room, self.memory.device)
        return self._experts.get(number)

    def has_room(self, adapter: HostAdapter) -> bool:
        """Whether there is room for all that an adapter changes. Any thread may ask."""
        generation, embedding = adapter.generation, adapter.embedding
        return (
            self.memory.fits(adapter.factors)
            and (embedding is None or (self._embedding is not None and self._embedding.has(generation, embedding)))
            and (adapter.head is None or (self._head is not None and self._head.has(generation)))
            and all(number in self._norms and self._norms[number].has(generation) for number in adapter.norms)
            and all(
                number in self._experts and self._experts[number].has_room(each)
                for number, each in adapter.experts.items()
            )
        )

    def put(self, adapter: HostAdapter, number: int, first_page: int) -> None:
        """Queues copies of an adapter to its pages, after which `number` is this adapter."""
        generation = adapter.generation
        self.memory.put(adapter.factors, number, first_page)
        if self._embedding is not None:
            made = None if adapter.embedding is None else adapter.embedding.pages
            self._embedding.put(number, first_page, adapter.pages, generation, made)
        if self._head is not None:
            self._head.put(number, generation)
        for each in self._norms.values():
            each.put(number, generation)
        for layer, tables in self._experts.items():
            tables.put(number, first_page, adapter.experts.get(layer))

    def _adapted_embedding(self, embedding: Embedding) -> Embedding:
        made = {generation: each.embedding for generation, each in self._adapters.items() if each.embedding is not None}
        if made:
            self._embedding = AdaptedEmbedding(self._parts.embedding_weights, made, self._room, self.current)
        return embedding.adapted(self, self._embedding)

    def _adapted_head(self, head: Head) -> Head:
        made = {generation: each.head for generation, each in self._adapters.items() if each.head is not None}
        changed = base = head.linear
        if made and base.site is not None:
            like = self._parts.embedding_weights.tokens.new_empty(base.site.inputs)
            changed = self._head = ReplacedHead(base, made, self._room, like, self.current)
        number = self._parts.number_of(base)
        if number is not None and (pages := self.memory.of_site(number)) is not None:
            changed = _adapted(changed, pages, self.current)
        return head if changed is base else head.adapted(changed)


def _adapted(linear: Linear, pages: SitePages, current: CurrentAdapters) -> AdaptedLinear:
    if isinstance(linear, Dense):
        return AdaptedDense(linear, pages, current)
    return AdaptedLinear(linear, pages, current)


def _words(parts: AdaptableParts, pages: int) -> int:
    """The words that kernels of few tokens need, in a layer of the most parts with the most splits."""
    items = kernels.TableSizes.of(kernels.SMALL_BATCH, pages, MOST_PAGES, pages=pages).work
    sites = [each.site for each in parts.sites]
    return max(
        (
            kernels.SiteAdapters.words_of(items, len(each.modules), kernels.delta_splits(each.own_inputs))
            for each in sites
        ),
        default=0,
    )
