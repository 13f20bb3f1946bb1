"""Requests that are always answered with the same tokens, and what a server answers to them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

import httpx
from harness import Server

TIMEOUT_S = 300.0
WORDS = "the dog ran to the beach and a tiny boat said hello in the storm near the small house".split()


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
        reply.raise_for_status()
        async for line in reply.aiter_lines():
            if line.startswith("data:"):
                event = json.loads(line.removeprefix("data:"))
                if "token" not in event:
                    raise RuntimeError(str(event))
                yield event["token"]["id"]


class Answers:
    """What all questions are answered with, and how far each answer has come."""

    def __init__(self, client: httpx.AsyncClient, questions: Sequence[Question]) -> None:
        self._client = client
        self._questions = questions
        self.ids: list[list[int]] = [[] for _ in questions]
        self.failures: list[str] = []

    async def run(self) -> list[list[int]]:
        """All at once. An answer that fails ends with what it had; `failures` says why."""
        async with asyncio.TaskGroup() as group:
            for question, ids in zip(self._questions, self.ids, strict=True):
                group.create_task(self._ask(question, ids))
        return self.ids

    def longest(self) -> int:
        """How many tokens the answer has that is farthest."""
        return max(map(len, self.ids))

    async def _ask(self, question: Question, ids: list[int]) -> None:
        try:
            async for token in stream(self._client, question):
                ids.append(token)
        except (httpx.HTTPError, RuntimeError) as error:
            self.failures.append(f"question {question.number}: {error!r}")


def connect(server: Server) -> httpx.AsyncClient:
    limits = httpx.Limits(max_connections=None)
    return httpx.AsyncClient(base_url=server.url, timeout=TIMEOUT_S, limits=limits)
