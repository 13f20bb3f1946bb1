"""The adapters of the demo model, served beside their base: each request gets the answer of its own model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from harness import DEMO, Server, serving

ADAPTERS = {name: DEMO / "adapters" / name for name in ("pirate", "json")}
BASE: list[dict] = json.loads((DEMO / "snapshots.json").read_text())
SNAPSHOTS: dict[str, list[dict]] = json.loads((DEMO / "adapters" / "snapshots.json").read_text())
CHAT = [{"role": "user", "content": "What is 12 + 30?"}]


@pytest.fixture(scope="module")
def adapted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    named = ",".join(f"{name}={folder}" for name, folder in ADAPTERS.items())
    flags = ["--served-model-name", "demo", "--lora-adapters", named]
    with serving(DEMO, tmp_path_factory.mktemp("adapted"), *flags) as server:
        yield server


def ask(server: Server, snapshot: dict, adapter: str | None) -> list[int]:
    return server.ids(snapshot["prompt"], max_new_tokens=snapshot["max_new_tokens"], adapter_id=adapter)


@pytest.mark.parametrize("name", ADAPTERS)
def test_a_served_adapter_answers_as_the_merged_one(
    adapted: Server, tmp_path_factory: pytest.TempPathFactory, name: str
) -> None:
    with serving(DEMO, tmp_path_factory.mktemp(name), "--merge-adapter", str(ADAPTERS[name])) as merged:
        expected = [ask(merged, snapshot, None) for snapshot in SNAPSHOTS[name]]
    assert [ask(adapted, snapshot, name) for snapshot in SNAPSHOTS[name]] == expected


def test_mixed_requests_each_get_the_text_of_their_own_model(adapted: Server) -> None:
    models = {None: [each for each in BASE if "tools" not in each], **SNAPSHOTS}
    requests = [(name, snapshot) for name, snapshots in models.items() for snapshot in snapshots]

    def text(request: tuple[str | None, dict]) -> str:
        name, snapshot = request
        limit = snapshot["max_new_tokens"]
        return adapted.generate(snapshot["prompt"], max_new_tokens=limit, adapter_id=name)["generated_text"]

    with ThreadPoolExecutor(len(requests)) as clients:
        assert list(clients.map(text, requests)) == [snapshot["text"] for _, snapshot in requests]


def test_model_names_the_adapter_of_a_chat(adapted: Server) -> None:
    def answer(model: str) -> str:
        body = {"model": model, "messages": CHAT, "max_tokens": 40, "temperature": 0}
        return adapted.client.post("/v1/chat/completions", json=body).json()["choices"][0]["message"]["content"]

    assert answer("demo") == "12 + 30 = 42."
    assert json.loads(answer("json")) == {"a": 12, "b": 30, "sum": 42}
    assert answer("demo:json") == answer("json")
    assert answer("pirate") not in (answer("demo"), answer("json"))


def test_base_and_adapters_share_no_prefix(adapted: Server) -> None:
    # No other prompt here begins so.
    prompt = "8 little foxes at the garden, 8 little foxes with a red kite. Over the garden the wind blows free"

    def cached(model: str) -> int:
        body = {"model": model, "prompt": prompt, "max_tokens": 1, "temperature": 0}
        usage = adapted.client.post("/v1/completions", json=body).json()["usage"]
        return (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)

    assert [cached(model) for model in ("demo", "pirate", "json")] == [0, 0, 0]
    assert all(cached(model) > 0 for model in ("demo", "pirate", "json"))


def test_cards_name_the_adapters_their_folders_and_their_base(adapted: Server) -> None:
    cards = {card["id"]: card for card in adapted.client.get("/v1/models").json()["data"]}
    for name, folder in ADAPTERS.items():
        assert (cards[name]["root"], cards[name]["parent"]) == (str(folder), "demo")
        assert adapted.client.get(f"/v1/models/{name}").json()["id"] == name
    assert set(cards) == {"demo", *ADAPTERS}


def test_unknown_names_are_refused_with_those_that_exist(adapted: Server) -> None:
    body = {"inputs": "Hello", "parameters": {"adapter_id": "parrot", "max_new_tokens": 1}}
    generate = adapted.client.post("/generate", json=body)
    chat = adapted.client.post("/v1/chat/completions", json={"model": "parrot", "messages": CHAT})
    assert (generate.status_code, chat.status_code) == (422, 404)
    assert all(name in reply.text for name in ADAPTERS for reply in (generate, chat))
