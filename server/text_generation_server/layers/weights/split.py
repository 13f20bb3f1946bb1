"""Tensor-parallel shard of a model that belongs to a rank."""

from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional

from text_generation_kernels import num_splits, split_size

from ...config.parallel import kv_heads_of_rank
from ...config.shards import check_heads
from ...distributed import TensorParallelGroup


def even_span(size: int, rank: int, world_size: int, align: int = 1) -> tuple[int, int]:
    """Returns start and end of a rank's shard of `size` items. Shards cover all items, differ by at most `align` items,
    and begin at multiples of `align` where that leaves no rank without items.
    """
    units = -(-size // align)
    if units < world_size:
        align, units = 1, size
    start, stop = (part * units // world_size * align for part in (rank, rank + 1))
    return start, min(stop, size)


@dataclass(frozen=True)
class HeadSplit:
    """The attention heads of one rank: query heads from `q_start` to `q_stop`, and the K and V heads that they read.

    Every rank has the same number of query heads, and equally many of them read each of its K and V heads. Where ranks
    cannot have whole K and V heads of their own, several ranks hold the same head, and a rank may hold a head more than
    once.
    """

    q_start: int
    q_stop: int
    kv_heads: tuple[int, ...]
    """Numbers of the model's K and V heads, in the order of the query heads that read them."""

    @property
    def num_heads(self) -> int:
        """Query heads that this rank holds."""
        return self.q_stop - self.q_start

    @property
    def num_kv_heads(self) -> int:
        """K and V heads that this rank and its caches hold."""
        return len(self.kv_heads)

    @classmethod
    def of(cls, num_heads: int, num_kv_heads: int, group: TensorParallelGroup) -> "HeadSplit":
        """Splits the heads evenly. Raises ConfigurationError when that is not possible."""
        check_heads(num_heads, "attention heads", group.world_size)
        q_start, q_stop = even_span(num_heads, group.rank, group.world_size)
        readers = (q_stop - q_start) // kv_heads_of_rank(num_heads, num_kv_heads, group.world_size)
        all_readers = num_heads // num_kv_heads
        return cls(q_start, q_stop, tuple(head // all_readers for head in range(q_start, q_stop, readers)))


@dataclass(frozen=True)
class VocabularyShard:
    """The ids whose logits a rank computes: whole splits of the vocabulary (`split_size`), so that the result of a
    split does not depend on the number of ranks. Every rank has equally many columns; columns past the end of the
    vocabulary are padding. With many ranks and few splits the last ranks may have no id at all.
    """

    vocab_size: int
    start: int
    width: int
    """Columns of logits."""
    world_size: int
    """Ranks that share the vocabulary, those without an id included."""

    @property
    def number(self) -> int:
        """Ids among the columns."""
        return max(0, min(self.vocab_size - self.start, self.width))

    @property
    def is_whole(self) -> bool:
        """Whether no other rank computes logits. It is equal on all ranks, which communicate only where it is false;
        the first of several ranks may have all ids nevertheless.
        """
        return self.world_size == 1

    @classmethod
    def of(cls, vocab_size: int, rank: int, world_size: int) -> "VocabularyShard":
        """Returns the shard of a rank."""
        if world_size == 1:
            return cls(vocab_size, 0, vocab_size, world_size)
        width = -(-num_splits(vocab_size) // world_size) * split_size(vocab_size)
        return cls(vocab_size, rank * width, width, world_size)


def vocabulary_shard(vocab_size: int, rank: int, world_size: int) -> tuple[int, int, int]:
    """Returns start and end of a rank's rows of the LM head, and its number of padding rows (`VocabularyShard`)."""
    part = VocabularyShard.of(vocab_size, rank, world_size)
    start = min(part.start, vocab_size)
    return start, start + part.number, part.width - part.number


def padded_rows(tensor: Tensor, padding: int) -> Tensor:
    """Returns `tensor` followed by `padding` rows (or elements) of zeros; the tensor itself without padding."""
    return functional.pad(tensor, (0, 0) * (tensor.dim() - 1) + (0, padding)) if padding else tensor
