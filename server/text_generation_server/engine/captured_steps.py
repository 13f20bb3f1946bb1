"""The CUDA graphs of a runner's steps, and which of them a plan fits."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from text_generation_kernels import Windows

from ..layers.weights import StepAdapters
from .adapters import AdapterTables
from .device_steps import DeviceSteps
from .graphs import ChunkGraphs, DecodeGraphs, GraphSizes
from .running import CheckedPlan
from .speculation import Chosen
from .steps import Extents, StepInput
from .window_graphs import ForwardedWindows, WindowGraphs


class RunnerGraphs:
    """The graphs of steps in which no token uses an adapter, or, with `adapters`, of those in which some do."""

    def __init__(
        self,
        padding_row: int,
        device: torch.device,
        axes: bool,
        widths: Sequence[int],
        shares_contexts: bool,
        adapters: AdapterTables | None = None,
    ) -> None:
        """`widths` are those of windows; `shares_contexts` has the meaning of `ChunkGraphs`."""
        place = padding_row, device
        self.decodes = DecodeGraphs[Chosen](*place, adapters)
        self.forwards = DecodeGraphs[Tensor](*place, adapters)
        self.chunks = {width: ChunkGraphs(*place, axes, adapters, width, shares_contexts) for width in (1, *widths)}
        """By the width of windows beside the chunks."""
        self.windows = {width: WindowGraphs[Chosen](width, *place, adapters) for width in widths}
        self.forward_windows = {width: WindowGraphs[ForwardedWindows](width, *place, adapters) for width in widths}


class CapturedSteps:
    """Graphs of whole steps and of forward passes; none before `capture`. The engine thread owns it."""

    def __init__(self, steps: DeviceSteps) -> None:
        self._steps = steps
        place = steps.table.padding_row, steps.model.device, steps.has_axes, steps.widths, steps.shared_heads > 0
        self.base = RunnerGraphs(*place)
        """Those of steps in which no token uses an adapter."""
        self._none = RunnerGraphs(*place)
        self.adapted = self._none
        """Those of steps in which some do."""
        if steps.adapters is not None:
            self.adapted = RunnerGraphs(*place, steps.adapters.tables)

    def capture(self, sizes: GraphSizes) -> None:
        """Captures a graph for each of `sizes`. No request may be running."""
        if not sizes.count:
            return
        # One step runs at a time, so all graphs share one memory pool.
        memory = torch.cuda.graph_pool_handle()
        self._capture(self.base, sizes, memory)
        self._steps.states.capture(sizes.forward_windows, memory)
        if self._steps.adapters is not None:
            self._capture(self.adapted, sizes.of_adapters, memory)

    def _capture(self, graphs: RunnerGraphs, sizes: GraphSizes, memory: Any) -> None:
        steps, longest = self._steps, self._steps.table.max_total_tokens

        def of_rows(rows: Tensor, adapters: StepAdapters | None) -> Chosen:
            return steps.of_rows(rows, longest, adapters)

        def forward_rows(rows: Tensor, adapters: StepAdapters | None) -> Tensor:
            return steps.forward_rows(rows, longest, adapters)

        def forward_chunks(width: int, step: StepInput[Tensor], size: int, adapters: StepAdapters | None) -> Tensor:
            extents = Extents(longest, size, width, graphs.chunks[width].contexts(size))
            return steps.forward_chunks(step, extents, adapters)

        graphs.chunks[1].capture(partial(forward_chunks, 1), sizes.tokens, memory)
        graphs.decodes.capture(of_rows, sizes.decodes, memory)
        graphs.forwards.capture(forward_rows, sizes.forwards, memory)
        for width, of_width in sizes.windows.items():
            graphs.windows[width].capture(partial(steps.of_windows, max_kv_len=longest), of_width, memory)
        for width, of_width in sizes.forward_windows.items():
            graphs.forward_windows[width].capture(partial(steps.forward_windows, max_kv_len=longest), of_width, memory)
        for width, of_width in sizes.window_tokens.items():
            graphs.chunks[width].capture(partial(forward_chunks, width), of_width, memory)

    def whole(self, plan: CheckedPlan) -> Callable[[], Chosen] | None:
        """Returns what replays the whole step as one graph; None where no such graph fits."""
        if plan.chunks or plan.constrained or not plan.num_tokens or self._steps.needs_whole_rows(plan):
            return None
        if plan.width == 1:
            # Graphs of these have no drafts behind them.
            is_rare = self._steps.is_drafted and self._steps.has_drafts_behind(plan)
            return None if is_rare else self._of(plan).decodes.prepare(plan)
        found = self._of(plan).windows[plan.width].prepare(plan)
        return None if found is None else found[1]

    def rows(self, plan: CheckedPlan) -> Callable[[], Tensor] | None:
        """Returns what replays the forward pass of a plan without chunks; None where no graph fits."""
        return self._of(plan).forwards.prepare(plan)

    def windows(self, plan: CheckedPlan) -> tuple[Windows, Callable[[], ForwardedWindows]] | None:
        """The same of windows, with what the graph reads them from."""
        return self._of(plan).forward_windows[plan.width].prepare(plan)

    def chunks(self, plan: CheckedPlan) -> tuple[StepInput[Tensor], Callable[[], Tensor]] | None:
        """The same of a plan with chunks."""
        return self._of(plan).chunks[plan.width].prepare(plan)

    def _of(self, plan: CheckedPlan) -> RunnerGraphs:
        adapters = self._steps.adapters
        if adapters is None or plan.adapters is None:
            return self.base
        return self.adapted if adapters.tables.fit_graphs(plan.adapters) else self._none
