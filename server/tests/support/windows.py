"""Requests whose decodes compute windows of several tokens, run to their ends in lockstep."""

import random
from collections.abc import Callable, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np

from support.engine_driver import copy_adapters
from text_generation_server.engine.engine import Engine
from text_generation_server.engine.requests import (
    Chunk,
    Hint,
    NextTokenChooserParameters,
    Request,
    SlotRange,
    StepPlan,
    StepReply,
)

NEW_TOKENS = 12
PROMPTS = [[5, 6, 7, 5, 6], [1, 2, 3], [9, 8, 7, 6, 9, 8, 7, 6], [60] * 7]
SETTINGS: list[dict[str, Any]] = [
    {},
    {"do_sample": True, "seed": 7, "temperature": 0.7},
    {"do_sample": True, "seed": 11, "temperature": 1.5, "top_p": 0.9, "top_k": 20},
    {"repetition_penalty": 1.3, "frequency_penalty": 0.7, "presence_penalty": 0.4},
    {"do_sample": True, "seed": 3, "watermark": True, "frequency_penalty": 0.5},
    {"min_new_tokens": 5, "logit_bias": ((3, 2.0),)},
]
"""Of a request each."""


def request(
    row: int, prompt: Sequence[int], max_new_tokens: int = NEW_TOKENS, room: int = 24, **settings: Any
) -> Request:
    """The slots of each row begin `room` after those of the one before."""
    return Request(
        id=row,
        row=row,
        input_ids=np.array(prompt, dtype=np.int64),
        parameters=NextTokenChooserParameters(**settings),
        slots=(SlotRange(room * row, len(prompt) + max_new_tokens - 1),),
        top_n_tokens=2,
        max_new_tokens=max_new_tokens,
    )


class Reader:
    """What came back of each row."""

    def __init__(self) -> None:
        self.ids: dict[int, list[int]] = {}
        self.logprobs: dict[int, list[float]] = {}
        self.tops: dict[int, list[list[int]]] = {}
        self.steps = 0
        self.hinted = 0
        """How often a row had drafts of a hint."""
        self.compilations = 0
        """Of kernels, since warm-up."""

    def read(self, reply: StepReply) -> None:
        self.steps += 1
        self.hinted += len(reply.hinted)
        self.compilations = reply.timings.kernel_compilations
        place = 0
        tops = {top.index: list(top.ids) for top in reply.top_tokens}
        for row, count in zip(reply.rows, reply.counts or [1] * len(reply.rows), strict=True):
            end = place + count
            self.ids.setdefault(row, []).extend(reply.ids[place:end])
            # The first rank alone has them.
            self.logprobs.setdefault(row, []).extend(reply.logprobs[place:end])
            self.tops.setdefault(row, []).extend(tops.get(i, []) for i in range(place, end))
            place = end
        assert place == len(reply.ids)


Hinter = Callable[[int, Sequence[int]], list[Hint]]
"""Gives hints of a row, whose tokens so far are those of the second argument, for the next plan."""


def hinting(expected: Reader, requests: Sequence[Request], spoilt: int) -> Hinter:
    """Hints of which every `spoilt`-th token is wrong."""

    def hints(row: int, ids: Sequence[int]) -> list[Hint]:
        at = len(requests[row].input_ids) + len(ids)
        later = np.array(expected.ids[row][len(ids) :], dtype=np.int64)
        wrong = np.arange(at, at + len(later)) % spoilt == spoilt - 1
        return [Hint(row, at, np.where(wrong, (later + 1) % 64, later))]

    return hints


def run(
    engine: Engine,
    requests: Sequence[Request],
    width: int | Sequence[int],
    adapters: Sequence[Path] = (),
    hinter: Hinter = lambda row, ids: [],
) -> Reader:
    """Runs requests to their ends, with windows of `width` tokens, or of these in turn."""
    in_turn = cycle([width] if isinstance(width, int) else width)
    copy_adapters(engine, adapters)
    chunks = [Chunk(each.row, 0, len(each.input_ids)) for each in requests]
    found = Reader()
    hints = [hint for each in requests for hint in hinter(each.row, [])]
    found.read(engine.step(StepPlan(0, admit=requests, chunks=chunks, hints=hints)).result())
    number = 0
    while rows := [each.row for each in requests if len(found.ids[each.row]) < each.max_new_tokens]:
        number += 1
        widths = [most] * len(rows) if (most := next(in_turn)) > 1 else []
        hints = [hint for row in rows for hint in hinter(row, found.ids[row])]
        found.read(engine.step(StepPlan(number, decode=rows, widths=widths, hints=hints)).result())
    return found


def run_arriving(
    engine: Engine,
    requests: Sequence[Request],
    width: int,
    chunk: int,
    adapters: Sequence[Path] = (),
    hinter: Hinter = lambda row, ids: [],
    seed: int = 0,
    together: int = 1,
) -> Reader:
    """Runs requests to their ends that come one after the other, or so many `together`, with prompts in chunks of at
    most `chunk` tokens, beside which the others decode in windows of up to `width` tokens, some narrower by chance.
    """
    copy_adapters(engine, adapters)
    found, chance, number = Reader(), random.Random(seed), 0
    waiting, computed = list(requests), dict[int, int]()
    lengths = {each.row: len(each.input_ids) for each in requests}
    left = {each.row: each.max_new_tokens for each in requests}
    while waiting or any(len(found.ids.get(row, [])) < left[row] for row in computed):
        rows = [row for row in computed if computed[row] == lengths[row] and len(found.ids[row]) < left[row]]
        admit = waiting[:together] if number % 3 == 0 or not rows else []
        del waiting[: len(admit)]
        computed |= {each.row: 0 for each in admit}
        counts = {row: min(chunk, lengths[row] - first) for row, first in computed.items() if first < lengths[row]}
        chunks = [Chunk(row, computed[row], count) for row, count in counts.items()]
        for row, count in counts.items():
            computed[row] += count
        widths = [chance.randint(1, width) for _ in rows]
        if widths:
            widths[chance.randrange(len(widths))] = width
        hints = [hint for row in rows for hint in hinter(row, found.ids[row])]
        plan = StepPlan(number, admit=admit, chunks=chunks, decode=rows, widths=widths, hints=hints)
        found.read(engine.step(plan).result())
        number += 1
    return found
