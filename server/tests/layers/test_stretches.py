"""Which slots tokens attend to within stretches of positions."""

import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from text_generation_kernels import Chunks, Decodes
from text_generation_server.layers.infer.state import InferState
from text_generation_server.layers.infer.stretches import within_stretches

SIZE, POSITIONS, ROWS = 4, 23, 5
TABLE = torch.randperm(1000)[: ROWS * POSITIONS].view(ROWS, POSITIONS).to(torch.int32)


def state_of(tokens: int, decodes: Decodes | None = None, chunks: Chunks | None = None) -> InferState:
    """What `within_stretches` reads of a step."""
    made: dict[Any, Any] = {}

    def once(key: object, make: Callable[[], Any]) -> Any:
        return made.setdefault(key, make())

    fields = {"positions": torch.zeros(tokens), "decodes": decodes, "chunks": chunks, "once": once}
    return cast("InferState", SimpleNamespace(**fields))


def wanted(row: int, position: int) -> list[int]:
    return TABLE[row, position // SIZE * SIZE : position + 1].tolist()


@pytest.mark.parametrize("width", [1, 4])
def test_decodes(width: int) -> None:
    """Every length, padding, and tokens of a window on both sides of an end."""
    lengths = torch.tensor([[first + n for n in range(width)] for first in range(1, POSITIONS - 3)] + [[0] * width])
    rows = (torch.arange(len(lengths)) % ROWS).repeat_interleave(width)
    decodes = Decodes(TABLE, rows, lengths.flatten().to(torch.int32), POSITIONS, width)
    found, _ = within_stretches(state_of(len(rows), decodes), SIZE)
    assert found is not None
    assert (found.width, found.max_kv_len) == (1, SIZE)
    for row, of_table, length, own in zip(rows, found.rows, decodes.kv_lens.tolist(), found.kv_lens, strict=True):
        attended = found.slot_table[of_table, :own].tolist()
        assert attended == (wanted(int(row), length - 1) if length else [])


def test_chunks() -> None:
    """By chance: short and long ones, empty ones and padding."""
    chance = random.Random(0)
    for _ in range(50):
        counts = [chance.choice([0, 1, 2, 3, 9, 14]) for _ in range(4)]
        firsts = [chance.randrange(POSITIONS - count) if count else 0 for count in counts]
        rows = [chance.randrange(ROWS) for _ in counts]
        starts = [3, *(3 + sum(counts[: i + 1]) for i in range(4))]
        lengths = torch.tensor([first + count for first, count in zip(firsts, counts, strict=True)], dtype=torch.int32)
        begins = torch.tensor(starts, dtype=torch.int32)
        chunks = Chunks(TABLE, torch.tensor(rows), begins, lengths, max(counts))
        _, found = within_stretches(state_of(starts[-1], chunks=chunks), SIZE)
        assert found is not None
        assert (found.starts[0], found.starts[-1]) == (3, starts[-1])
        attended = []
        for part, (row, length) in enumerate(zip(found.rows.tolist(), found.kv_lens.tolist(), strict=True)):
            tokens = int(found.starts[part + 1] - found.starts[part])
            for n in range(tokens):
                attended.append(found.slot_table[row, : length - tokens + 1 + n].tolist())
        positions = [(row, first + n) for row, first, c in zip(rows, firsts, counts, strict=True) for n in range(c)]
        assert attended == [wanted(*each) for each in positions]


def test_requests_of_one_stretch_are_as_they_are() -> None:
    decodes = Decodes(TABLE, torch.tensor([2]), torch.tensor([7], dtype=torch.int32), POSITIONS)
    assert within_stretches(state_of(1, decodes), POSITIONS) == (decodes, None)
