"""Cost model of steps: measured steps, and the formula that is fitted to them.

    time(tokens) + pair_ns * pairs + context_ns * context

`StepCost` explains the terms. Fitting is pure; measuring runs steps of made-up requests.
"""

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, combinations

import numpy as np

from ..distributed.group import TensorParallelGroup
from .requests import (
    Chunk,
    NextTokenChooserParameters,
    Request,
    ServingLimits,
    SlotRange,
    StepCost,
    StepPlan,
    WindowCost,
)
from .runner import StepRunner
from .widths import MAX_WINDOW_TOKENS

_DECODES = (1, 8, 32, 64, 128, 256, 512)
_CHUNKS = (16, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
_WINDOWS = (1, 8, 64, 256)
_SEVERAL = 64
"""At most so many decodes share a long context."""
_ALWAYS = 3
"""Steps that are timed however long they take: one decode and two chunks, which give a straight line."""
_LONG_CONTEXT = 16_384
"""Positions before a chunk, and of all decodes together, with which the cost of context is measured."""


@dataclass(frozen=True)
class Shape:
    """A step to time: `decodes` requests of `context` tokens each, and a chunk after `prefix` computed positions."""

    decodes: int = 0
    context: int = 2
    chunk: int = 0
    prefix: int = 0
    width: int = 1
    """Tokens of the window of each decode."""

    @property
    def tokens(self) -> int:
        """The tokens of decodes and chunk together."""
        return self.decodes * self.width + self.chunk

    @property
    def pairs(self) -> int:
        """The pairs of a token of the chunk and a position that it attends to."""
        return self.chunk * self.prefix + self.chunk * (self.chunk + 1) // 2

    @property
    def attended(self) -> int:
        """The positions that the decodes attend to."""
        return self.decodes * self.context


@dataclass(frozen=True)
class Sample:
    """A shape and its measured time."""

    shape: Shape
    ms: float


def shapes(limits: ServingLimits, max_batch_prefill_tokens: int) -> list[Shape]:
    """Returns a dozen steps within the limits: the `_ALWAYS` that tell most, then cheap ones before dear ones."""
    pool = limits.max_batch_total_tokens
    longest = min(pool, limits.max_total_tokens) - 1
    largest = min(max_batch_prefill_tokens, limits.max_input_tokens, longest)
    decodes = [Shape(decodes=n) for n in _up_to(_DECODES, min(limits.max_batch_size, pool // 2))]
    chunks = [Shape(chunk=n) for n in _up_to(_CHUNKS, largest)]
    more = decodes[1:] + chunks[2:]
    middle = min(largest, 512)
    if (prefix := min(_LONG_CONTEXT, limits.max_input_tokens - middle, longest - middle)) > middle:
        more.append(Shape(chunk=middle, prefix=prefix))
    several = max(shape.decodes for shape in decodes if shape.decodes <= _SEVERAL)
    if (context := min(_LONG_CONTEXT // several, longest, pool // several)) > 2:
        more.append(Shape(decodes=several, context=context))
    return decodes[:1] + chunks[:2] + sorted(more, key=lambda shape: (shape.tokens, shape.pairs + shape.attended))


def window_shapes(limits: ServingLimits, widths: Sequence[int]) -> list[Shape]:
    """Returns steps of few and of many windows of each width, and of single tokens, and one over a long context. None
    where slots are too few.
    """
    found: list[Shape] = []
    pool = limits.max_batch_total_tokens
    for width in (1, *widths):
        least = 1 + width
        rows = min(limits.max_batch_size, pool // (least + 1), MAX_WINDOW_TOKENS // width)
        if least >= limits.max_total_tokens:
            continue
        found += [Shape(decodes=n, width=width) for n in _up_to(_WINDOWS, rows)]
        several = min(rows, _SEVERAL)
        longest = min(limits.max_total_tokens, pool // several) - width
        if (context := min(_LONG_CONTEXT // several, longest)) > Shape.context:
            found.append(Shape(decodes=several, context=context, width=width))
    return found


def window_costs(samples: Sequence[Sample]) -> list[WindowCost]:
    """Returns the times of each width."""
    found: list[WindowCost] = []
    for width in sorted({each.shape.width for each in samples}):
        own = [each for each in samples if each.shape.width == width]
        short = [each for each in own if each.shape.context == Shape.context]
        context_ns = _slope(own, lambda s: s.attended, lambda s: (s.decodes, 0, 0))
        rows, times = [each.shape.decodes for each in short], [each.ms for each in short]
        found.append(WindowCost(width, rows, times, context_ns))
    return found


def _up_to(sizes: Iterable[int], largest: int) -> list[int]:
    return [size for size in sizes if size < largest] + [largest]


def measure(
    runner: StepRunner,
    group: TensorParallelGroup,
    wanted: Sequence[Shape],
    repetitions: int,
    budget_s: float,
    clock: Callable[[], float] = time.monotonic,
) -> list[Sample]:
    """Times each shape: the median of some repetitions, on the slowest rank. Once the budget is spent, each shape is
    timed once, and `_ALWAYS` shapes are enough. Ranks agree on when that is. No request may be running, and none is
    afterwards.
    """
    samples: list[Sample] = []
    started, in_time = clock(), True
    for shape in wanted:
        # The first run fills caches.
        _time(runner, shape)
        median = statistics.median_low(_time(runner, shape) for _ in range(repetitions if in_time else 1))
        ns, spent_ms = group.max_ints([median, int(1e3 * (clock() - started))])
        samples.append(Sample(shape, ns / 1e6))
        in_time = spent_ms <= 1e3 * budget_s
        if not in_time and len(samples) >= _ALWAYS:
            break
    return samples


def fit(samples: Sequence[Sample], max_tokens: int) -> StepCost:
    """Fits the formula to the samples, for steps of up to `max_tokens`.

    The costs of pairs and context come from steps with equally many tokens, so that the time of the tokens cancels.
    """
    if not samples:
        return StepCost()
    # Steps that differ in context alone, and steps that differ in pairs alone.
    context_ns = _slope(samples, lambda s: s.attended, lambda s: (s.decodes, s.chunk, s.prefix))
    pair_ns = _slope(samples, lambda s: s.pairs, lambda s: (s.decodes, s.chunk, s.context))
    times: dict[int, float] = defaultdict(float)
    for sample in samples:
        shape = sample.shape
        rest = sample.ms - (pair_ns * shape.pairs + context_ns * shape.attended) / 1e6
        times[shape.tokens] = max(times[shape.tokens], rest)
    tokens = sorted(times)
    rising = list(accumulate((times[n] for n in tokens), max))
    if tokens[-1] < max_tokens:
        # Far beyond the samples, time grows in proportion: on a busy machine, the slope of small steps says little.
        steepness = rising[-1] / tokens[-1]
        if len(tokens) > 1 and max_tokens <= 2 * tokens[-1]:
            steepness = (rising[-1] - rising[-2]) / (tokens[-1] - tokens[-2])
        rising.append(rising[-1] + steepness * (max_tokens - tokens[-1]))
        tokens.append(max_tokens)
    return StepCost(tokens, rising, pair_ns, context_ns)


def _slope(
    samples: Sequence[Sample], amount: Callable[[Shape], int], others: Callable[[Shape], tuple[int, ...]]
) -> float:
    """Returns the nanoseconds of one more `amount` among samples with equal `others`: the median slope, at least 0."""
    groups: dict[tuple[int, ...], list[Sample]] = defaultdict(list)
    for sample in samples:
        groups[others(sample.shape)].append(sample)
    slopes = [
        1e6 * (b.ms - a.ms) / (amount(b.shape) - amount(a.shape))
        for members in groups.values()
        for a, b in combinations(members, 2)
        if amount(a.shape) != amount(b.shape)
    ]
    return max(0.0, statistics.median(slopes)) if slopes else 0.0


def _time(runner: StepRunner, shape: Shape) -> int:
    """Runs one step of this shape, drops its requests, and returns its nanoseconds on the device."""
    rows = range(shape.decodes)
    vocab = runner.vocab_size
    context = shape.context
    # A window reaches as many positions further.
    slots = context + shape.width - 1
    admit = [_request(row, context - 1, row * slots, context - 2, slots, vocab) for row in rows]
    start = shape.decodes * slots
    number = 1
    at_once = min(16, runner.checker.max_batch_prefill_tokens)
    for first in range(0, shape.decodes, at_once):
        # Each request computes the last token of its prompt, after which it decodes.
        part = admit[first : first + at_once]
        chunks = [Chunk(request.row, shape.context - 2, 1) for request in part]
        runner.launch(StepPlan(number, admit=part, chunks=chunks))
    if shape.chunk:
        row = shape.decodes
        length = shape.prefix + shape.chunk
        request = _request(row, length, start, shape.prefix, length, vocab)
        plan = StepPlan(number, admit=[request], chunks=[Chunk(row, shape.prefix, shape.chunk)], decode=list(rows))
    else:
        row = shape.decodes - 1
        widths = [shape.width] * shape.decodes if shape.width > 1 else ()
        plan = StepPlan(number, decode=list(rows), widths=widths)
    timings = runner.launch(plan).result().timings
    runner.launch(StepPlan(number, drop=list(range(row + 1))))
    return timings.forward_ns


def _request(row: int, length: int, first_slot: int, cached: int, slots: int, vocab_size: int) -> Request:
    """Makes a greedy request of which `cached` positions count as computed. Its ids differ, because GEMMs of equal rows
    take less power and so less time, some 12 % on an H200.
    """
    ids = np.arange(length, dtype=np.int64) * 7919 % vocab_size
    return Request(row, row, ids, NextTokenChooserParameters(), (SlotRange(first_slot, slots),), cached_length=cached)
