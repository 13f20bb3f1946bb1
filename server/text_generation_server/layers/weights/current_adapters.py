"""What layers for tokens with adapters know of a step, and how much room all adapters have on the device."""

from dataclasses import dataclass

import torch
from torch import Tensor

from text_generation_kernels import MOST_LAUNCHES


@dataclass(frozen=True)
class StepAdapters:
    """Which adapter each of the T tokens of a step uses: tables of `text_generation_kernels.lora`, on the device."""

    order: Tensor
    """[T] int32"""
    tiles: Tensor
    """[tiles, 4] int32"""
    work: Tensor
    """[items, 2] int32"""
    numbers: Tensor
    """[T] int32, the number of each token's adapter; 0: none."""
    counts: Tensor
    """[3] int32: the number of the step, tiles and items of work that are not empty."""
    words: Tensor
    """What kernels of these tables pass to each other (`kernels.SiteAdapters`)."""
    tile_tokens: int
    by_output: bool = True
    """Whether one of them multiplies outputs of linear layers (DoRA) or changes their biases."""


class CurrentAdapters:
    """The tables of the step that runs through adapted layers. The engine thread alone sets and reads them."""

    def __init__(self) -> None:
        self._step: StepAdapters | None = None
        self._launches = 0

    @property
    def step(self) -> StepAdapters:
        """The tables. Raises ValueError where no step with adapters has begun."""
        if self._step is None:
            raise ValueError("a layer with adapters runs in a step without them")
        return self._step

    def begin(self, step: StepAdapters) -> None:
        """Sets the tables for all layers of a step, or goes on with those that are set."""
        if step is not self._step:
            self._step, self._launches = step, 0

    @property
    def has_launches(self) -> bool:
        """Whether the step has numbers left for kernels that need one."""
        return self._launches < MOST_LAUNCHES

    def next_launch(self) -> int:
        """Returns the number of the next kernel of the step that needs one."""
        self._launches += 1
        return self._launches - 1


@dataclass(frozen=True)
class Room:
    """What tables on the device have room for."""

    pages: int
    """Rank pages, numbers 0 and up."""
    adapters: int
    """Adapters, numbers 1 and up: 0 is the base."""


def pinned(values: Tensor, device: torch.device) -> Tensor:
    """Returns values of the host in memory from which `device` copies by itself."""
    return values.pin_memory() if device.type == "cuda" else values
