"""The adapters that a model serves beside its base: where what they bring lies, and the layers that add it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from text_generation_kernels import RANK_UNITS, AdapterPages

from ..adapters import Adapter, Change, Delta, Replaced, TokenRows, highest_rank
from ..config.adapters import AdapterInfo
from ..errors import AdapterError
from ..layers.infer import AddNorm, Embedding, Head, Layer
from ..layers.weights import (
    AdaptedEmbedding,
    AdaptedLinear,
    Adapting,
    Checkpoint,
    CurrentAdapters,
    EmbeddingChange,
    EmbeddingWeights,
    ExpertShard,
    ExpertSite,
    ExpertTables,
    Linear,
    NewNorm,
    NewRows,
    NormWeights,
    ReplacedHead,
    ReplacedNorm,
    Room,
    SitePages,
    changed_of,
    low_rank_pages,
    rows_change,
)

_MOST_ROW_BYTES = 8 << 30
"""Of whole embeddings and heads of all adapters on one rank."""


@dataclass(frozen=True)
class NamedAdapter:
    """An adapter, and what requests call it."""

    name: str
    source: str
    """The folder or hub id that the operator gave."""
    adapter: Adapter


@dataclass(frozen=True)
class ServedAdapters:
    """The adapters of a model, which stay where they are while it lives."""

    infos: Sequence[AdapterInfo]
    """Of adapters 1, 2, ..."""
    pages: AdapterPages
    """On the host: of adapter `number` those with index `number - 1`."""
    change_head: bool
    """Whether one of them changes the head, so that logits depend on the adapter."""

    @property
    def most_pages(self) -> int:
        """The pages of the largest adapter."""
        starts = self.pages.starts
        return int((starts[1:] - starts[:-1]).max())


@dataclass(frozen=True)
class AdaptedLayers:
    """The parts of a model for steps in which tokens use adapters."""

    embedding: Embedding
    layers: Sequence[Layer]
    last: AddNorm
    head: Head
    served: ServedAdapters
    current: CurrentAdapters


@dataclass(frozen=True)
class Parts:
    """The parts of a model."""

    embedding: Embedding
    embedding_weights: EmbeddingWeights
    layers: Sequence[Layer]
    last: AddNorm
    head: Head


def place(adapters: Sequence[NamedAdapter], parts: Parts, checkpoint: Checkpoint) -> AdaptedLayers:
    """Brings what all adapters change to this rank's device, next to each other. Raises AdapterError for one that
    changes a tensor which requests cannot have for themselves.
    """
    placing = _Placing(adapters, checkpoint)
    embedding = placing.embedding(parts.embedding, parts.embedding_weights)
    layers = [layer.adapted(placing) for layer in parts.layers]
    last = parts.last.adapted(placing)
    head = placing.head(parts.head)
    for each, left in zip(adapters, placing.left(), strict=True):
        if left:
            raise AdapterError(
                f"adapter `{each.name}` changes {_listed(left)}, which requests cannot have for themselves: merge it "
                "into the weights with --merge-adapter"
            )
    infos = [_info(number, each) for number, each in enumerate(adapters, 1)]
    pages = AdapterPages.of([range(each.start, each.stop) for each in placing.pages])
    served = ServedAdapters(infos, pages, head is not parts.head)
    return AdaptedLayers(embedding, layers, last, head, served, placing.current)


class _Placing(Adapting):
    """Makes each part of a model for tokens with adapters, with what all adapters bring to it."""

    def __init__(self, adapters: Sequence[NamedAdapter], checkpoint: Checkpoint) -> None:
        self.current = CurrentAdapters()
        self._checkpoint = checkpoint
        self._changes = [_served(each.adapter.changes, checkpoint) for each in adapters]
        self.pages = _pages([_units(each, checkpoint) for each in self._changes])
        """Those of each adapter."""
        self._left = [set(each) for each in self._changes]
        self._room = Room(self.pages[-1].stop, len(adapters))
        self._numbered = list(enumerate(self.pages, 1))

    def left(self) -> list[list[str]]:
        """Returns, of each adapter, the changed tensors for which no part was made."""
        return [sorted(each) for each in self._left]

    def linear(self, linear: Linear) -> Linear:
        """See `Adapting`."""
        if (site := linear.site) is None:
            return linear
        has_bias = linear.bias is not None or not site.adds_bias
        made = [
            low_rank_pages(self._checkpoint, site, changes, RANK_UNITS, base_bias=linear.bias)
            for changes in self._changes
        ]
        for changes, left in zip(self._changes, self._left, strict=True):
            left -= changed_of(site, changes, has_bias)
        if not any(made):
            return linear
        tables = SitePages(site, made, self._room, linear.bias)
        for (number, pages), each in zip(self._numbered, made, strict=True):
            tables.put(number, pages, each)
        return AdaptedLinear(linear, tables, self.current)

    def norm(self, weights: NormWeights) -> ReplacedNorm | None:
        """See `Adapting`."""
        made = [NewNorm.of(weights, changes) for changes in self._changes]
        if not any(made):
            return None
        tables = ReplacedNorm(weights, made, self._room, self.current)
        for (number, _), each, left in zip(self._numbered, made, self._left, strict=True):
            tables.put(number, each)
            left -= set() if each is None else each.names
        return tables

    def experts(self, site: ExpertSite) -> ExpertTables | None:
        """See `Adapting`."""
        made = [site.of(changes) for changes in self._changes]
        if not any(made):
            return None
        tables = ExpertTables(made, self._room)
        for (number, pages), each, left in zip(self._numbered, made, self._left, strict=True):
            tables.put(number, pages, each)
            left -= set() if each is None else each.names
        return tables

    def embedding(self, embedding: Embedding, weights: EmbeddingWeights) -> Embedding:
        """Returns the embedding with what adapters make of it."""
        self._check_rows()
        made = [EmbeddingChange.of(self._checkpoint, weights, changes) for changes in self._changes]
        if not any(made):
            return embedding.adapted(self, None)
        for each, left in zip(made, self._left, strict=True):
            left -= set() if each is None else {f"{weights.module}.weight"}
        tables = AdaptedEmbedding(weights, made, self._room, self.current)
        for (number, pages), each in zip(self._numbered, made, strict=True):
            tables.put(number, pages, each)
        return embedding.adapted(self, tables)

    def head(self, head: Head) -> Head:
        """Returns the head with what adapters make of it."""
        linear = changed = head.linear
        if (site := linear.site) is None:
            return head
        (block,), like = site.blocks, self._checkpoint.source.empty((0,))
        name = f"{block.name}.weight"
        made = [NewRows.of(rows_change(changes, name), block.ranges[0], like) for changes in self._changes]
        if any(made):
            changed = ReplacedHead(linear, made, self._room, like.new_empty(site.inputs), self.current)
            for (number, _), each, left in zip(self._numbered, made, self._left, strict=True):
                changed.put(number, each)
                left -= set() if each is None else {name}
        changed = self.linear(changed)
        return head if changed is linear else head.adapted(changed)

    def _check_rows(self) -> None:
        """Raises AdapterError where whole embeddings and heads of all adapters are too large."""
        rows = (
            len(change.tensor if isinstance(change, Replaced) else change.rows)
            for changes in self._changes
            for name in (f"{self._checkpoint.head}.weight", self._embedding_name)
            if isinstance(change := rows_change(changes, name), Replaced | TokenRows)
        )
        size = self._checkpoint.spec.hidden_size * self._checkpoint.dtype.itemsize
        if (total := sum(rows) * size // self._checkpoint.group.world_size) > _MOST_ROW_BYTES:
            raise AdapterError(
                f"adapters replace {total / 2**30:.1f} GiB of embeddings and heads on a rank, and at most "
                f"{_MOST_ROW_BYTES >> 30} GiB are kept beside the model's own: serve fewer of them, or merge one into "
                "the weights with --merge-adapter"
            )

    @property
    def _embedding_name(self) -> str:
        return f"{self._checkpoint.outside(self._checkpoint.names.embedding)}.weight"


def _served(changes: Mapping[str, Change], checkpoint: Checkpoint) -> dict[str, Change]:
    """Returns changes as parts of the model take them: a change of a matrix that the adapter has trained whole is a new
    matrix, and new rows of an embedding that is the head too are rows of both.
    """
    found = dict(changes)
    for name, change in changes.items():
        if isinstance(change, Delta) and change.base is not None:
            found[name] = Replaced(change.merged(change.base.float()))
    head, embedding = checkpoint.head, checkpoint.outside(checkpoint.names.embedding)
    rows = found.get(f"{embedding}.weight")
    if checkpoint.spec.head.tied and isinstance(rows, TokenRows):
        found.setdefault(f"{head}.weight", rows)
    return found


def _units(changes: Mapping[str, Change], checkpoint: Checkpoint) -> int:
    """Returns the rank units that an adapter needs in its largest layer."""
    found = ((index, layer.moe) for index, layer in enumerate(checkpoint.spec.layers) if layer.moe is not None)
    # Those of all ranks, so that pages are the same on each.
    shards = (replace(ExpertShard.of(checkpoint, *each), experts=range(each[1].experts)) for each in found)
    experts = (ExpertSite(shard).units(changes) for shard in shards)
    ranks = (highest_rank(each) for each in changes.values())
    return max((*experts, *ranks), default=0)


def _pages(units: Sequence[int]) -> list[slice]:
    found: list[slice] = []
    first = 0
    for each in units:
        count = max(1, -(-each // RANK_UNITS))
        found.append(slice(first, first + count))
        first += count
    return found


def _info(number: int, each: NamedAdapter) -> AdapterInfo:
    generation = int(each.adapter.digest[:16], 16) or 1
    return AdapterInfo(each.name, number, generation, _rank(each.adapter), each.source)


def _rank(adapter: Adapter) -> int:
    return max(map(highest_rank, adapter.changes.values()), default=0)


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(f"`{name}`" for name in names[:3])
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} others"
