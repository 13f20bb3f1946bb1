"""Greedy text equals `transformers.generate`, token for token, however the requests are batched."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from harness import Server, wait_for

NEW_TOKENS = 24


@pytest.fixture(scope="module")
def expected(prompts: list[str], reference) -> dict[str, list[int]]:
    return {prompt: reference(prompt, NEW_TOKENS) for prompt in prompts}


def test_alone(server: Server, expected: dict[str, list[int]]) -> None:
    for prompt, ids in expected.items():
        assert server.ids(prompt, max_new_tokens=NEW_TOKENS) == ids


@pytest.mark.parametrize("which", ["server", "two_shards"])
def test_sixteen_at_once(which: str, request: pytest.FixtureRequest, expected: dict[str, list[int]]) -> None:
    server: Server = request.getfixturevalue(which)
    some = list(expected.items())[:16]
    with ThreadPoolExecutor(16) as pool:
        # Different lengths, so that requests leave the batch one after the other.
        lengths = [NEW_TOKENS - n for n in range(16)]
        answers = pool.map(lambda n: server.ids(some[n][0], max_new_tokens=lengths[n]), range(16))
        for (prompt, ids), length, answer in zip(some, lengths, answers, strict=True):
            assert answer == ids[:length], prompt


def test_two_shards(two_shards: Server, expected: dict[str, list[int]]) -> None:
    for prompt, ids in expected.items():
        assert two_shards.ids(prompt, max_new_tokens=NEW_TOKENS) == ids


def test_a_client_that_drops_out_changes_nothing(server: Server, expected: dict[str, list[int]]) -> None:
    some = list(expected.items())[:8]

    def drop_out(prompt: str) -> None:
        body = {"inputs": prompt, "parameters": {"max_new_tokens": 400}}
        with (
            httpx.Client(base_url=server.url, timeout=60) as client,
            client.stream("POST", "/generate_stream", json=body) as reply,
        ):
            next(reply.iter_lines())

    with ThreadPoolExecutor(16) as pool:
        answers = [pool.submit(server.ids, prompt, max_new_tokens=NEW_TOKENS) for prompt, _ in some]
        dropped = [pool.submit(drop_out, prompt) for prompt, _ in some]
        for answer, (prompt, ids) in zip(answers, some, strict=True):
            assert answer.result() == ids, prompt
        for future in dropped:
            future.result()
    wait_for(lambda: server.metric("tgi_kv_slots_used") == 0, "all slots free again")
