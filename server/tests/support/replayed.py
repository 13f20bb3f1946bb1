"""CUDA graphs on a CPU: each replay computes what was captured once more, padded as for a device."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from text_generation_server.engine.captured_steps import RunnerGraphs
from text_generation_server.engine.engine import Engine
from text_generation_server.engine.graphs import GraphSizes, StepGraphs


class Replayed(StepGraphs[Any]):
    """Replays by computing again, as a device does with what it has captured."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self.replays: list[int] = []

    def capture(self, step: Callable[[int], Any], sizes: Sequence[int], memory: Any) -> None:
        self.sizes = sorted(sizes)
        self.replays = []
        self._step = step
        for size in self.sizes:
            step(size)

    def replay(self, size: int) -> Any:
        self.replays.append(size)
        return self._step(size)


def capture(engine: Engine, sizes: GraphSizes) -> None:
    """Gives an engine that was warmed up graphs of these sizes."""
    runner = engine._runner
    assert runner is not None
    for graphs in (runner._captured.base, runner._captured.adapted):
        by_width = graphs.chunks, graphs.windows, graphs.forward_windows
        for each in (graphs.decodes, graphs.forwards, *(each for kind in by_width for each in kind.values())):
            each._graphs = Replayed(runner._steps.model.device)  # type: ignore[assignment]
    states = runner._steps.states
    states.graphs |= {width: Replayed(runner._steps.model.device) for width in states.graphs}
    with pytest.MonkeyPatch.context() as patch, torch.inference_mode():
        patch.setattr(torch.cuda, "graph_pool_handle", lambda: None)
        runner.capture(sizes)


def replays(graphs: RunnerGraphs, width: int = 1) -> tuple[set[int], set[int], set[int]]:
    """The sizes of decodes, forward passes and steps with chunks that were replayed, with windows of this width."""
    kinds = graphs.decodes, graphs.forwards, graphs.chunks[1]
    if width > 1:
        kinds = graphs.windows[width], graphs.forward_windows[width], graphs.chunks[width]
    decodes, forwards, chunks = (set(each._graphs.replays) for each in kinds)  # type: ignore[attr-defined]
    return decodes, forwards, chunks
