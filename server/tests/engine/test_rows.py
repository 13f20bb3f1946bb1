"""The table of slots."""

import torch

from text_generation_server.engine.requests import SlotRange
from text_generation_server.engine.rows import RowTable
from text_generation_server.engine.running import SlotWrite


def test_rows_of_any_length_have_a_stride_that_kernels_are_compiled_for() -> None:
    """A multiple of 16; what lies past the longest request is never written."""
    table = RowTable(2, 21, dummy_slot=99, device=torch.device("cpu"))
    table.grant([SlotWrite(1, 3, (SlotRange(50, 2), SlotRange(10, 40)))])
    assert table.slot_table.stride(0) % 16 == 0
    assert table.slot_table[1, :22].tolist() == [99] * 3 + [50, 51, *range(10, 26)] + [99]
    assert (table.slot_table[[0, 2]] == 99).all()


def test_many_ranges_of_slots_are_written_as_few_are() -> None:
    few, many = (RowTable(8, 32, dummy_slot=99, device=torch.device("cpu")) for _ in range(2))
    writes = [SlotWrite(row, row, (SlotRange(100 * row, 3), SlotRange(100 * row + 50, 40))) for row in range(8)]
    many.grant(writes)
    for write in writes:
        few.grant([write])
    assert many.slot_table.tolist() == few.slot_table.tolist()
    assert many.slot_table[2, :8].tolist() == [99, 99, 200, 201, 202, 250, 251, 252]
