"""The spec of a projector: from hidden states of a vision tower to those of the decoder."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from ..spec import NormSpec
from .tower import PositionSpec, TowerSpec, VisionActivation

Join = Literal["patches", "channels", "mean"]
"""How patches that are merged become one position: one after the other, channel by channel, or as their mean."""


@dataclass(frozen=True)
class LinearSpec:
    """A linear layer of a projector; `weight` and `bias` are whole names behind the projector's prefix."""

    weight: str
    outputs: int
    bias: str | None = None
    activation: VisionActivation | None = None
    """What follows it."""
    transposed: bool = False
    """Whether it is stored [inputs, outputs]."""
    rest: int = 0
    """Where it is: further rows, which it does not read."""
    patches: int = 0
    """The side of the patches that it joins, where it is stored as a convolution of them; 0: it is not."""
    norm: NormSpec | None = None
    """The norm of its output, before the activation."""
    norm_name: str = ""
    gate: str = ""
    """The whole name of the matrix of a gate, which has the activation and multiplies the output; empty: none."""


@dataclass(frozen=True)
class QuerySpec:
    """Learned queries, each of which attends to all patches of a view and becomes a position (Qwen-VL, 2023; Aria,
    2024; MiniCPM-V).

    Patches are normalised and make keys and values. What comes out goes through a matrix.
    """

    heads: int
    counts: Mapping[int, int]
    """How many of the queries there are, by the patches along the longer side of a view."""
    norm: NormSpec
    """Of queries, and of patches."""
    of_any_size: bool = False
    """Whether views of every size have as many; `counts` has one entry then, an ordinary view."""
    placed: Literal["keys", "values"] | None = None
    """What is made of patches to which sines and cosines of their columns and rows are added."""
    table: PositionSpec | None = None
    """In place of these: a stored table that has the positions of the queries, and of patches where it is stretched to
    the view.
    """
    names: Literal["aria", "minicpm"] = "aria"
    """Whose names and matrices files have."""
    prefix: str = ""
    """Of these names, behind that of the projector."""

    def count(self, longer: int) -> int | None:
        """Returns the queries of a view with so many patches along its longer side; None: there is no such view."""
        return max(self.counts.values()) if self.of_any_size else self.counts.get(longer)


@dataclass(frozen=True)
class LevelSpec:
    """A projector: from hidden states of the tower to one level of the encoder's output."""

    reads: tuple[int, ...]
    """The hidden states that it reads side by side: 0 is before the first block, n behind block n - 1."""
    linears: tuple[LinearSpec, ...]
    last_norm: NormSpec | None = None
    """The norm of the tower's last hidden states."""
    norm: NormSpec | None = None
    """The norm of patches, before they are joined."""
    of_patches: tuple[LinearSpec, ...] = ()
    """Linear layers of patches, behind that norm."""
    halvings: tuple[str, ...] = ()
    """In place of joining: convolutions of 3 x 3, with a bias, each of which halves height and width and doubles the
    channels. Their names, behind the tower's prefix.
    """
    queries: QuerySpec | None = None
    """In place of joining."""
    join: Join = "patches"
    factor: float = 1.0
    """Factor of what is joined."""
    standardised: bool = False
    """Whether a learned vector is subtracted from it then, and another one multiplies it. Both, and the factor, are
    applied in float32.
    """
    joined_norm: NormSpec | None = None
    """The norm behind that."""
    norm_name: str = "norm"
    """Of both."""
    keeps_class: bool = False
    """Whether the class token takes a position of the prompt."""

    def inputs(self, tower: TowerSpec) -> int:
        """Returns the inputs of the first linear layer behind the join."""
        width = self.of_patches[-1].outputs if self.of_patches else tower.hidden * len(self.reads)
        if self.halvings:
            return width * 2 ** len(self.halvings)
        return width if self.join == "mean" else width * tower.merge**2
