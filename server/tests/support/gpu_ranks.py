"""Processes that share a model on several GPUs, each a rank on a device of its own."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.multiprocessing as mp

from text_generation_server.config import ParallelConfig
from text_generation_server.distributed import TensorParallelGroup, init_group
from text_generation_server.engine.engine import Engine
from text_generation_server.engine.loading import choose_device
from text_generation_server.engine.requests import Request

from .comparing import assert_generations_are_equal
from .families import model_of
from .family_cases import CASES
from .generating import LIMITS
from .gpu_engine import OF_WINDOWS, build, check, router, schedule, with_adapters_in_turn
from .windows import run

Work = Callable[[TensorParallelGroup], None]
"""What each rank does. Every rank makes the same plans, because all get the same tokens."""


def on_every_rank(work: Work, parallel: ParallelConfig) -> None:
    """Runs `work` as each rank of `parallel`; raises what a rank raises. Both must be picklable."""
    mp.spawn(_rank, (work, parallel), nprocs=parallel.world_size)


def _rank(rank: int, work: Work, parallel: ParallelConfig) -> None:
    device = choose_device(rank)
    work(init_group(replace(parallel, rank=rank), device, timeout_s=60))
    # NCCL's own end waits for graphs.
    os._exit(0)


def schedules(folder: Path, expected: list[list[int]], group: TensorParallelGroup) -> None:
    """Runs schedules by chance, whose requests have what they have alone on one rank."""
    engine = build(folder, torch.float32, group=group)
    whole = 0
    for seed in range(6):
        streams = schedule(engine, seed, numbers=len(expected), count=15, pause=0.02)
        whole += check(streams, expected, seed)
    assert whole > 20


def families(folders: Mapping[str, Path], group: TensorParallelGroup) -> None:
    """Generates with the model of each case. Goes on behind a wrong one, and names all of them."""
    wrong: dict[str, str] = {}
    for name, folder in folders.items():
        engine = build(folder, torch.float32, LIMITS, group=group)
        try:
            assert_generations_are_equal(CASES[name], model_of(name), engine, group.rank)
        except AssertionError as error:
            wrong[name] = str(error)
        del engine
    if wrong:
        pytest.fail("\n".join(f"{name}: {message}" for name, message in wrong.items()))


def windows(
    folder: Path, requests: Sequence[Request], expected: Mapping[int, Sequence[int]], group: TensorParallelGroup
) -> None:
    """Decodes in windows of one to four tokens."""
    engine = build(folder, torch.float32, OF_WINDOWS, group=group, speculate=3)
    for width in (1, 2, 4):
        found = run(engine, requests, width)
        assert found.ids == expected, width
        assert found.compilations == 0


def answers(engine: Engine, adapters: Sequence[Path]) -> list[list[int]]:
    """Of requests of the base and of every adapter beside each other."""
    streams = with_adapters_in_turn(20, len(adapters) + 1)
    router(engine, adapters, eos=(), chunk=64, depth=2).run(*streams)
    assert not any(each.failure for each in streams)
    return [each.tokens for each in streams]


def with_adapters(
    base: Path, adapters: Sequence[Path], expected: Sequence[Sequence[int]], group: TensorParallelGroup
) -> None:
    """Serves the base and its adapters."""
    assert answers(build(base, torch.float32, adapters=adapters, group=group), adapters) == expected
