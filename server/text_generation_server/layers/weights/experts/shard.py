"""Experts of a mixture that belong to a rank, and the names of their tensors.

By tensor parallelism that is a part of the inner dimension of every expert, by expert parallelism (GShard, Lepikhin et
al., 2020) some experts whole. Hidden states are the same on all ranks, and results are summed, so that either way a
rank computes what it holds and no tokens travel.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from ....config.shards import AskedShards, check_experts
from ....config.spec import MoeSpec
from ....weights import Slice
from ..checkpoint import Checkpoint
from ..split import even_span

Target = tuple[Tensor, ...]
"""What is filled, of this rank's experts: gate, where there is one, and up [experts, inner of this rank, hidden], down
[experts, hidden, inner of this rank].
"""


def shared_experts(spec: MoeSpec) -> int:
    """Experts that the shared network becomes."""
    return -(-spec.shared_inner // spec.inner)


@dataclass(frozen=True)
class ExpertShard:
    """Inner elements `start` to `stop` of some of the experts of one layer, and of its shared network."""

    checkpoint: Checkpoint
    layer: int
    spec: MoeSpec
    """With a shared network only where it becomes further experts."""
    experts: range
    """Numbers of the routed ones."""
    start: int
    stop: int

    @classmethod
    def of(cls, checkpoint: Checkpoint, layer: int, spec: MoeSpec) -> "ExpertShard":
        """That of the checkpoint's rank. Raises ConfigurationError where there is none for each rank."""
        group = checkpoint.group
        world_size = group.world_size
        check_experts(spec, AskedShards(world_size, group.expert_parallel))
        whole = cls(checkpoint, layer, spec, range(spec.experts), 0, spec.inner)
        if group.expert_parallel:
            own = range(*even_span(spec.experts, group.rank, world_size))
            return replace(whole, spec=replace(spec, shared_inner=0), experts=own)
        start, stop = even_span(spec.inner, group.rank, world_size, checkpoint.schemes.align(*whole.modules))
        return replace(whole, start=start, stop=stop)

    @property
    def hidden(self) -> int:
        """Elements of a hidden state."""
        return self.checkpoint.spec.hidden_size

    @property
    def inner(self) -> int:
        """Of this rank's part of an expert."""
        return self.stop - self.start

    @property
    def modules(self) -> tuple[str, ...]:
        """Whole names of all matrices, in the order gate, up, down of each network; those of tensors that hold several
        once.
        """
        names = self.checkpoint.names
        routed = names.experts(self.spec.gated)
        numbers: Sequence[int] = self.experts if names.experts_layout == "each" else (0,)
        found = [self.name(each, expert) for expert in numbers for each in routed]
        if self.spec.shared_inner:
            found += [self.name(each) for each in names.shared(self.spec.gated)]
        return tuple(dict.fromkeys(found))

    def name(self, template: str, expert: int = 0) -> str:
        """The whole name of a tensor or module."""
        return self.checkpoint.inside(self.layer, template).replace("{expert}", str(expert))

    def cut(self, inner: Slice | None = None) -> Slice | None:
        """What to read of a tensor that has all experts in its first dimension: this rank's, or `inner` of each."""
        if len(self.experts) < self.spec.experts:
            return Slice(0, self.experts.start, self.experts.stop)
        return inner

    def span(self, inner: int, first: int) -> tuple[int, int]:
        """The part of a network of `inner` that is this rank's, of which an expert begins at `first`."""
        return min(first + self.start, inner), min(first + self.stop, inner)
