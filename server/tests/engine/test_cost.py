"""What steps cost: the formula that is fitted, and the steps that are timed for it."""

from functools import partial
from itertools import count

import pytest
import torch
from support.engine_driver import SERVING, directly, make_engine, stream
from support.fake_model import SingleGroup
from support.router import Router

from text_generation_server.engine import warmup
from text_generation_server.engine.cost import Sample, Shape, fit, measure, shapes, window_costs, window_shapes
from text_generation_server.engine.options import EngineOptions
from text_generation_server.engine.requests import ServingLimits, StepCost, WindowCost

LARGE = ServingLimits(840_000, 131_071, 131_072, 256)


def ideal(shape: Shape) -> Sample:
    """Half a millisecond, 2 us a token, 10 ps a pair, 100 ps for each position of context."""
    return Sample(shape, 0.5 + 0.002 * shape.tokens + 1e-8 * shape.pairs + 1e-7 * shape.attended)


def test_an_exact_formula_is_found_again() -> None:
    cost = fit([ideal(shape) for shape in shapes(LARGE, 8192)], 8192 + 256)
    assert cost.pair_ns == pytest.approx(0.01)
    assert cost.context_ns == pytest.approx(0.1)
    assert cost.tokens[0] == 1
    assert cost.tokens[-1] == 8448
    assert list(cost.times_ms) == pytest.approx([0.5 + 0.002 * tokens for tokens in cost.tokens])


def test_times_never_fall_and_prices_are_never_negative() -> None:
    samples = [
        Sample(Shape(decodes=8), 2.0),
        Sample(Shape(decodes=8, context=500), 1.5),
        Sample(Shape(chunk=16), 1.0),
        Sample(Shape(chunk=64), 3.0),
        Sample(Shape(chunk=64, prefix=640), 2.0),
    ]
    cost = fit(samples, 64)
    assert (cost.pair_ns, cost.context_ns) == (0.0, 0.0)
    assert (list(cost.tokens), list(cost.times_ms)) == ([8, 16, 64], [2.0, 2.0, 3.0])


def test_what_was_not_measured_follows_from_what_was() -> None:
    cost = fit([Sample(Shape(chunk=16), 1.0), Sample(Shape(chunk=32), 2.0)], 64)
    assert (list(cost.tokens), list(cost.times_ms)) == ([16, 32, 64], pytest.approx([1.0, 2.0, 4.0]))
    assert list(fit([Sample(Shape(decodes=1), 2.0)], 3).times_ms) == pytest.approx([2.0, 6.0])
    flat = [Sample(Shape(decodes=1), 1.0), Sample(Shape(chunk=16), 4.0), Sample(Shape(chunk=31), 3.5)]
    assert list(fit(flat, 93).times_ms) == pytest.approx([1.0, 4.0, 4.0, 12.0])
    assert fit([], 64) == StepCost()


@pytest.mark.parametrize(
    ("limits", "max_prefill"),
    [(LARGE, 8192), (SERVING, 256), (ServingLimits(4, 1, 2, 1), 1), (ServingLimits(2, 1, 2, 64), 4096)],
    ids=str,
)
def test_timed_steps_are_within_the_limits(limits: ServingLimits, max_prefill: int) -> None:
    found = shapes(limits, max_prefill)
    assert found
    for shape in found:
        assert shape.decodes <= limits.max_batch_size
        assert shape.chunk <= max_prefill
        assert shape.prefix + shape.chunk <= limits.max_input_tokens
        assert shape.context <= limits.max_total_tokens
        assert shape.decodes * shape.context + shape.prefix + shape.chunk <= limits.max_batch_total_tokens


@torch.inference_mode()
def test_timing_leaves_no_request_behind() -> None:
    engine = make_engine()
    runner = engine._runner
    assert runner is not None
    wanted = [Shape(decodes=8, context=40), Shape(chunk=40, prefix=20)]
    samples = measure(runner, SingleGroup(), wanted, repetitions=2, budget_s=60.0)  # type: ignore[arg-type]
    assert [sample.shape for sample in samples] == wanted
    assert all(sample.ms > 0 for sample in samples)
    assert runner.checker.rows.owners == {}
    again = stream(1, [1, 2, 3])
    Router(directly(engine), SERVING).run(again)
    assert again.failure is None
    assert len(again.tokens) == 8


@torch.inference_mode()
def test_no_more_steps_are_timed_once_the_budget_is_spent() -> None:
    engine = make_engine()
    runner = engine._runner
    assert runner is not None
    seconds = count()
    samples = measure(
        runner,
        SingleGroup(),  # type: ignore[arg-type]
        [Shape(decodes=n) for n in range(1, 9)],
        repetitions=1,
        budget_s=4.5,
        clock=lambda: float(next(seconds)),
    )
    assert [sample.shape.decodes for sample in samples] == [1, 2, 3, 4, 5]


@torch.inference_mode()
def test_a_slow_machine_times_one_decode_and_two_chunks() -> None:
    engine = make_engine()
    runner = engine._runner
    assert runner is not None
    wanted = shapes(SERVING, 256)
    samples = measure(runner, SingleGroup(), wanted, repetitions=5, budget_s=-1.0)  # type: ignore[arg-type]
    assert [sample.shape for sample in samples] == [Shape(decodes=1), Shape(chunk=16), Shape(chunk=63)]


@pytest.mark.parametrize("limits", [LARGE, SERVING, ServingLimits(12, 3, 4, 8), ServingLimits(4, 1, 2, 1)], ids=str)
def test_timed_windows_are_within_the_limits(limits: ServingLimits) -> None:
    found = window_shapes(limits, (2, 4))
    assert {shape.width for shape in found} == {width for width in (1, 2, 4) if width + 2 <= limits.max_total_tokens}
    for shape in found:
        assert 1 <= shape.decodes <= limits.max_batch_size
        assert shape.tokens <= 512
        assert shape.decodes * (shape.context + shape.width - 1) <= limits.max_batch_total_tokens


def test_windows_cost_what_their_steps_take() -> None:
    samples = [Sample(Shape(decodes=rows, width=width), 2.0 * width + rows) for width in (1, 2) for rows in (1, 8)]
    samples.append(Sample(Shape(decodes=8, context=1002, width=2), 14.0))
    expected = [WindowCost(1, [1, 8], [3.0, 10.0], 0.0), WindowCost(2, [1, 8], [5.0, 12.0], pytest.approx(250.0))]
    assert window_costs(samples) == expected


@torch.inference_mode()
@pytest.mark.parametrize(("speculate", "widths"), [(0, []), (3, [1, 2, 4])])
def test_warm_up_times_windows_where_there_are_some(
    speculate: int, widths: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = make_engine(options=EngineOptions(speculate=speculate))._runner
    assert runner is not None
    monkeypatch.setattr(warmup, "measure", partial(measure, clock=lambda: 0.0))
    cost = warmup.measured_cost(runner, SingleGroup(), torch.device("cpu"))  # type: ignore[arg-type]
    assert [each.width for each in cost.windows] == widths
    assert all(ms > 0 for each in cost.windows for ms in each.times_ms)
    assert runner.checker.rows.owners == {}
