"""CUDA graphs of recurrent operators that serve another step than the one they were captured with."""

from collections.abc import Callable, Iterable
from typing import Protocol

import torch
from torch import Tensor

Result = tuple[Tensor, Tensor]
"""What an operator wrote, and the state after it."""


class Step(Protocol):
    """Runs of a step."""

    @property
    def state(self) -> Tensor: ...
    @property
    def rows(self) -> Tensor: ...
    @property
    def starts(self) -> Tensor | None: ...
    @property
    def kv_lens(self) -> Tensor: ...
    def run(self, operator: Callable[..., None], *arguments: bool) -> Result: ...


def run_in_graph(
    operator: Callable[..., None],
    captured: Step,
    replayed: Step,
    inputs: Iterable[tuple[Tensor, Tensor]],
    *arguments: bool,
) -> tuple[Result, Result]:
    """What `replayed` gives by itself, and in a graph of `captured`. `inputs` are pairs of what is copied to there."""
    expected = replayed.run(operator, *arguments)
    captured.run(operator, *arguments)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = captured.run(operator, *arguments)
    assert captured.starts is not None
    assert replayed.starts is not None
    for old, new in (
        *inputs,
        (captured.state, replayed.state),
        (captured.rows, replayed.rows),
        (captured.starts, replayed.starts),
        (captured.kv_lens, replayed.kv_lens),
    ):
        old.copy_(new)
    graph.replay()
    return expected, found
