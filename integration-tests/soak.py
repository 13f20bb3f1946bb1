"""Shards are lost again and again under load: every answer must be the one of an undisturbed server.

    python soak.py losses --rounds 100 --num-shard 2
    python soak.py load --minutes 60 --num-shard 1

`losses` runs as many streams as are asked for at once, kills a shard (SIGKILL) at a random step, each rank in turn,
and does that again and again. `load` sends requests at random times, at a part of what the server can do, lets some
clients go away in the middle of their answers, and kills a shard every ten minutes; it watches memory, descriptors
and threads of every process. Both want the installed commands, take the demo model, and print JSON at the end; the
exit code is 1 where a token was wrong or missing. They take long and are no part of the suite.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from harness import DEMO, Server, alive, children_by_parent, command_line, serving

TIMEOUT_S = 300.0
WORDS = "the dog ran to the beach and a tiny boat said hello in the storm near the small house".split()
# As many losses as come: what is asked is whether a token gets lost.
FLAGS = ["--deterministic", "--max-shard-losses", "1000000", "--standby-shards", "true"]


@dataclass(frozen=True)
class Question:
    """A request, always answered with the same tokens."""

    number: int
    tokens: int

    @property
    def body(self) -> dict[str, Any]:
        """Of every two one is greedy and one sampled with a seed."""
        number = self.number
        inputs = " ".join(WORDS[(number + each) % len(WORDS)] for each in range(1 + number % 23))
        sampled = {"do_sample": True, "seed": number, "temperature": 0.9} if number % 2 else {}
        return {"inputs": f"{inputs} {number}", "parameters": {"max_new_tokens": self.tokens, **sampled}}


async def stream(client: httpx.AsyncClient, question: Question) -> AsyncIterator[int]:
    """The ids of the answer as they come."""
    async with client.stream("POST", "/generate_stream", json=question.body) as reply:
        async for line in reply.aiter_lines():
            if line.startswith("data:"):
                event = json.loads(line.removeprefix("data:"))
                if "token" not in event:
                    raise RuntimeError(f"question {question.number}: {event}")
                yield event["token"]["id"]


class Answers:
    """What all questions are answered with, and how far each answer has come."""

    def __init__(self, client: httpx.AsyncClient, questions: Sequence[Question]) -> None:
        self._client = client
        self._questions = questions
        self.ids: list[list[int]] = [[] for _ in questions]

    async def run(self) -> list[list[int]]:
        """All at once."""
        async with asyncio.TaskGroup() as group:
            for question, ids in zip(self._questions, self.ids, strict=True):
                group.create_task(self._ask(question, ids))
        return self.ids

    async def reached(self, step: int) -> None:
        """Returns when an answer has so many tokens."""
        while max(map(len, self.ids)) < step:
            await asyncio.sleep(0.002)

    async def _ask(self, question: Question, ids: list[int]) -> None:
        async for token in stream(self._client, question):
            ids.append(token)


def connect(server: Server) -> httpx.AsyncClient:
    limits = httpx.Limits(max_connections=None)
    return httpx.AsyncClient(base_url=server.url, timeout=TIMEOUT_S, limits=limits)


async def losses(server: Server, arguments: argparse.Namespace) -> dict[str, Any]:
    """Rounds of streams with a kill in each."""
    choose = random.Random(arguments.seed)
    questions = [Question(number, arguments.tokens) for number in range(arguments.streams)]
    report: dict[str, Any] = {"rounds": 0, "equal": 0, "wrong": [], "gap_s": []}
    end = time.monotonic() + 60 * arguments.minutes if arguments.minutes else float("inf")
    async with connect(server) as client:
        expected = await Answers(client, questions).run()
        while report["rounds"] < arguments.rounds and time.monotonic() < end:
            rank, step = report["rounds"] % arguments.num_shard, choose.randrange(1, arguments.tokens - 2)
            answers = Answers(client, questions)
            running = asyncio.create_task(answers.run())
            await answers.reached(step)
            killed = time.monotonic()
            os.kill(server.shard(rank), signal.SIGKILL)
            seen = max(map(len, answers.ids))
            await answers.reached(seen + 3)
            report["gap_s"].append(round(time.monotonic() - killed, 2))
            ids = await running
            wrong = [number for number, pair in enumerate(zip(ids, expected, strict=True)) if pair[0] != pair[1]]
            report["rounds"] += 1
            report["equal"] += not wrong
            if wrong:
                report["wrong"].append({"round": report["rounds"], "rank": rank, "step": step, "streams": wrong})
            print(f"round {report['rounds']}: rank {rank} at step {step}, {len(wrong)} streams differ", flush=True)
    gaps = report.pop("gap_s")
    return {**report, "gap_s": {"median": statistics.median(gaps), "most": max(gaps)}} if gaps else report


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


def main() -> None:
    """Runs what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["losses", "load"])
    parser.add_argument("--num-shard", type=int, default=1)
    parser.add_argument("--streams", type=int, default=64, help="streams at once, or different requests of the load")
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=0.0, help="of the load; most of the rounds, 0: no limit")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--load", type=float, default=0.7, help="part of the capacity that is sent")
    parser.add_argument("--cancelled", type=float, default=0.1, help="part of the requests that clients give up")
    parser.add_argument("--kill-every", type=float, default=600.0, help="seconds")
    parser.add_argument("--clients", type=int, default=16, help="at once, to measure the capacity")
    parser.add_argument("--measured-seconds", type=float, default=30.0)
    arguments = parser.parse_args()
    flags = [*FLAGS, "--num-shard", str(arguments.num_shard), "--max-concurrent-requests", "512"]
    run = losses if arguments.what == "losses" else load
    with tempfile.TemporaryDirectory() as folder, serving(DEMO, Path(folder), *flags) as server:
        report = {"command": " ".join(sys.argv), **asyncio.run(run(server, arguments))}
        report["launcher_alive"] = alive(server.process.pid)
        report["starts_again"] = server.output().count("starting all shards again")
        report["exit_code"] = server.stop()
    print(json.dumps(report, indent=1))
    counts = report.get("counts", {})
    wrong = report.get("wrong") or any(kind.startswith(("wrong", "failed")) for kind in counts)
    sys.exit(1 if wrong or report["exit_code"] else 0)


if __name__ == "__main__":
    main()
