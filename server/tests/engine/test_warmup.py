"""Limits and pool size."""

import weakref
from collections.abc import Sequence

import pytest
import torch
from support.engine_driver import make_engine
from support.fake_model import FakeModel
from support.memory import GIB, MIB, ReadHost, ReadMemory
from support.thread_ranks import thread_groups, together

from text_generation_server.distributed import TensorParallelGroup
from text_generation_server.engine import probe, warmup
from text_generation_server.engine.cost import Sample, Shape
from text_generation_server.engine.graphs import GraphSizes
from text_generation_server.engine.kv_pool import bytes_per_slot
from text_generation_server.engine.mask_pool import MOST_MASKS, fitting_masks, mask_bytes
from text_generation_server.engine.requests import ServingLimits, WarmupLimits
from text_generation_server.engine.runner import StepRunner
from text_generation_server.engine.sampling_state import SamplingState
from text_generation_server.errors import EngineFailed, InvalidRequest, OutOfMemory
from text_generation_server.layers.infer import StateShape


def asked(**limits: int) -> WarmupLimits:
    return WarmupLimits(**{"max_batch_prefill_tokens": 32, "max_batch_size": 4, **limits})


def test_the_pool_is_no_larger_than_all_rows_at_full_length() -> None:
    limits = make_engine(limits=None).warmup(asked()).limits
    assert limits == ServingLimits(
        max_batch_total_tokens=4 * 64, max_input_tokens=32, max_total_tokens=64, max_batch_size=4
    )


def test_what_is_asked_for_is_what_holds() -> None:
    result = make_engine(limits=None).warmup(
        asked(max_input_tokens=10, max_total_tokens=20, max_batch_total_tokens=100)
    )
    assert result.limits == ServingLimits(100, 10, 20, 4)


def test_the_pool_takes_half_of_the_memory_left_to_a_rank() -> None:
    model = FakeModel(max_context_length=1000)
    per_slot = bytes_per_slot(model)  # type: ignore[arg-type]
    assert per_slot == 2 * 1 * 1 * 2 * 4
    rows = 5 * SamplingState.bytes_per_row(model.vocab_size)
    masks = MOST_MASKS * mask_bytes(model.vocab_size)
    # A request may be as long as the pool is large: slots of 4 rows and of the padding, cosines and sines in float32.
    per_position = 5 * 4 + 2 * 4
    room = rows + masks + 300 * (per_slot + per_position) + per_slot
    masks_room = masks * warmup.MASKS_FRACTION
    memory = ReadHost(2 * 2 * room)
    memory.total = lambda: masks_room  # type: ignore[method-assign]
    result = make_engine(model, limits=None, world_size=2, memory=memory).warmup(asked())
    assert result.limits.max_batch_total_tokens == result.limits.max_total_tokens == 300
    assert result.max_masks == MOST_MASKS


def test_masks_take_a_small_part_of_the_memory() -> None:
    assert mask_bytes(128_256) * MOST_MASKS == 128_256 // 8 * 2048
    assert fitting_masks(128_256, 1 << 30) == 2048
    assert fitting_masks(128_256, 1 << 20) == (1 << 20) // 16_032
    assert fitting_masks(128_256, 0) == 2


def test_tables_are_as_long_as_requests_may_be_not_as_the_model_could() -> None:
    model = FakeModel(max_context_length=2**31 - 1)
    engine = make_engine(model, limits=None)
    result = engine.warmup(asked(max_batch_total_tokens=400))
    assert result.limits == ServingLimits(400, 32, 400, 4)
    assert engine._runner is not None
    assert engine._runner.table.slot_table.shape == (5, 400)


def test_with_chunks_a_prompt_may_be_longer_than_a_step() -> None:
    limits = make_engine(limits=None).warmup(asked(prefill_chunking=True)).limits
    assert (limits.max_input_tokens, limits.max_total_tokens) == (63, 64)
    limits = make_engine(limits=None).warmup(asked(prefill_chunking=True, max_input_tokens=50)).limits
    assert limits.max_input_tokens == 50


