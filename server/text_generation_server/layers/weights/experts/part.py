"""Which part of a mixture belongs to a rank, and what its tensors are called."""

from dataclasses import dataclass

from torch import Tensor

from ....config.spec import MoeSpec
from ....errors import ConfigurationError
from ..checkpoint import Checkpoint
from ..split import even_span

Target = tuple[Tensor, Tensor, Tensor]
"""What is filled: gate and up [experts, inner of this rank, hidden], down [experts, hidden, inner of this rank]."""


def shared_experts(spec: MoeSpec) -> int:
    """Experts that the shared network becomes."""
    return -(-spec.shared_inner // spec.inner)


@dataclass(frozen=True)
class ExpertPart:
    """Inner elements `start` to `stop` of every expert of one layer."""

    checkpoint: Checkpoint
    layer: int
    spec: MoeSpec
    start: int
    stop: int

    @classmethod
    def of(cls, checkpoint: Checkpoint, layer: int, spec: MoeSpec) -> "ExpertPart":
        """That of the checkpoint's rank. Raises ConfigurationError where there is none for each rank."""
        world_size = checkpoint.group.world_size
        if spec.inner < world_size:
            raise ConfigurationError(
                f"{world_size} shards cannot share the inner size {spec.inner} of the experts: "
                f"set --num-shard to at most {spec.inner}"
            )
        whole = cls(checkpoint, layer, spec, 0, spec.inner)
        align = checkpoint.schemes.align(*whole.modules)
        return cls(checkpoint, layer, spec, *even_span(spec.inner, checkpoint.group.rank, world_size, align))

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
        routed = names.expert_gate, names.expert_up, names.expert_down
        count = self.spec.experts if names.experts_layout == "each" else 1
        found = [self.name(each, expert) for expert in range(count) for each in routed]
        if self.spec.shared_inner:
            found += [self.name(each) for each in (names.shared_gate, names.shared_up, names.shared_down)]
        return tuple(dict.fromkeys(found))

    def name(self, template: str, expert: int = 0) -> str:
        """The whole name of a tensor or module."""
        return self.checkpoint.inside(self.layer, template).replace("{expert}", str(expert))

    def span(self, inner: int, first: int) -> tuple[int, int]:
        """The part of a network of `inner` that is this rank's, of which an expert begins at `first`."""
        return min(first + self.start, inner), min(first + self.stop, inner)
