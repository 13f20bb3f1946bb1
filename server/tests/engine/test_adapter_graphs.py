"""Graphs of steps with adapters, on a CPU: those that were captured before any adapter was there compute what steps
without graphs compute, with any number of adapters of any rank.
"""

from collections.abc import Sequence
from pathlib import Path

import pytest
from support.adapters import AdapterCase, write_adapter, write_base
from support.engine_driver import copy_adapters, directly, engine_with, stream
from support.loading import load
from support.replayed import capture, replays
from support.router import Router, Stream

from text_generation_server.engine.engine import Engine
from text_generation_server.engine.graphs import GraphSizes
from text_generation_server.engine.requests import ServingLimits, WarmupLimits

ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
RANKS = [4, 33, 8, 16, 2, 17]
LIMITS = WarmupLimits(
    max_batch_prefill_tokens=64, max_batch_size=12, max_batch_total_tokens=1024, prefill_chunking=True
)
SERVING = ServingLimits(1024, 63, 64, 12)
DECODES, FORWARDS, TOKENS = [1, 4, 12], [4, 12], [16, 64]
PAGES = sum(-(-rank // 16) for rank in RANKS) + 1


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The base, adapters of these ranks, and one with DoRA."""
    root = tmp_path_factory.mktemp("adapters")
    for number, rank in enumerate(RANKS):
        write_adapter(AdapterCase("llama", {"target_modules": ALL[number % 4 :], "r": rank}), root / f"{number}")
    write_adapter(AdapterCase("llama", {"target_modules": ALL, "use_dora": True}), root / "dora")
    return [write_base("llama", root / "base"), *(root / f"{number}" for number in range(len(RANKS))), root / "dora"]


def tokens(
    engine: Engine, adapters: Sequence[Path], numbers: Sequence[int], masked: bool = False, **options: object
) -> list[list[int]]:
    copy_adapters(engine, adapters)
    streams: list[Stream] = []
    for place, number in enumerate(numbers):
        allowed = (lambda so_far: range(4, 90)) if masked and place % 4 == 3 else None
        streams.append(stream(place, [5 + place, *range(9, 9 + place)], 6, allowed=allowed))
        streams[-1].adapter = number
    Router(directly(engine), SERVING, vocab_size=99, budget=64, **options).run(*streams)  # type: ignore[arg-type]
    assert not any(each.failure for each in streams)
    return [each.tokens for each in streams]


def with_graphs(base: Path, known: Sequence[Path]) -> Engine:
    engine = engine_with(load(base), LIMITS, known, PAGES, later=True)
    kinds = DECODES, FORWARDS, TOKENS
    capture(engine, GraphSizes(*kinds, *kinds))
    return engine


def test_graphs_serve_adapters_that_came_later(folders: list[Path]) -> None:
    base, *adapters, _ = folders
    plain, graphs = engine_with(load(base), LIMITS, [], PAGES, later=True), with_graphs(base, [])
    many, few = [1, 2, 3, 4, 5, 6, 0, 2, 1, 6, 5, 3], [0, 0, 2, 0, 2, 0, 0, 0, 2, 0, 0, 2]
    for numbers in (few, many, [0] * 12, few):
        assert tokens(graphs, adapters, numbers, chunk=3, depth=2) == tokens(plain, adapters, numbers)
    assert tokens(graphs, adapters, many, masked=True) == tokens(plain, adapters, many, masked=True)
    assert tokens(graphs, adapters, [4]) == tokens(plain, adapters, [4])
    # Other adapters under the same numbers.
    assert tokens(graphs, adapters[::-1], many) == tokens(plain, adapters[::-1], many)
    runner = graphs._runner
    assert runner is not None
    assert replays(runner._captured.adapted) == (set(DECODES), set(FORWARDS), set(TOKENS))


@pytest.mark.parametrize("from_the_start", [False, True])
def test_dora_has_graphs_where_it_was_there_at_the_start(from_the_start: bool, folders: list[Path]) -> None:
    """Graphs of a server without it do not multiply outputs for nothing, so its steps run without one."""
    base, first, *_, dora = folders
    plain = engine_with(load(base), LIMITS, [], PAGES, later=True)
    graphs = with_graphs(base, [dora] if from_the_start else [])
    runner = graphs._runner
    assert runner is not None
    for numbers, replayed in (([2, 1, 0, 2], from_the_start), ([1, 0, 1, 1], True)):
        for each in (runner._captured.adapted.decodes, runner._captured.adapted.chunks[1]):
            each._graphs.replays.clear()  # type: ignore[attr-defined]
        assert tokens(graphs, [first, dora], numbers) == tokens(plain, [first, dora], numbers)
        assert bool(replays(runner._captured.adapted)[2]) == replayed
