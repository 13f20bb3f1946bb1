"""How a step with chunks attends where ranks have some positions of a cache each (`layers/infer/context_parallel.py`).

The context of a chunk comes to every rank, or the chunk's queries go to every rank, whichever are fewer bytes. An
all-reduce sends a latent vector twice; a token has a query and a result for each head, each about as large as that. So
the context comes unless it has more positions than the chunk has tokens times heads, which bounds its memory too.
"""

from dataclasses import dataclass

from ..layers.infer import ContextParallel
from ..models.base import CausalLM
from .kv_pool import shared_heads
from .running import CheckedPlan, Computed

MOST_RATIO = 64
"""The most positions for each token of a chunk whose context comes, however many heads there are."""
_WHOLE = 256
"""Contexts take a multiple of so many positions: the allocator and all-reduce kernels meet few sizes."""
_LEAST_IN_GRAPH = 4096
"""Least positions of contexts in a graph of a step with chunks, which all-reduces as many whether they are there or
not.
"""


@dataclass(frozen=True)
class ContextPlan:
    """What comes to every rank, and what goes there."""

    gathered: tuple[bool, ...]
    """Whether the context of each chunk comes; else the queries of its tokens go."""
    positions: int
    """The most positions of all contexts that come."""
    queried: int = 0
    """Tokens of chunks whose queries go."""
    longest: int = 1
    """The most positions that one of them attends to."""

    @classmethod
    def of(cls, plan: CheckedPlan, heads: int) -> "ContextPlan":
        """Returns the best for a plan, of a model whose ranks have `heads` in all."""
        gathered = tuple(_length(each) <= each.chunk.count * min(heads, MOST_RATIO) for each in plan.chunks)
        both = list(zip(plan.chunks, gathered, strict=True))
        return cls(
            gathered,
            -(-max(1, sum(_length(each) for each, comes in both if comes)) // _WHOLE) * _WHOLE,
            sum(each.chunk.count for each, comes in both if not comes),
            max((_length(each) for each, comes in both if not comes), default=1),
        )

    @classmethod
    def of_graph(cls, tokens: int, chunks: int) -> "ContextPlan":
        """Returns what the graph of a step of so many tokens and chunks has room for: all contexts come."""
        return cls((True,) * chunks, max(_LEAST_IN_GRAPH, 2 * tokens))

    def fits(self, plan: CheckedPlan) -> bool:
        """Whether all contexts of a plan may come."""
        return sum(map(_length, plan.chunks)) <= self.positions


def context_bytes(model: CausalLM, tokens: int) -> int:
    """Returns the bytes that a step of so many prompt tokens may need for what comes and goes, besides what the largest
    steps of warm-up need: their contexts are short.
    """
    if not (heads := shared_heads(model)):
        return 0
    width = max(cache.head_dim for cache in model.caches if cache.readers)
    positions = tokens * min(heads, MOST_RATIO)
    return ContextParallel.num_bytes(heads, width, positions, model.dtype.itemsize)


def _length(each: Computed) -> int:
    return each.chunk.first + each.chunk.count
