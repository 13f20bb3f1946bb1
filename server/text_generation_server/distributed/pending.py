"""All-reduces that run beside other kernels."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import text_generation_kernels as kernels
from text_generation_kernels.collectives.exchange import Exchange


@dataclass(frozen=True)
class PendingAllReduce:
    """Begun by `TensorParallelGroup.begin_all_reduce`. Engine thread only."""

    x: Tensor
    """This rank's part, and the sum once `done`."""
    done: torch.cuda.Event | None
    """None: it is."""

    def end(self) -> Tensor:
        """The sum, in the memory of what was summed up. Kernels of the current stream that follow wait for it."""
        self._wait()
        return self.x

    def add_norm(
        self,
        residual: Tensor,
        weight: Tensor,
        eps: float,
        scale: float,
        x_weight: Tensor | None,
        *eight_bit: Any,
    ) -> None:
        """`end`, and `add_rms_norm` of the sum into its own memory and `residual`."""
        kernels.add_rms_norm(self.end(), residual, weight, eps, self.x, scale, x_weight, *eight_bit)

    def _wait(self) -> None:
        if self.done is not None:
            torch.cuda.current_stream().wait_event(self.done)


class FinishedInKernel(PendingAllReduce, ABC):
    """One whose last step is a kernel that can add to `residual` and normalise besides."""

    def end(self) -> Tensor:
        """See `PendingAllReduce`."""
        self._finish(None, None, 0.0, 1.0, None)
        return self.x

    def add_norm(
        self,
        residual: Tensor,
        weight: Tensor,
        eps: float,
        scale: float,
        x_weight: Tensor | None,
        *eight_bit: Any,
    ) -> None:
        """See `PendingAllReduce`."""
        if eight_bit:
            super().add_norm(residual, weight, eps, scale, x_weight, *eight_bit)
        else:
            self._finish(residual, weight, eps, scale, x_weight)

    @abstractmethod
    def _finish(
        self, residual: Tensor | None, weight: Tensor | None, eps: float, scale: float, x_weight: Tensor | None
    ) -> None:
        """Leaves the sum in `x` or, with `residual` and `weight`, what `add_rms_norm` makes of it."""


@dataclass(frozen=True)
class CopiedAllReduce(FinishedInKernel):
    """Of ranks that copy their parts to each other: `done` once the own one is copied."""

    others: Tensor
    """[world_size - 1, tokens, hidden]: the parts of the others, there once `flag` has counted them."""
    flag: Tensor
    """[1] int32"""
    exchange: Exchange

    def _finish(
        self, residual: Tensor | None, weight: Tensor | None, eps: float, scale: float, x_weight: Tensor | None
    ) -> None:
        # What is written replaces what is copied.
        self._wait()
        kernels.allreduce_add_norm_peer(
            self.x, self.others, residual, weight, eps, scale, x_weight, self.flag, self.exchange
        )


@dataclass(frozen=True)
class SentAllReduce(FinishedInKernel):
    """Of a product that sends its results to the ranks itself. `x`: where the sum is to be. Nothing else is summed up
    before its end.
    """

    exchange: Exchange

    def _finish(
        self, residual: Tensor | None, weight: Tensor | None, eps: float, scale: float, x_weight: Tensor | None
    ) -> None:
        kernels.allreduce_add_norm_receive(self.x, residual, weight, eps, scale, x_weight, self.exchange)


_TOKENS, _HIDDEN = 768, 8192
"""12 MiB: the smallest messages that run beside products."""


def known_input(rank: int, world_size: int, device: torch.device) -> Tensor:
    """What a rank adds to a known sum: small whole numbers, so that 16 bits hold the sums exactly."""
    columns = torch.arange(_TOKENS * _HIDDEN, device=device).view(_TOKENS, _HIDDEN)
    return (columns % max(2, 256 // world_size - rank)).to(torch.bfloat16)


def count_wrong(
    begin: Callable[[Tensor, int], PendingAllReduce], rank: int, world_size: int, places: int, device: torch.device
) -> int:
    """How many numbers of known sums come out wrong on rank `rank`, two sums being under algorithm at a time.

    All ranks call it together. `begin`: as `TensorParallelGroup.begin_all_reduce`, with `places` places.
    """
    part = known_input(rank, world_size, device)
    total, wrong = torch.zeros_like(part), torch.zeros((), dtype=torch.int64, device=device)
    for each in range(world_size):
        total += known_input(each, world_size, device)
    for first in range(0, 2 * places, 2):
        begun = [begin(part + 0, (first + index) % places) for index in range(2)]
        for each in begun:
            wrong += (each.end() != total).sum()
    return int(wrong.item())
