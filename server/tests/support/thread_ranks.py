"""Ranks as threads of this process, for models whose import is slow: each new process would take seconds."""

import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from support.loading import CPU
from text_generation_server.distributed import TensorParallelGroup

T = TypeVar("T")


class _Meeting:
    """Where all ranks bring a tensor, and each gets all of them."""

    def __init__(self, world_size: int) -> None:
        self._barrier = threading.Barrier(world_size, timeout=60)
        self._brought: dict[int, Tensor] = {}

    def exchange(self, rank: int, tensor: Tensor) -> list[Tensor]:
        self._brought[rank] = tensor.clone()
        self._barrier.wait()
        everything = [self._brought[each] for each in sorted(self._brought)]
        self._barrier.wait()
        return everything


class ThreadGroup(TensorParallelGroup):
    """The collectives of a forward pass."""

    def __init__(self, rank: int, world_size: int, meeting: _Meeting) -> None:
        super().__init__(rank, world_size, CPU)
        self._meeting = meeting

    def all_reduce(self, tensor: Tensor) -> None:
        tensor.copy_(torch.stack(self._meeting.exchange(self.rank, tensor)).sum(0))

    def all_gather(self, tensor: Tensor) -> Tensor:
        assert tensor.is_contiguous()
        return torch.stack(self._meeting.exchange(self.rank, tensor))

    def all_to_all(self, tensor: Tensor) -> Tensor:
        assert tensor.is_contiguous()
        return torch.stack([each[self.rank] for each in self._meeting.exchange(self.rank, tensor)])

    def max_ints(self, values: Sequence[int]) -> list[int]:
        return torch.stack(self._meeting.exchange(self.rank, torch.tensor(values))).amax(0).tolist()


def thread_groups(world_size: int, expert_parallel: bool = False, context_parallel: bool = False) -> list[ThreadGroup]:
    """One for each rank."""
    meeting = _Meeting(world_size)
    groups = [ThreadGroup(rank, world_size, meeting) for rank in range(world_size)]
    for group in groups:
        group.expert_parallel = expert_parallel
        group.context_parallel = context_parallel
    return groups


def together(works: Sequence[Callable[[], T]]) -> list[T]:
    """Results of what runs side by side; raises what one of them raised."""
    results: dict[int, T] = {}
    errors: list[Exception] = []

    def run(index: int) -> None:
        try:
            results[index] = works[index]()
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(index,)) for index in range(len(works))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return [results[index] for index in range(len(works))]
