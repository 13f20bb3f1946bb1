"""Rows of each rank's experts in Triton's interpreter: run with TRITON_INTERPRET=1."""

import pytest
import torch
from torch import Tensor

from text_generation_kernels import expert_load
from text_generation_kernels.moe.expert_load import expert_load_torch, expert_load_triton

STARTS = torch.tensor([0, 2, 5, 8], dtype=torch.int32)
"""Three ranks have two, three and three experts; experts 8 and 9 are no rank's, as they change nothing."""
DUMMY_SLOT = 77


def _counted(ids: Tensor, slots: Tensor) -> list[int]:
    """By hand."""
    counts = [0, 0, 0]
    for row, slot in zip(ids.tolist(), slots.tolist(), strict=True):
        for expert in row:
            if slot != DUMMY_SLOT and expert < STARTS[-1]:
                counts[sum(expert >= start for start in STARTS[1:].tolist())] += 1
    return counts


@pytest.mark.parametrize("tokens", [1, 7, 1100])
def test_rows_of_each_rank_are_counted_without_padding(tokens: int) -> None:
    torch.manual_seed(tokens)
    ids = torch.randint(0, 10, (tokens, 3), dtype=torch.int32)
    slots = torch.randint(0, 60, (tokens,))
    slots[1::3] = DUMMY_SLOT
    expected = _counted(ids, slots)
    assert tokens == 1 or all(expected)
    for count in (expert_load_torch, expert_load_triton):
        # A row of a table of layers, which need not be aligned, and which the step before has written.
        table = torch.full((3, 3), -9, dtype=torch.int32)
        count(ids, slots, DUMMY_SLOT, STARTS, table[1])
        assert table.tolist() == [[-9] * 3, expected, [-9] * 3]


def test_a_step_of_padding_alone_has_none() -> None:
    ids, slots = torch.zeros(4, 2, dtype=torch.int32), torch.full((4,), DUMMY_SLOT)
    for count in (expert_load_torch, expert_load_triton):
        pairs = torch.full((3,), -9, dtype=torch.int32)
        count(ids, slots, DUMMY_SLOT, STARTS, pairs)
        assert pairs.tolist() == [0, 0, 0]


def test_what_does_not_fit_is_refused() -> None:
    ids, pairs = torch.zeros(4, 2, dtype=torch.int32), torch.zeros(3, dtype=torch.int32)
    with pytest.raises(ValueError, match="expert_load: shapes"):
        expert_load(ids, torch.zeros(3, dtype=torch.int64), DUMMY_SLOT, STARTS, pairs)
    with pytest.raises(ValueError, match="expert_load: shapes"):
        expert_load(ids, torch.zeros(4, dtype=torch.int64), DUMMY_SLOT, STARTS[1:], pairs)
    with pytest.raises(ValueError, match="contiguous"):
        expert_load_triton(ids, torch.zeros(8, dtype=torch.int64)[::2], DUMMY_SLOT, STARTS, pairs)
