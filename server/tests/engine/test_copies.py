"""Decision whether shards keep 16-bit copies of weight-only quantised matrices."""

import pytest
import torch
from support.engine_driver import make_engine
from support.fake_model import FakeModel
from support.memory import GIB, MIB, ReadHost, ReadMemory
from support.thread_ranks import thread_groups, together

from text_generation_server.config.copies import DequantisedCopies
from text_generation_server.distributed import TensorParallelGroup
from text_generation_server.engine import probe
from text_generation_server.engine.kv_pool import bytes_per_slot
from text_generation_server.engine.memory import Memory
from text_generation_server.engine.options import EngineOptions
from text_generation_server.engine.requests import WarmupLimits
from text_generation_server.errors import OutOfMemory
from text_generation_server.layers.weights import PrefillCopies

SLOT = bytes_per_slot(FakeModel())  # type: ignore[arg-type]
POSITION = 5 * 4 + FakeModel.bytes_per_position
"""Bytes of one position: slots of four rows and of the padding, and what the model keeps."""
ROOM = 24 * GIB - GIB - 8 * GIB - GIB - int(24 * GIB * 0.01)
"""What `ReadMemory` leaves for the pool where its size is asked for."""


class ReadCopies(PrefillCopies):
    """So many bytes of them."""

    def __init__(self, nbytes: int) -> None:
        super().__init__(torch.float32)
        self._nbytes = nbytes
        self.are_made = False

    @property
    def nbytes(self) -> int:
        return self._nbytes

    def make(self) -> None:
        self.are_made = True


@pytest.fixture(autouse=True)
def small_pools(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pools are not made as large as they are asked for: they would fill a device that is not there."""
    make = probe.allocate_pool
    monkeypatch.setattr(probe, "allocate_pool", lambda model, slots, *more: make(model, min(slots, 4096), *more))


def start(
    copies: int,
    mode: DequantisedCopies = "auto",
    *,
    memory: Memory | None = None,
    group: TensorParallelGroup | None = None,
    deterministic: bool = False,
    **limits: int,
) -> tuple[bool, int]:
    """Whether copies of so many bytes were made, and the slots of the pool."""
    model = FakeModel(max_context_length=2**31 - 1)
    made = model.copies = ReadCopies(copies)
    engine = make_engine(
        model,
        limits=None,
        memory=memory or ReadMemory(),
        group=group,
        options=EngineOptions(deterministic=deterministic, dequantised_copies=mode),
    )
    asked = {"max_batch_prefill_tokens": 32, "max_batch_size": 4, "max_total_tokens": 1000, **limits}
    result = engine.warmup(WarmupLimits(**asked))
    return made.are_made, result.limits.max_batch_total_tokens


def test_they_are_kept_where_they_take_a_small_part_of_the_memory_and_the_pool_gets_the_rest() -> None:
    _, without = start(0)
    made, slots = start(2 * GIB)
    assert made
    assert (without - slots) * SLOT == pytest.approx(2 * GIB, abs=SLOT)
    assert start(ROOM // 5) == (True, pytest.approx(without - ROOM // 5 // SLOT, abs=1))
    assert start(ROOM // 5 + MIB) == (False, without)


def test_they_do_not_lower_limits_that_fit_without_them() -> None:
    _, without = start(0)
    assert start(2 * GIB, max_batch_total_tokens=without) == (False, without)
    longest = (ROOM - GIB) // (SLOT + POSITION)
    assert start(2 * GIB, max_total_tokens=longest)[0] is False
    assert start(GIB // 2, max_total_tokens=longest)[0] is True
    fitting = without - 2 * GIB // SLOT - 1
    assert start(2 * GIB, max_batch_total_tokens=fitting) == (True, fitting)


def test_a_group_that_starts_again_keeps_its_pool() -> None:
    """With copies where it had them: they left room for it."""
    _, slots = start(2 * GIB)
    later = ReadMemory(others=GIB + 100 * MIB, step=GIB + 100 * MIB)
    assert start(2 * GIB, memory=later, max_batch_total_tokens=slots, regained=True) == (True, slots)
    _, slots = start(4 * GIB)
    assert start(4 * GIB, memory=later, max_batch_total_tokens=slots, regained=True) == (False, slots)


def test_they_can_be_asked_for_and_forbidden() -> None:
    _, without = start(0)
    assert start(2 * GIB, "off") == (False, without)
    made, slots = start(8 * GIB, "on")
    assert made
    assert (without - slots) * SLOT == pytest.approx(8 * GIB, abs=SLOT)
    assert start(GIB, "on", memory=ReadHost(8 * GIB))[0]


def test_where_they_are_asked_for_and_do_not_fit_the_flag_is_named() -> None:
    with pytest.raises(OutOfMemory, match=r"--dequantised-copies on: .* their 16-bit copies 15\.0, the largest step"):
        start(15 * GIB, "on")


def test_none_where_all_tokens_are_computed_in_one_way_or_nothing_can_be_measured() -> None:
    assert not start(GIB, deterministic=True)[0]
    assert not start(MIB, memory=ReadHost(8 * GIB))[0]


@pytest.mark.parametrize(("weights", "copies", "made"), [(8, 2, True), (15, 2, False), (8, 4, False)])
def test_all_ranks_decide_alike(weights: int, copies: int, made: bool) -> None:
    """The second rank has less memory, or more to copy, than the first."""
    groups = thread_groups(2)
    calls = [
        lambda: start(2 * GIB, group=groups[0]),
        lambda: start(copies * GIB, memory=ReadMemory(weights=weights * GIB), group=groups[1]),
    ]
    first, second = together(calls)
    assert first == second
    assert first[0] == made
