"""The demo model of the repository, served as `make run` serves it: text that a person can read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from harness import DEMO, Server, serving

# What transformers answers greedily; a test of the shard computes it anew.
SNAPSHOTS: list[dict] = json.loads((DEMO / "snapshots.json").read_text())
STORY = SNAPSHOTS[0]
CHATS = [snapshot for snapshot in SNAPSHOTS if "messages" in snapshot and "tools" not in snapshot]


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(DEMO, tmp_path_factory.mktemp("demo")) as server:
        yield server


def test_many_clients_get_what_transformers_answers(demo: Server) -> None:
    def ask(snapshot: dict) -> str:
        return demo.generate(snapshot["prompt"], max_new_tokens=snapshot["max_new_tokens"])["generated_text"]

    with ThreadPoolExecutor(2 * len(SNAPSHOTS)) as clients:
        texts = list(clients.map(ask, SNAPSHOTS * 2))
    assert texts == [snapshot["text"] for snapshot in SNAPSHOTS] * 2


def test_chat_answers_the_snapshots(demo: Server) -> None:
    for chat in CHATS:
        body = {"model": "demo", "messages": chat["messages"], "max_tokens": chat["max_new_tokens"], "temperature": 0}
        choice = demo.client.post("/v1/chat/completions", json=body).json()["choices"][0]
        assert choice["message"]["content"] == chat["text"]
        assert choice["finish_reason"] == "stop"


def test_a_streamed_story_is_the_story(demo: Server) -> None:
    body = {"inputs": STORY["prompt"], "parameters": {"max_new_tokens": STORY["max_new_tokens"]}}
    text = ""
    with (
        httpx.Client(base_url=demo.url, timeout=120) as client,
        client.stream("POST", "/generate_stream", json=body) as reply,
    ):
        for line in reply.iter_lines():
            if line.startswith("data:"):
                event = json.loads(line.removeprefix("data:"))
                text += "" if event["token"]["special"] else event["token"]["text"]
    assert event["generated_text"] == STORY["text"]
    assert text == STORY["text"]


def test_a_stop_string_ends_the_story(demo: Server) -> None:
    answer = demo.generate(STORY["prompt"], max_new_tokens=160, stop=["day long."])
    assert answer["details"]["finish_reason"] == "stop_sequence"
    assert answer["generated_text"] == STORY["text"].partition("day long.")[0] + "day long."


def test_seeds_tell_different_stories_the_same_way_twice(demo: Server) -> None:
    def story(seed: int) -> str:
        return demo.generate(STORY["prompt"], max_new_tokens=24, do_sample=True, seed=seed)["generated_text"]

    with ThreadPoolExecutor(8) as clients:
        first, second = (list(clients.map(story, range(8))) for _ in range(2))
    assert first == second
    assert len(set(first)) > 4


def test_best_of_returns_the_likelier_and_the_other(demo: Server) -> None:
    def mean(sequence: dict) -> float:
        return sum(token["logprob"] for token in sequence["tokens"]) / len(sequence["tokens"])

    details = demo.generate(STORY["prompt"], max_new_tokens=16, do_sample=True, best_of=2)["details"]
    (other,) = details["best_of_sequences"]
    assert mean(details) >= mean(other)


def test_choices_of_a_chat_are_the_chats_with_the_next_seeds(demo: Server) -> None:
    body = {"messages": [{"role": "user", "content": "Tell me a story about a fox."}], "max_tokens": 24}

    def choices(**fields: int) -> list[str]:
        reply = demo.client.post("/v1/chat/completions", json={**body, **fields}).json()
        return [choice["message"]["content"] for choice in reply["choices"]]

    both = choices(n=2, seed=7)
    assert both == choices(seed=7) + choices(seed=8)
    assert both[0] != both[1]
