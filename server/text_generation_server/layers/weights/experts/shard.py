"""A rank's shard of the experts of a mixture, and the names of their tensors.

With tensor parallelism, a rank holds a shard of the inner dimension of every expert; with expert parallelism (GShard,
Lepikhin et al., 2020), some experts whole. Hidden states are equal on all ranks, and results are all-reduced, so a rank
computes what it holds and no tokens are exchanged.
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
"""The tensors of this rank's experts that readers fill: gate, if experts are gated, and up [experts, inner of this
rank, hidden], down [experts, hidden, inner of this rank].
"""


def shared_experts(spec: MoeSpec) -> int:
    """Returns how many experts the shared expert's network becomes."""
    return -(-spec.shared_inner // spec.inner)


@dataclass(frozen=True)
class ExpertShard:
    """Inner elements `start` to `stop` of some of the experts of one layer, and of its shared expert."""

    checkpoint: Checkpoint
    layer: int
    spec: MoeSpec
    """The mixture; it has a shared expert only where that becomes further experts."""
    experts: range
    """The numbers of the routed experts."""
    start: int
    stop: int

    @classmethod
    def of(cls, checkpoint: Checkpoint, layer: int, spec: MoeSpec) -> "ExpertShard":
        """Returns the shard of the checkpoint's rank. Raises ConfigurationError where there is none for each rank."""
        group = checkpoint.group
        world_size = group.world_size
        check_experts(spec, AskedShards(world_size, group.expert_parallel))
        if spec.latent or spec.weighs_inputs or spec.identity or spec.shared_activation not in (None, spec.activation):
            # The shared expert reads something else, or computes something else.
            spec = replace(spec, shared_inner=0)
        whole = cls(checkpoint, layer, spec, range(spec.experts), 0, spec.inner)
        if group.expert_parallel:
            own = range(*even_span(spec.experts, group.rank, world_size))
            return replace(whole, spec=replace(spec, shared_inner=0), experts=own)
        start, stop = even_span(spec.inner, group.rank, world_size, checkpoint.schemes.align(*whole.modules))
        return replace(whole, start=start, stop=stop)

    @property
    def hidden(self) -> int:
        """Elements of the state that experts read."""
        return self.spec.latent or self.checkpoint.spec.hidden_size

    @property
    def inner(self) -> int:
        """The inner size of this rank's shard of an expert."""
        return self.stop - self.start

    @property
    def modules(self) -> tuple[str, ...]:
        """The whole names of all matrices, in the order gate, up, down of each network. A tensor that holds several
        matrices is named once.
        """
        names = self.checkpoint.names
        routed = names.experts(self.spec.gated)
        numbers: Sequence[int] = self.experts if names.experts_layout == "each" else (0,)
        found = [self.name(each, expert) for expert in numbers for each in routed]
        if self.spec.shared_inner:
            found += [self.name(each) for each in names.shared(self.spec.gated)]
        return tuple(dict.fromkeys(found))

    def name(self, template: str, expert: int = 0) -> str:
        """Returns the whole name of a tensor or module."""
        return self.checkpoint.inside(self.layer, template).replace("{expert}", str(expert))

    def cut(self, inner: Slice | None = None) -> Slice | None:
        """Returns what to read of a tensor with all experts in its first dimension: this rank's experts, or `inner` of
        each expert.
        """
        if len(self.experts) < self.spec.experts:
            return Slice(0, self.experts.start, self.experts.stop)
        return inner

    def scales(self) -> Tensor | None:
        """Reads the factor of the output of each of this rank's experts, if they have one. Raises ModelFilesError."""
        if not self.spec.expert_scales:
            return None
        source, name = self.checkpoint.source, self.name(self.checkpoint.names.expert_scales)
        return source.read(name, (self.spec.experts,), self.cut())

    def span(self, inner: int, first: int) -> tuple[int, int]:
        """Returns this rank's shard of the expert that begins at `first` in a network of `inner` elements."""
        return min(first + self.start, inner), min(first + self.stop, inner)
