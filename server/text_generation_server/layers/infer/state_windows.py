"""Windows of drafted tokens before recurrent layers, whose states a rejected draft must not change.

How many tokens of a window are right is known behind the last layer. So a window advances a copy of its row's state,
and each layer keeps what its recurrence reads of the tokens. At the end of the step the accepted tokens are replayed:
from what was kept, they advance the states themselves. So between steps a state is that of the row's own text, and no
GEMM computes a token twice.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from text_generation_kernels import Chunks, Runs, WindowInputs

from .layer_state import LayerState


class Recurrence(NamedTuple):
    """New tokens, and the states of one layer that they advance."""

    runs: Runs
    states: LayerState
    """By the rows of `runs`."""


@dataclass(frozen=True)
class StateWindows:
    """The windows of a step, its first D * width tokens."""

    rows: Tensor
    """[D] int64, the row of each window."""
    kv_lens: Tensor
    """[D] int32, the tokens of each request up to its newest one, which the window begins with; 0: nothing is computed
    of the window.
    """
    width: int
    others: Runs | None
    """The chunks of the step. None: it has none."""
    read: Sequence[Sequence[Tensor]]
    """For each recurrent layer what its recurrence reads, [tokens, elements] each (`StateShape.read`)."""

    @classmethod
    def of(
        cls, inputs: WindowInputs, width: int, chunks: Chunks | None, read: Sequence[Sequence[Tensor]]
    ) -> "StateWindows":
        """Returns those of a step with these inputs, and with chunks or without."""
        rows, lengths = (each.view(-1, width)[:, 0] for each in (inputs.rows, inputs.kv_lens))
        others = None if chunks is None else Runs(chunks.rows, chunks.starts, chunks.kv_lens, chunks.max_len)
        return cls(rows, lengths, width, others, read)

    @cached_property
    def runs(self) -> Runs:
        """The windows, as runs over copies of their rows' states. What pads a window advances nothing but its copy.

        As single tokens, they go token by token: a longer run may take another algorithm, which rounds otherwise.
        """
        order = torch.arange(len(self.rows) + 1, device=self.rows.device)
        lengths = torch.where(self.kv_lens > 0, self.kv_lens + (self.width - 1), 0)
        return Runs(order[:-1], (order * self.width).to(torch.int32), lengths, 1)

    def begin(self, states: LayerState) -> list[Recurrence]:
        """Returns what a layer with these states computes."""
        windows = [Recurrence(self.runs, states.of(self.rows))]
        return windows if self.others is None else [*windows, Recurrence(self.others, states)]

    def keep(self, layer: int, read: Sequence[Tensor]) -> None:
        """Keeps what the recurrence of a layer reads of windows, of tensors [T, ...] over all tokens of the step."""
        tokens = len(self.rows) * self.width
        for kept, each in zip(self.read[layer], read, strict=True):
            kept[:tokens].copy_(each[:tokens].flatten(1))


def accepted_runs(rows: Tensor, counts: Tensor, lengths: Tensor, width: int) -> Runs:
    """Returns the accepted tokens of windows as runs over the states of `rows` int64 [D], which have got `counts` int64
    [D] tokens each and are `lengths` int64 [D] long now, their newest tokens, which nobody has computed, included.
    """
    begins = torch.arange(len(rows) + 1, device=rows.device) * width
    # What was rejected of a window is a run of a request of length 0.
    starts = torch.stack((begins[:-1], begins[:-1] + counts), dim=1).flatten()
    computed = torch.stack(((lengths - 1).clamp_(min=0), torch.zeros_like(lengths)), dim=1).flatten()
    starts = torch.cat((starts, begins[-1:])).to(torch.int32)
    return Runs(torch.stack((rows, rows), dim=1).flatten(), starts, computed.to(torch.int32), 1)
