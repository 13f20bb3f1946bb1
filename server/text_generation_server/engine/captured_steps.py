"""The CUDA graphs of a runner's steps, and which of them a plan fits."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from text_generation_kernels import Windows

from ..layers.weights import StepAdapters
from .device_steps import DeviceSteps
from .graphs import GraphSizes, RunnerGraphs
from .running import CheckedPlan
from .speculation import Chosen
from .steps import Extents, StepInput
from .window_graphs import ForwardedWindows, WindowGraphs


class CapturedSteps:
    """Graphs of whole steps and of forward passes; none before `capture`. The engine thread owns it."""

    def __init__(self, steps: DeviceSteps) -> None:
        self._steps = steps
        place = steps.table.padding_row, steps.model.device
        self._windows = {width: WindowGraphs[Chosen](width, *place) for width in steps.widths}
        self._forward_windows = {width: WindowGraphs[ForwardedWindows](width, *place) for width in steps.widths}
        shares = steps.shared_heads > 0
        self.base = RunnerGraphs(*place, steps.has_axes, shares)
        """Those of steps in which no token uses an adapter."""
        self._none = RunnerGraphs(*place, steps.has_axes, shares)
        self.adapted = self._none
        """Those of steps in which some do."""
        if steps.adapters is not None:
            self.adapted = RunnerGraphs(*place, steps.has_axes, shares, steps.adapters.tables)

    def capture(self, sizes: GraphSizes) -> None:
        """Captures a graph for each of `sizes`. No request may be running."""
        if not sizes.count:
            return
        # One step runs at a time, so all graphs share one memory pool.
        memory = torch.cuda.graph_pool_handle()
        longest = self._steps.table.max_total_tokens
        self._capture(self.base, sizes, memory)
        for width, of_width in sizes.windows.items():
            self._windows[width].capture(partial(self._steps.of_windows, max_kv_len=longest), of_width, memory)
        for width, of_width in sizes.forward_windows.items():
            forward = partial(self._steps.forward_windows, max_kv_len=longest)
            self._forward_windows[width].capture(forward, of_width, memory)
        if self._steps.adapters is not None:
            self._capture(self.adapted, sizes.of_adapters, memory)

    def _capture(self, graphs: RunnerGraphs, sizes: GraphSizes, memory: Any) -> None:
        longest = self._steps.table.max_total_tokens

        def of_rows(rows: Tensor, adapters: StepAdapters | None) -> Chosen:
            return self._steps.of_rows(rows, longest, adapters)

        def forward_rows(rows: Tensor, adapters: StepAdapters | None) -> Tensor:
            return self._steps.forward_rows(rows, longest, adapters)

        def forward_chunks(step: StepInput[Tensor], size: int, adapters: StepAdapters | None) -> Tensor:
            return self._steps.forward_chunks(step, Extents(longest, size, graphs.chunks.contexts(size)), adapters)

        graphs.chunks.capture(forward_chunks, sizes.tokens, memory)
        graphs.decodes.capture(of_rows, sizes.decodes, memory)
        graphs.forwards.capture(forward_rows, sizes.forwards, memory)

    def whole(self, plan: CheckedPlan) -> Callable[[], Chosen] | None:
        """Returns what replays the whole step as one graph; None where no such graph fits."""
        if plan.chunks or plan.constrained or not plan.num_tokens or self._steps.needs_whole_rows(plan):
            return None
        if plan.width == 1:
            return self._of(plan).decodes.prepare(plan)
        found = None if plan.adapters is not None else self._windows[plan.width].prepare(plan)
        return None if found is None else found[1]

    def rows(self, plan: CheckedPlan) -> Callable[[], Tensor] | None:
        """Returns what replays the forward pass of a plan without chunks; None where no graph fits."""
        return self._of(plan).forwards.prepare(plan)

    def windows(self, plan: CheckedPlan) -> tuple[Windows, Callable[[], ForwardedWindows]] | None:
        """The same of windows, with what the graph reads them from."""
        return None if plan.adapters is not None else self._forward_windows[plan.width].prepare(plan)

    def chunks(self, plan: CheckedPlan) -> tuple[StepInput[Tensor], Callable[[], Tensor]] | None:
        """The same of a plan with chunks."""
        return self._of(plan).chunks.prepare(plan)

    def _of(self, plan: CheckedPlan) -> RunnerGraphs:
        adapters = self._steps.adapters
        if adapters is None or plan.adapters is None:
            return self.base
        return self.adapted if adapters.tables.fit_graphs(plan.adapters) else self._none
