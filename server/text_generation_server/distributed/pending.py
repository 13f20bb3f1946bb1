"""Pending all-reduces, which overlap with other kernels, and their self-check."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

import text_generation_kernels as kernels
from text_generation_kernels.collectives.exchange import Exchange


@dataclass(frozen=True)
class PendingAllReduce:
    """An all-reduce that `TensorParallelGroup.begin_all_reduce` began. Engine thread only."""

    x: Tensor
    """This rank's input, and the result once `done`."""
    done: torch.cuda.Event | None
    """None: done already."""

    def end(self) -> Tensor:
        """The result, in the memory of the input. Later kernels of the current stream wait for it."""
        self._wait()
        return self.x

    def add_norm(
        self,
        residual: Tensor,
        weight: Tensor,
        eps: float,
        scale: float,
        x_weight: Tensor | None,
        quantised: kernels.Quantised = kernels.NOT_QUANTISED,
    ) -> None:
        """`end`, then `add_rms_norm` of the result into its own memory and `residual`."""
        kernels.add_rms_norm(self.end(), residual, weight, eps, self.x, scale, x_weight, quantised)

    def _wait(self) -> None:
        if self.done is not None:
            torch.cuda.current_stream().wait_event(self.done)


class FinishedInKernel(PendingAllReduce, ABC):
    """An all-reduce whose last kernel fuses the residual add and RMSNorm."""

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
        quantised: kernels.Quantised = kernels.NOT_QUANTISED,
    ) -> None:
        """See `PendingAllReduce`."""
        if quantised.is_wanted:
            super().add_norm(residual, weight, eps, scale, x_weight, quantised)
        else:
            self._finish(residual, weight, eps, scale, x_weight)

    @abstractmethod
    def _finish(
        self, residual: Tensor | None, weight: Tensor | None, eps: float, scale: float, x_weight: Tensor | None
    ) -> None:
        """Leaves the result in `x` or, with `residual` and `weight`, that of `add_rms_norm`."""


@dataclass(frozen=True)
class CopiedAllReduce(FinishedInKernel):
    """An all-reduce of ranks that copy their inputs to each other: `done` once the own one is copied."""

    others: Tensor
    """[world_size - 1, tokens, hidden]: the inputs of the others, valid once `flag` has counted them."""
    flag: Tensor
    """[1] int32"""
    exchange: Exchange

    def _finish(
        self, residual: Tensor | None, weight: Tensor | None, eps: float, scale: float, x_weight: Tensor | None
    ) -> None:
        # The result overwrites what is being copied.
        self._wait()
        kernels.allreduce_add_norm_peer(
            self.x, self.others, residual, weight, eps, scale, x_weight, self.flag, self.exchange
        )


@dataclass(frozen=True)
class SentAllReduce(FinishedInKernel):
    """The all-reduce of a GEMV that sends its results to the ranks itself. `x`: where the result goes. No other
    all-reduce may begin before its end.
    """

    exchange: Exchange

    def _finish(
        self, residual: Tensor | None, weight: Tensor | None, eps: float, scale: float, x_weight: Tensor | None
    ) -> None:
        kernels.allreduce_add_norm_receive(self.x, residual, weight, eps, scale, x_weight, self.exchange)


_TOKENS, _HIDDEN = 768, 8192
"""12 MiB: the smallest messages that overlap with GEMMs."""


def known_input(rank: int, world_size: int, device: torch.device) -> Tensor:
    """A rank's input of the self-check: small whole numbers, whose sums 16 bits hold exactly."""
    columns = torch.arange(_TOKENS * _HIDDEN, device=device).view(_TOKENS, _HIDDEN)
    return (columns % max(2, 256 // world_size - rank)).to(torch.bfloat16)


def count_wrong(
    begin: Callable[[Tensor, int], PendingAllReduce], rank: int, world_size: int, places: int, device: torch.device
) -> int:
    """Self-check: how many values of known all-reduces come out wrong on this rank, with two pending at a time.

    All ranks call it together. `begin`: as `TensorParallelGroup.begin_all_reduce`, with `places` places.
    """
    own = known_input(rank, world_size, device)
    total, wrong = torch.zeros_like(own), torch.zeros((), dtype=torch.int64, device=device)
    for each in range(world_size):
        total += known_input(each, world_size, device)
    for first in range(0, 2 * places, 2):
        begun = [begin(own + 0, (first + index) % places) for index in range(2)]
        for each in begun:
            wrong += (each.end() != total).sum()
    return int(wrong.item())
