"""Overlapped all-reduces: where the inputs lie, and the self-check before they are used."""

from functools import partial

import pytest
import torch
from torch import Tensor

from text_generation_server.distributed.peer_copies import PLACES, Inboxes
from text_generation_server.distributed.pending import PendingAllReduce, count_wrong, known_input

CPU = torch.device("cpu")


class Mapped:
    """Memory of all ranks, in this process."""

    def __init__(self, world_size: int, nbytes: int) -> None:
        self._memory = torch.zeros(world_size, nbytes, dtype=torch.uint8)

    def get_buffer(self, rank: int, sizes: tuple[int, ...], dtype: torch.dtype, storage_offset: int) -> Tensor:
        return self._memory[rank].view(dtype)[storage_offset:][: torch.Size(sizes).numel()].view(sizes)


@pytest.mark.parametrize("world_size", [2, 4, 8])
def test_every_rank_finds_the_inputs_of_all_others_in_their_order(world_size: int) -> None:
    shape, message_bytes = (3, 16), 128
    mapped = Mapped(world_size, Inboxes.nbytes(world_size, message_bytes))
    ranks = [Inboxes(mapped, rank, world_size, message_bytes) for rank in range(world_size)]
    x = torch.empty(shape, dtype=torch.bfloat16)
    for place in range(PLACES):
        for rank, inboxes in enumerate(ranks):
            for peer in set(range(world_size)) - {rank}:
                inboxes.of_peer(peer, place, x).fill_(10 * place + rank)
                inboxes.flag(peer, place).add_(1)
    for place in range(PLACES):
        for rank, inboxes in enumerate(ranks):
            found = [int(value) for part in inboxes.own(place, x) for value in part.unique()]
            assert found == [10 * place + peer for peer in range(world_size) if peer != rank]
            assert inboxes.flag(rank, place).tolist() == [world_size - 1]


@pytest.mark.parametrize(("rank", "world_size"), [(0, 2), (1, 2), (3, 8)])
def test_right_all_reduces_pass_the_self_check(rank: int, world_size: int) -> None:
    places: list[int] = []
    others = sum(map(partial(known_input, world_size=world_size, device=CPU), set(range(world_size)) - {rank}))

    def begin(x: Tensor, place: int) -> PendingAllReduce:
        places.append(place)
        return PendingAllReduce(x + others, None)

    assert count_wrong(begin, rank, world_size, PLACES, CPU) == 0
    assert places == [0, 1, 2, 3, 0, 1, 2, 3]


def test_what_did_not_come_is_counted() -> None:
    def begin(x: Tensor, _place: int) -> PendingAllReduce:
        return PendingAllReduce(x, None)

    assert count_wrong(begin, 0, 2, PLACES, CPU) > 0