def test_warm_up_says_what_steps_cost() -> None:
    result = make_engine(limits=None).warmup(asked())
    assert list(result.graph_tokens) == []
    cost = result.cost
    assert cost.tokens[0] == 1
    assert cost.tokens[-1] == 32 + 4
    assert list(cost.times_ms) == sorted(cost.times_ms)
    assert cost.times_ms[0] > 0


def test_shards_that_start_again_measure_nothing_and_keep_their_limits() -> None:
    result = make_engine(limits=None).warmup(asked(max_batch_total_tokens=400, regained=True))
    assert result.limits.max_batch_total_tokens == 400
    assert list(result.cost.tokens) == []


def test_the_smallest_rank_decides() -> None:
    assert warmup.derive_limits(asked(), max_positions=64, fitting_slots=50) == ServingLimits(50, 32, 50, 4)


@pytest.mark.parametrize(
    ("ranks", "halves_ms", "whole_ms", "kept"),
    [(2, 9.0, 10.0, True), (2, 10.05, 10.0, True), (2, 11.0, 10.0, False), (4, 9.0, 10.0, True), (4, 9.9, 10.0, False)],
)
def test_steps_in_halves_are_kept_unless_whole_ones_are_faster_or_with_many_ranks_as_fast(
    ranks: int, halves_ms: float, whole_ms: float, kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = TensorParallelGroup(0, ranks, torch.device("cpu"))
    runner = make_engine()._runner

    def timed(*_: object, **__: object) -> list[Sample]:
        return [Sample(Shape(chunk=63), halves_ms if group.overlapped_bytes == 1 << 20 else whole_ms)]

    monkeypatch.setattr(warmup, "measure", timed)
    group.overlapped_bytes = 1 << 20
    warmup.choose_overlap(runner, group, asked())  # type: ignore[arg-type]
    assert (group.overlapped_bytes == 1 << 20) == kept


@pytest.mark.parametrize("overlapped_halves", [True, False])
def test_shards_that_start_again_compute_large_steps_as_those_before(
    overlapped_halves: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def timed(*_: object, **__: object) -> list[Sample]:
        raise AssertionError("steps were timed")

    runner = make_engine()._runner
    monkeypatch.setattr(warmup, "measure", timed)
    group = TensorParallelGroup(0, 4, torch.device("cpu"))
    group.overlapped_bytes = 1 << 20
    regained = asked(max_batch_total_tokens=400, regained=True, overlapped_halves=overlapped_halves)
    warmup.choose_overlap(runner, group, regained)  # type: ignore[arg-type]
    assert (group.overlapped_bytes == 1 << 20) == overlapped_halves


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"max_batch_size": 0}, "--max-batch-size must be at least 1"),
        ({"max_batch_size": 40_000}, "--max-batch-size must be at least 1 and at most 32768"),
        ({"prefill_chunking": True, "max_input_tokens": 64}, "--max-input-tokens 64 must be below --max-total-tokens"),
        ({"max_batch_prefill_tokens": 0}, "--max-batch-prefill-tokens must be at least 1"),
        ({"max_total_tokens": 1}, "--max-total-tokens must be at least 2"),
        ({"max_total_tokens": 65}, "--max-total-tokens 65 is more than the 64 positions of the model"),
        ({"max_input_tokens": 33}, "--max-batch-prefill-tokens 32 must be at least --max-input-tokens 33"),
        ({"max_input_tokens": 20, "max_total_tokens": 20}, "--max-input-tokens 20 must be below --max-total-tokens 20"),
        (
            {"max_total_tokens": 40, "max_batch_total_tokens": 39},
            "--max-batch-total-tokens 39 must be at least --max-total-tokens 40",
        ),
    ],
)
def test_limits_that_contradict_each_other(limits: dict[str, int], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        make_engine(limits=None).warmup(asked(**limits))


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"max_batch_total_tokens": 51}, "--max-batch-total-tokens 51; lower it to at most 50"),
        ({"max_total_tokens": 60}, "--max-total-tokens 60; lower it to at most 50"),
    ],
)
def test_too_little_memory_names_the_flag_and_what_fits(limits: dict[str, int], message: str) -> None:
    with pytest.raises(OutOfMemory, match=message):
        warmup.derive_limits(asked(**limits), max_positions=64, fitting_slots=50)


