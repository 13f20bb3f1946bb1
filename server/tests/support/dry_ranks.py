"""A rank of several for compile dry runs, in which nothing is sent."""

# pyright: basic
from contextlib import suppress
from types import SimpleNamespace

import torch
from torch import Tensor

from text_generation_kernels.collectives.exchange import Exchange, control_block
from text_generation_server.distributed import TensorParallelGroup
from text_generation_server.distributed.algorithms import Algorithm, AlgorithmTable

CPU = torch.device("cpu")


class OneOfTwo(TensorParallelGroup):
    """A rank that reduces over peer memory which is not there."""

    def __init__(self) -> None:
        super().__init__(0, 2, CPU)
        exchange = Exchange(0, 2, control_block([0, 0], 0, CPU), set_bytes=1 << 24)
        self._peers = SimpleNamespace(exchange=exchange, copies=SimpleNamespace(fits=lambda _: False))
        self._algorithms = AlgorithmTable((1 << 30,), (Algorithm.ONE_SHOT,))

    def all_reduce(self, tensor: Tensor) -> None:
        """Does nothing with messages for NCCL, which is not there."""
        with suppress(ValueError):
            super().all_reduce(tensor)

    def all_gather(self, tensor: Tensor) -> Tensor:
        return tensor.new_zeros(self.world_size, *tensor.shape)

    def all_to_all(self, tensor: Tensor) -> Tensor:
        return torch.zeros_like(tensor)
