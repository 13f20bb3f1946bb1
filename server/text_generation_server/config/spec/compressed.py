"""Attention to a window of positions and to compressed ones (DeepSeek V4, 2026)."""

from dataclasses import dataclass

from ..rotary import RopeSpec


@dataclass(frozen=True)
class EntryIndexerSpec:
    """What chooses the entries that a token attends to. Small queries, of the low-rank query vector, and one key for
    each entry, compressed as entries are, give scores, `sum over heads of weight * relu(query . key)`.
    """

    num_heads: int
    head_dim: int
    """Elements of a query, and of a key. RoPE rotates as many of the last of them as of a head of the attention."""
    top_k: int
    """Entries that a token attends to."""


@dataclass(frozen=True)
class CompressedAttentionSpec:
    """Attention of one layer, with one KV head whose key is its value too. Heads read the last positions, and entries,
    of which each stands for `rate` successive positions: a mean of what a projection makes of these, of each element
    its own, weighted by a softmax of what another projection makes of them, and of their places.

    RoPE rotates the last elements of keys, so of values too, and what heads read is turned back by the position of the
    token. Entries are rotated by their first position. Each group of heads has a matrix for what it reads, and one
    matrix joins what these make.
    """

    num_heads: int
    head_dim: int
    query_dim: int
    """Elements of the normalised low-rank vector from which queries are projected."""
    rope: RopeSpec
    rope_dim: int
    """Elements that are rotated, the last ones."""
    window: int
    """The last positions that a token attends to, itself included."""
    norm_eps: float
    """Epsilon of the norms of the low-rank vector, of keys, of entries, and, without a weight, of each query."""
    out_groups: int
    """Groups of heads."""
    out_rank: int
    """Elements that the matrix of a group makes."""
    rate: int = 0
    """Positions of an entry; 0: there are no entries."""
    overlaps: bool = False
    """Whether an entry stands for the `rate` positions before its own too, of which it reads other projections."""
    indexer: EntryIndexerSpec | None = None
    """What chooses entries; None: a token attends to all whose positions are not behind it."""

    @property
    def scale(self) -> float:
        """The softmax scale."""
        return self.head_dim**-0.5

    @property
    def series(self) -> int:
        """Projections of a position for entries: that of its own entry, and that of the next one."""
        if not self.rate:
            return 0
        return 2 if self.overlaps else 1

    @property
    def vectors(self) -> int:
        """Vectors of `head_dim` elements that the cache has of a position: its key, and for each series what entries
        are made of, and the logits of its weights.
        """
        return 1 + 2 * self.series

    @property
    def index_vectors(self) -> int:
        """The same, of the size of an index key, for the indexer."""
        return 0 if self.indexer is None else 2 * self.series