def test_no_memory_at_all() -> None:
    with pytest.raises(OutOfMemory, match="holds 1 KV slots"):
        warmup.derive_limits(asked(), max_positions=64, fitting_slots=1)


SLOT = bytes_per_slot(FakeModel())  # type: ignore[arg-type]


def pool_of(memory: ReadMemory, states: Sequence[StateShape] = (), **limits: int) -> ServingLimits:
    model = FakeModel(max_context_length=2**31 - 1)
    model.states = states
    return make_engine(model, limits=None, memory=memory).warmup(asked(max_total_tokens=1000, **limits)).limits


@pytest.fixture
def small_pools(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sizes of the pools that were asked for, which are not made: they would fill a device that is not there."""
    sizes: list[int] = []
    make = probe.allocate_pool

    def made(model: FakeModel, slots: int, rows: int, *others: int) -> object:
        sizes.append(slots)
        return make(model, min(slots, 4096), rows, *others)  # type: ignore[arg-type]

    monkeypatch.setattr(probe, "allocate_pool", made)
    return sizes


@pytest.mark.usefixtures("small_pools")
@pytest.mark.parametrize(("total", "reserve"), [(50, 0.5), (100, 1), (140, 1)])
def test_the_pool_takes_what_weights_step_others_and_reserve_leave(total: int, reserve: float) -> None:
    """The reserve is a part in a hundred, and at most a GiB."""
    limits = pool_of(ReadMemory(total=total * GIB, others=2 * GIB, weights=(total - 32) * GIB, step=5 * GIB))
    room = int((32 - 2 - 5 - reserve) * GIB) - 256 * MIB
    assert room - 4 * MIB < limits.max_batch_total_tokens * SLOT <= room


@pytest.mark.usefixtures("small_pools")
def test_states_of_recurrent_layers_leave_less_for_the_pool() -> None:
    """For each of 4 rows, and for that of the padding: 3 inputs of 8 channels, and a state of 2 MiB."""
    kept = StateShape(4, 8, (32, 128, 128))
    memory = ReadMemory()
    without, beside = pool_of(memory), pool_of(memory, [kept])
    assert without.max_batch_total_tokens - beside.max_batch_total_tokens == 5 * (2 * MIB + 3 * 8 * 4) // SLOT


@pytest.mark.usefixtures("small_pools")
def test_states_that_leave_nothing_are_named_with_their_flag() -> None:
    message = r"states of 4 requests take 25\.0 GiB, and 15\.0 GiB are free: lower --max-batch-size to at most 1,"
    with pytest.raises(OutOfMemory, match=message):
        pool_of(ReadMemory(), [StateShape(2, 0, (5 * 2**28,))])


@pytest.mark.usefixtures("small_pools")
@pytest.mark.parametrize("kept", [False, True])
def test_the_pool_leaves_what_all_graphs_will_take(kept: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The largest ones bring memory that all share; what a further one takes depends on its kind. Those that are made
    to measure that are gone when anything else is; the driver may have kept their memory, which counts once.
    """
    memory, sizes = ReadMemory(), GraphSizes([1, 2, 4], [1, 2], [16, 32, 48])

    def capture(runner: StepRunner, captured: GraphSizes) -> None:
        each = 8 * len(captured.decodes) + 4 * len(captured.forwards) + 2 * len(captured.tokens)
        now = (300 + each) * MIB if captured.count else 0
        memory.graphs = max(now, memory.graphs) if kept else now
        if not kept:
            weakref.finalize(runner, setattr, memory, "graphs", 0)

    without = pool_of(ReadMemory())
    monkeypatch.setattr(probe.Probe, "graph_sizes", property(lambda _: sizes))
    monkeypatch.setattr(StepRunner, "capture", capture)
    taken = (300 + 3 * 8 + 2 * 4 + 3 * 2) * MIB
    assert without.max_batch_total_tokens - pool_of(memory).max_batch_total_tokens == taken // SLOT


@pytest.mark.usefixtures("small_pools")
def test_graphs_that_a_driver_takes_memory_for_at_a_time_are_measured_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces of 32 MiB have room for four graphs of 8 MiB: a second graph alone would bring 32 MiB, or nothing."""
    memory, sizes = ReadMemory(), GraphSizes(range(1, 31), range(1, 11), range(1, 31))

    def capture(_: StepRunner, captured: GraphSizes) -> None:
        memory.graphs = -(-captured.count * 8 // 32) * 32 * MIB

    without = pool_of(ReadMemory())
    monkeypatch.setattr(probe.Probe, "graph_sizes", property(lambda _: sizes))
    monkeypatch.setattr(StepRunner, "capture", capture)
    counted = (without.max_batch_total_tokens - pool_of(memory).max_batch_total_tokens) * SLOT
    assert 70 * 8 * MIB <= counted <= 1.5 * 70 * 8 * MIB


@pytest.mark.usefixtures("small_pools")
def test_garbage_is_collected_before_anything_is_measured() -> None:
    clean, littered = ReadMemory(), ReadMemory()
    littered.garbage = 6 * GIB
    assert pool_of(littered) == pool_of(clean)


@pytest.mark.usefixtures("small_pools")
def test_a_group_that_starts_again_can_keep_the_limits_that_clients_know() -> None:
    """What is free differs from start to start."""
    first = pool_of(ReadMemory(others=GIB))
    later = pool_of(
        ReadMemory(others=GIB + 100 * MIB, step=GIB + 100 * MIB), max_batch_total_tokens=first.max_batch_total_tokens
    )
    assert later == first


@pytest.mark.usefixtures("small_pools")
def test_the_rank_with_the_least_memory_decides_for_all() -> None:
    groups = thread_groups(2)
    sizes = (6 * GIB, 12 * GIB)

    def start(rank: int) -> ServingLimits:
        model = FakeModel(max_context_length=2**31 - 1)
        memory = ReadMemory(weights=sizes[rank])
        engine = make_engine(model, limits=None, memory=memory, group=groups[rank])
        return engine.warmup(asked(max_total_tokens=1000)).limits

    first, second = together([lambda rank=rank: start(rank) for rank in range(2)])
    assert first == second == pool_of(ReadMemory(weights=12 * GIB))


def test_too_little_memory_says_where_it_goes_and_how_much_is_missing() -> None:
    with pytest.raises(OutOfMemory) as caught:
        pool_of(ReadMemory(total=24 * GIB, weights=22 * GIB, step=2 * GIB))
    assert str(caught.value) == (
        "the memory left holds 0 KV slots, and a request needs at least 2; lower --max-batch-prefill-tokens or "
        "--max-batch-size, or use more shards (--num-shard). 1.5 GiB are missing: of the 24.0 GiB of cuda:7 "
        "--cuda-memory-fraction 1 allows 24.0; weights take 22.0, the largest step 2.0, CUDA graphs 0.0, other "
        "processes and libraries 1.0, and 0.2 stay in reserve"
    )


@pytest.mark.parametrize(("world_size", "kind"), [(1, OutOfMemory), (2, EngineFailed)])
def test_a_step_that_does_not_fit_is_told_with_numbers(world_size: int, kind: type[Exception]) -> None:
    model = FakeModel()
    model.error = torch.OutOfMemoryError("CUDA out of memory")
    message = (
        r"not enough memory for a batch of --max-batch-prefill-tokens 32 and --max-batch-size 4: cuda:7 has 24\.0 GiB, "
        r"of which weights take 8\.0 GiB and 15\.0 GiB are free; lower them, or use more shards \(--num-shard\)"
    )
    with pytest.raises(kind, match=message):
        make_engine(model, limits=None, world_size=world_size, memory=ReadMemory()).warmup(asked())
