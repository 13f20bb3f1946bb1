"""Tensor-parallel shard of a model that belongs to a rank."""

from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional

from text_generation_kernels import num_splits, split_size

from ...config.parallel import kv_heads_of_rank
from ...config.shards import check_heads
from ...distributed import TensorParallelGroup


def even_span(size: int, rank: int, world_size: int, align: int = 1) -> tuple[int, int]:
    """Start and end of a rank's part of `size` items; parts differ by at most `align` items and cover all. They begin
    at multiples of `align`, where each rank can have one.
    """
    units = -(-size // align)
    if units < world_size:
        align, units = 1, size
    start, stop = (part * units // world_size * align for part in (rank, rank + 1))
    return start, min(stop, size)


@dataclass(frozen=True)
class HeadSplit:
    """Attention heads of one rank: query heads from `q_start` to `q_stop`, and the K and V heads they read.

    Every rank has the same number of query heads, and each of its K and V heads is read by as many of them. Where ranks
    cannot have whole K and V heads of their own, several hold the same one, and a rank may hold one more than once.
    """

    q_start: int
    q_stop: int
    kv_heads: tuple[int, ...]
    """Which of the model's, in the order of the query heads that read them."""

    @property
    def num_heads(self) -> int:
        """Query heads that this rank holds."""
        return self.q_stop - self.q_start

    @property
    def num_kv_heads(self) -> int:
        """K and V heads that this rank holds, and its caches have."""
        return len(self.kv_heads)

    @classmethod
    def of(cls, num_heads: int, num_kv_heads: int, group: TensorParallelGroup) -> "HeadSplit":
        """Raises ConfigurationError when the heads cannot be shared evenly."""
        check_heads(num_heads, "attention heads", group.world_size)
        q_start, q_stop = even_span(num_heads, group.rank, group.world_size)
        readers = (q_stop - q_start) // kv_heads_of_rank(num_heads, num_kv_heads, group.world_size)
        all_readers = num_heads // num_kv_heads
        return cls(q_start, q_stop, tuple(head // all_readers for head in range(q_start, q_stop, readers)))


@dataclass(frozen=True)
class VocabularyPart:
    """The ids whose logits a rank computes: whole splits of the vocabulary (`split_size`), so that what is found in a
    split does not depend on the number of ranks. Every rank has as many columns; those behind the vocabulary's end mean
    nothing. With many ranks and few splits the last ranks may have no id at all.
    """

    vocab_size: int
    start: int
    width: int
    """Columns of logits."""
    world_size: int
    """Ranks that share the vocabulary, also those without an id."""

    @property
    def number(self) -> int:
        """Ids among the columns."""
        return max(0, min(self.vocab_size - self.start, self.width))

    @property
    def is_whole(self) -> bool:
        """Whether no other rank computes logits. The same on all ranks, which choose by it whether they exchange
        anything: where there is one split, the first of several ranks has all ids.
        """
        return self.world_size == 1

    @classmethod
    def of(cls, vocab_size: int, rank: int, world_size: int) -> "VocabularyPart":
        """That of one rank of several."""
        if world_size == 1:
            return cls(vocab_size, 0, vocab_size, world_size)
        width = -(-num_splits(vocab_size) // world_size) * split_size(vocab_size)
        return cls(vocab_size, rank * width, width, world_size)


def vocabulary_shard(vocab_size: int, rank: int, world_size: int) -> tuple[int, int, int]:
    """Start and end of a rank's rows of the output matrix, and how many rows of padding follow (`VocabularyPart`)."""
    part = VocabularyPart.of(vocab_size, rank, world_size)
    start = min(part.start, vocab_size)
    return start, start + part.number, part.width - part.number


def padded_rows(tensor: Tensor, padding: int) -> Tensor:
    """`tensor` with zero rows (or elements) behind it; itself when there is nothing to add."""
    return functional.pad(tensor, (0, 0) * (tensor.dim() - 1) + (0, padding)) if padding else tensor
