"""Sums that run beside other kernels are checked with known numbers before they are used."""

import pytest
import torch
from torch import Tensor

from text_generation_server.distributed.under_way import SumUnderWay, wrong_sums

CPU = torch.device("cpu")


@pytest.mark.parametrize("rank", [0, 1])
def test_right_sums_are_right(rank: int) -> None:
    places: list[int] = []

    def begin(x: Tensor, place: int) -> SumUnderWay:
        places.append(place)
        cycle = (13, 17)[rank]
        other = (torch.arange(x.numel()).view_as(x) % cycle).to(x.dtype)
        return SumUnderWay(x + other, None)

    assert wrong_sums(begin, rank, 4, CPU) == 0
    assert places == [0, 1, 2, 3, 0, 1, 2, 3]


def test_what_did_not_come_is_counted() -> None:
    def begin(x: Tensor, _place: int) -> SumUnderWay:
        return SumUnderWay(x, None)

    assert wrong_sums(begin, 0, 4, CPU) > 0
