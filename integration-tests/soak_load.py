"""Requests at random times, and clients that go away, while shards are lost: nothing is wrong, lost, or grows."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
import signal
import statistics
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from harness import Server, children_by_parent, command_line
from questions import Answers, Question, connect, stream


@dataclass
class Soak:
    """Random load on a server, and what came of it."""

    server: Server
    client: httpx.AsyncClient
    questions: Sequence[Question]
    expected: Sequence[Sequence[int]]
    choose: random.Random
    counts: Counter[str] = field(default_factory=Counter)
    samples: list[dict[str, dict[str, float]]] = field(default_factory=list)

    async def ask(self, cancels: bool) -> None:
        """One request; a client that cancels goes away in the middle."""
        number = self.choose.randrange(len(self.questions))
        stop = self.choose.randrange(1, len(self.expected[number])) if cancels else None
        ids: list[int] = []
        try:
            async with contextlib.aclosing(stream(self.client, self.questions[number])) as answer:
                async for token in answer:
                    ids.append(token)
                    if len(ids) == stop:
                        break
        except (httpx.HTTPError, RuntimeError) as error:
            self.counts[f"failed: {error!r}"[:200]] += 1
            return
        right = ids == list(self.expected[number][:stop])
        self.counts["wrong" if not right else "cancelled" if cancels else "whole"] += 1

    async def load(self, rate: float, cancelled: float, seconds: float) -> None:
        """Requests at random times, so many a second."""
        end = time.monotonic() + seconds
        async with asyncio.TaskGroup() as group:
            while time.monotonic() < end:
                await asyncio.sleep(self.choose.expovariate(rate))
                group.create_task(self.ask(self.choose.random() < cancelled))

    async def capacity(self, clients: int, seconds: float) -> float:
        """Requests a second where so many clients always have one."""
        end = time.monotonic() + seconds
        before = self.counts["whole"]

        async def client() -> None:
            while time.monotonic() < end:
                await self.ask(False)

        begin = time.monotonic()
        async with asyncio.TaskGroup() as group:
            for _ in range(clients):
                group.create_task(client())
        return (self.counts["whole"] - before) / (time.monotonic() - begin)

    async def kill_every(self, seconds: float, ranks: int) -> None:
        """Kills a shard now and then, for ever."""
        while True:
            await asyncio.sleep(seconds)
            os.kill(self.server.shard(self.choose.randrange(ranks)), signal.SIGKILL)
            self.counts["kills"] += 1

    async def watch(self, seconds: float) -> None:
        """Takes a sample of the processes now and then, for ever."""
        while True:
            self.samples.append(resources(self.server))
            await asyncio.sleep(seconds)


def resources(server: Server) -> dict[str, dict[str, float]]:
    """MiB of memory, descriptors and threads, by kind of process; of shards those of the largest."""
    found: dict[str, dict[str, float]] = {}
    for pid in (server.process.pid, *children_by_parent().get(server.process.pid, [])):
        line = command_line(pid)
        kind = "launcher" if pid == server.process.pid else "router" if "-router" in line else "shard"
        with contextlib.suppress(OSError, StopIteration, ValueError):
            status = Path(f"/proc/{pid}/status").read_text().splitlines()
            fields = dict(line.split(":", 1) for line in status if ":" in line)
            one = {
                "mib": round(int(fields["VmRSS"].split()[0]) / 1024, 1),
                "descriptors": len(os.listdir(f"/proc/{pid}/fd")),
                "threads": int(fields["Threads"]),
            }
            before = found.setdefault(kind, one)
            found[kind] = {name: max(value, before[name]) for name, value in one.items()}
    return found


def growth(samples: Sequence[dict[str, dict[str, float]]]) -> dict[str, Any]:
    """Medians of the second and of the last quarter: the first holds what caches and pools take once."""
    quarter = max(1, len(samples) // 4)
    parts = {"early": samples[quarter : 2 * quarter] or samples, "late": samples[-quarter:]}
    return {
        kind: {
            name: {
                part: statistics.median(each[kind][name] for each in taken if kind in each)
                for part, taken in parts.items()
            }
            for name in ("mib", "descriptors", "threads")
        }
        for kind in ("launcher", "router", "shard")
    }


async def load(server: Server, arguments: argparse.Namespace) -> dict[str, Any]:
    """The soak."""
    questions = [Question(number, arguments.tokens) for number in range(arguments.streams)]
    async with connect(server) as client:
        expected = await Answers(client, questions).run()
        soak = Soak(server, client, questions, expected, random.Random(arguments.seed))
        capacity = await soak.capacity(arguments.clients, arguments.measured_seconds)
        soak.counts.clear()
        rate = arguments.load * capacity
        print(f"{capacity:.2f} requests/s at most, {rate:.2f} are sent", flush=True)
        begin = time.monotonic()
        background = [
            asyncio.create_task(soak.kill_every(arguments.kill_every, arguments.num_shard)),
            asyncio.create_task(soak.watch(10.0)),
        ]
        try:
            await soak.load(rate, arguments.cancelled, 60 * arguments.minutes)
        finally:
            for task in background:
                task.cancel()
        soak.samples.append(resources(server))
    # Nothing may be left of requests that were given up.
    end = time.monotonic() + 30
    while (running := server.metric("tgi_batch_current_size")) and time.monotonic() < end:
        await asyncio.sleep(0.1)
    return {
        "capacity_rps": round(capacity, 2),
        "rate_rps": round(rate, 2),
        "minutes": round((time.monotonic() - begin) / 60, 1),
        "counts": dict(soak.counts),
        "running_at_the_end": running,
        "growth": growth(soak.samples),
    }
