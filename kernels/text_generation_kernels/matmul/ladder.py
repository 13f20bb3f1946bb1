"""Ladders: which kernel computes a matmul, for each scheme of weights, in order of preference.

A `MatmulKernel` says which problems it takes, with which launch settings, or why not. A `Ladder` picks the first kernel
that takes a problem, once for each matrix and number of tokens: warm-up meets all of them, and later a launch only
looks the choice up. Numbers of tokens count as the size to which a kernel pads them (`padded_tokens`), so a batch that
is padded to one size gives a token the same result to the bit, whichever others are there.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Generic, Literal, Protocol, TypeVar

from ..runtime.launch import LAUNCHERS, alternatives, compiling_only
from ..runtime.launch_order import Pdl

Settings = Mapping[str, int]
"""Launch settings."""
SMALL_BATCH = 64
"""The most tokens that are one tile. Libraries compute more tokens, or kernels with several tiles."""
LARGE_BATCHES = (128, 256, 512, 1024, 2048, 4096, 8192)
"""Padded numbers of tokens above `SMALL_BATCH` that may have launch settings of their own."""
_SMALLEST_TILE = 16


def padded_tokens(tokens: int, smallest: int = _SMALLEST_TILE) -> int:
    """The size to which `tokens` is padded, and by which kernels are chosen: a power of two."""
    return max(smallest, 1 << (tokens - 1).bit_length())


Fusion = Literal[
    "norm",
    "quantisation",
    "activation",
    "amax",
    "residual",
    "all-reduce",
    "split-K partials",
    "router",
    "sum over experts",
]
"""What a kernel may be fused with. Prologue: an RMSNorm, or the quantisation of the token. Epilogue: the gated
activation, the same with the largest values of each tile, the residual add, the sending half of an all-reduce, or
partials that the next kernel reduces. Of experts: the router of one token, and the sum over a token's experts.
"""


class TokensProblem(Hashable, Protocol):
    """What the choice of a kernel depends on, without tensors."""

    @property
    def tokens(self) -> int:
        """1, or the padded number of tokens."""
        ...

    def of_tokens(self: "TokensT", tokens: int) -> "TokensT":
        """The same with another number of tokens."""
        ...


ProblemT = TypeVar("ProblemT", bound=Hashable)
TokensT = TypeVar("TokensT", bound=TokensProblem)


@dataclass(frozen=True)
class MatmulKernel(Generic[ProblemT]):
    """A kernel, or a library, that computes matmuls of one scheme."""

    name: str
    settings: Callable[[ProblemT], Settings | str]
    """Launch settings for a problem, or why this kernel does not compute it."""
    launch: Callable[..., None]
    """Launches it: the arguments are those of all kernels of the ladder, and the settings."""
    takes: str
    """What it computes, for people (docs/kernels.md); `settings` decides."""
    fuses: frozenset[Fusion] = frozenset()
    launches: tuple[str, ...] = ()
    """The kernels of ours that it launches, in their order, where these are others than the one of its name."""

    @property
    def kernels(self) -> tuple[Pdl, ...]:
        """What these say about programmatic dependent launch; nothing, where a library computes everything."""
        return tuple(LAUNCHERS[name].pdl for name in self.launches or (self.name,) if name in LAUNCHERS)


@dataclass(frozen=True)
class Choice(Generic[ProblemT]):
    """The kernel for a problem."""

    kernel: MatmulKernel[ProblemT]
    settings: Settings


class Ladder(Generic[ProblemT]):
    """The kernels of a scheme, in order of preference."""

    def __init__(self, *kernels: MatmulKernel[ProblemT]) -> None:
        self.kernels = kernels
        self._choices: dict[ProblemT, Choice[ProblemT] | None] = {}

    def find(self, problem: ProblemT) -> Choice[ProblemT] | None:
        """The first kernel that takes `problem`; None where the caller has to compute it by several operators."""
        if problem not in self._choices:
            self._choices[problem] = self._find(problem)
        return self._choices[problem]

    def pick(self, problem: ProblemT) -> Choice[ProblemT]:
        """The same for a problem that a kernel takes for certain. Raises LookupError otherwise."""
        choice = self.find(problem)
        if choice is None:
            raise LookupError(f"no kernel computes {problem}")
        return choice

    def refusals(self, problem: ProblemT) -> Iterator[tuple[str, str]]:
        """The kernels before the first that takes `problem`, each with why it does not compute it."""
        for kernel in self.kernels:
            reason = kernel.settings(problem)
            if not isinstance(reason, str):
                return
            yield kernel.name, reason

    def _find(self, problem: ProblemT) -> Choice[ProblemT] | None:
        for kernel in self.kernels:
            settings = kernel.settings(problem)
            if not isinstance(settings, str):
                return Choice(kernel, settings)
        return None


def sizes_to_launch(size: int, every: Iterable[int]) -> Iterable[int]:
    """What an operator launches where kernels are chosen by a size of the step: that size alone, or in a compile dry
    run, which does not see every step, `every` one.
    """
    return alternatives(every) if compiling_only() else (size,)


def launches(ladder: Ladder[TokensT], problem: TokensT) -> Iterable[Choice[TokensT]]:
    """What an operator launches for `problem`: the choice; in a compile dry run a large batch stands for all large
    ones.
    """
    if problem.tokens <= SMALL_BATCH or not compiling_only():
        return (ladder.pick(problem),)
    every = (ladder.pick(problem.of_tokens(tokens)) for tokens in LARGE_BATCHES)
    return alternatives({(each.kernel.name, tuple(each.settings.items())): each for each in every}.values())
