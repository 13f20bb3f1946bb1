"""The end of a step of windows in a model with recurrent layers: states advance by the tokens that are right."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from text_generation_kernels import Windows

from ..layers.infer import Recurrence, accepted_runs
from ..models.base import CausalLM
from .graphs import StepGraphs
from .kv_pool import KVPool
from .rows import RowTable
from .speculation import Chosen


class StateReplay:
    """Replays accepted tokens (`layers/infer/state_windows.py`). The engine thread owns it."""

    def __init__(
        self, model: CausalLM, pool: KVPool, table: RowTable, widths: Sequence[int], deterministic: bool
    ) -> None:
        """`widths` are those of windows."""
        self._model = model
        self._pool = pool
        self._table = table
        self._deterministic = deterministic
        self._rows = self._counts = torch.empty(0, dtype=torch.int64)
        self.graphs = {width: StepGraphs[None](model.device) for width in (widths if pool.states else ())}
        """Those of replays behind a choice that no graph has, by the width of windows."""

    def capture(self, sizes: Mapping[int, Sequence[int]], memory: Any) -> None:
        """Captures a graph for each of these numbers of windows, by their width."""
        if not self.graphs:
            return
        most = max((size for of_width in sizes.values() for size in of_width), default=0)
        padding, device = self._table.padding_row, self._model.device
        self._rows = torch.full((most,), padding, dtype=torch.int64, device=device)
        self._counts = torch.zeros_like(self._rows)
        for width, of_width in sizes.items():

            def replay(size: int, width: int = width) -> None:
                self._advance(self._rows[:size], self._counts[:size], width)

            self.graphs[width].capture(replay, of_width, memory)

    def within(self, windows: Windows, chosen: Chosen) -> None:
        """Advances the states of the windows' rows, which have got the tokens `chosen`, as a part of the step. The
        windows are those with which the step begins, and `chosen` begins with theirs.
        """
        if self.graphs and chosen.outcome is not None:
            self._advance(windows.rows, chosen.outcome[: len(windows.rows), 0], windows.width)

    def behind(self, windows: Windows, chosen: Chosen) -> None:
        """Does the same behind a choice that no graph has, with a graph of its own where one fits."""
        rows, graphs = windows.rows, self.graphs.get(windows.width)
        size = None if graphs is None else graphs.fitting(len(rows))
        if graphs is None or size is None or chosen.outcome is None:
            self.within(windows, chosen)
            return
        padding = (0, size - len(rows))
        self._rows[:size] = functional.pad(rows, padding, value=self._table.padding_row)
        self._counts[:size] = functional.pad(chosen.outcome[: len(rows), 0], padding)
        graphs.replay(size)

    @torch.inference_mode()
    def _advance(self, rows: Tensor, counts: Tensor, width: int) -> None:
        """Advances the states of `rows` int64 [D], which have got `counts` int64 [D] tokens, by these."""
        runs = accepted_runs(rows, counts, self._table.length[rows], width)
        for mixer, states, read in zip(self._model.recurrent, self._pool.states, self._pool.read, strict=True):
            of_windows = [each[: len(rows) * width] for each in read]
            mixer.replay(of_windows, Recurrence(runs, states), self._deterministic)
