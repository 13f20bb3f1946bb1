"""Rounds of streams, each with the loss of a shard: every answer must be the one of an undisturbed server."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import signal
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from harness import Server
from questions import Answers, Question, connect

# What the router logs when shards serve again, with the number of requests that go on.
SERVES_AGAIN = re.compile(r"the shards serve again.*?\bwaiting\W+(\d+)")


@dataclass
class Rounds:
    """Streams on one server, undisturbed once and then with a loss in each round."""

    server: Server
    client: httpx.AsyncClient
    questions: Sequence[Question]
    expected: Sequence[Sequence[int]]
    seed: int
    ranks: int

    async def play(self, number: int) -> dict[str, Any]:
        """One round. Its number decides, with the seed, what is killed and when, whichever rounds came before."""
        longest = max(map(len, self.expected))
        rank, step = number % self.ranks, random.Random(f"{self.seed}:{number}").randrange(1, longest - 2)
        restarts = len(self.resumed())
        answers = Answers(self.client, self.questions)
        running = asyncio.create_task(answers.run())
        await until(lambda: answers.longest() >= step or running.done())
        killed = time.monotonic()
        os.kill(self.server.shard(rank), signal.SIGKILL)
        # Some may be on their way from before.
        following = min(answers.longest() + 3, longest)
        await until(lambda: answers.longest() >= following or running.done())
        gap = time.monotonic() - killed
        ids = await running
        await until(lambda: len(self.resumed()) > restarts)
        return {
            "round": number,
            "rank": rank,
            "step": step,
            "went_on": self.resumed()[-1],
            "gap_s": round(gap, 2),
            "wrong": [number for number, pair in enumerate(zip(ids, self.expected, strict=True)) if pair[0] != pair[1]],
            "failures": answers.failures,
        }

    def resumed(self) -> list[int]:
        """How many requests went on after each restart so far."""
        return list(map(int, SERVES_AGAIN.findall(self.server.output())))


async def until(condition: Callable[[], bool], limit_s: float = 300.0) -> None:
    end = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"nothing has come for {limit_s} s")
        await asyncio.sleep(0.002)


async def losses(server: Server, arguments: argparse.Namespace) -> dict[str, Any]:
    """The rounds from `--first` on. `--report` has those that are over at any time."""
    questions = [Question(number, arguments.tokens) for number in range(arguments.streams)]
    report: dict[str, Any] = {"num_shard": arguments.num_shard, "seed": arguments.seed, "rounds": []}
    end = time.monotonic() + 60 * arguments.minutes if arguments.minutes else float("inf")
    async with connect(server) as client:
        undisturbed = Answers(client, questions)
        expected = await undisturbed.run()
        if undisturbed.failures:
            raise RuntimeError(f"the undisturbed server fails: {undisturbed.failures}")
        rounds = Rounds(server, client, questions, expected, arguments.seed, arguments.num_shard)
        for number in range(arguments.first, arguments.first + arguments.rounds):
            if time.monotonic() > end:
                break
            report["rounds"].append(await rounds.play(number))
            print(report["rounds"][-1], flush=True)
            if arguments.report:
                arguments.report.write_text(json.dumps(report))
    return report


def added(reports: Sequence[Path]) -> list[dict[str, Any]]:
    """What reports of several processes come to, by the number of shards. A round of a seed counts once."""
    found: dict[int, dict[tuple[int, int], dict[str, Any]]] = {}
    for path in reports:
        report = json.loads(path.read_text())
        rounds = found.setdefault(report["num_shard"], {})
        rounds.update({(report["seed"], each["round"]): each for each in report["rounds"]})
    return [{"num_shard": shards, **summary(list(rounds.values()))} for shards, rounds in sorted(found.items())]


def summary(rounds: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """How many rounds there were, how many equal an undisturbed run, and how long their clients waited."""
    # Where no request went on, the loss came after the last token.
    struck = [each for each in rounds if each["went_on"]]
    gaps = [each["gap_s"] for each in struck]
    return {
        "rounds": len(rounds),
        "equal": sum(not each["wrong"] for each in rounds),
        "rounds_with_requests_that_went_on": len(struck),
        "requests_that_went_on": sum(each["went_on"] for each in struck),
        "not_equal": [each for each in rounds if each["wrong"]],
        "gap_s": {"median": statistics.median(gaps), "most": max(gaps)} if gaps else None,
    }
