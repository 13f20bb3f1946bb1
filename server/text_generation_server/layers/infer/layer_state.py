"""What recurrent layers keep of each request, in place of keys and values."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class StateShape:
    """What one recurrent layer keeps of each row on this rank, however many tokens the row has."""

    kernel: int
    """Tokens that the convolution sees; a row keeps one less."""
    channels: int
    """Inputs of the convolution."""
    size: tuple[int, ...]
    """Shape of the state of one row."""
    read: tuple[int, ...] = ()
    """Elements of each tensor that the recurrence reads of a token (`RecurrentMixer.replay`)."""

    def bytes_per_row(self, dtype: torch.dtype) -> int:
        """Returns the bytes of one row in a model of type `dtype`."""
        return (self.kernel - 1) * self.channels * dtype.itemsize + math.prod(self.size) * torch.float32.itemsize

    def allocate(self, rows: int, dtype: torch.dtype, device: torch.device) -> "LayerState":
        """Allocates so many rows, all zeros. Operators treat the row of a run that begins its request as zeros."""
        inputs = torch.zeros((rows, self.kernel - 1, self.channels), dtype=dtype, device=device)
        return LayerState(inputs, torch.zeros((rows, *self.size), dtype=torch.float32, device=device))

    def bytes_per_token(self, dtype: torch.dtype) -> int:
        """Returns the bytes of what the recurrence reads of a token."""
        return sum(self.read) * dtype.itemsize

    def allocate_read(self, tokens: int, dtype: torch.dtype, device: torch.device) -> list[Tensor]:
        """Allocates what the recurrence reads of so many tokens."""
        return [torch.zeros((tokens, size), dtype=dtype, device=device) for size in self.read]


@dataclass(frozen=True)
class LayerState:
    """The state of one recurrent layer, by row."""

    inputs: Tensor
    """[rows, kernel - 1, channels], the last inputs of the convolution, oldest first."""
    state: Tensor
    """[rows, *size] float32. States are sums over whole contexts, in which the errors of 16 bits would add up."""

    def of(self, rows: Tensor) -> "LayerState":
        """Returns a copy of these rows, int64 [R]."""
        return LayerState(self.inputs.index_select(0, rows), self.state.index_select(0, rows))
