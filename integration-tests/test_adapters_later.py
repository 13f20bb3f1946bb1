"""Adapters that come while the server runs: loaded, found in a folder, replaced, unloaded, and lost."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from harness import DEMO, Server, serving, wait_for

ADAPTERS = {name: DEMO / "adapters" / name for name in ("pirate", "json")}
SNAPSHOTS: dict[str, list[dict]] = json.loads((DEMO / "adapters" / "snapshots.json").read_text())
BASE: list[dict] = [each for each in json.loads((DEMO / "snapshots.json").read_text()) if "tools" not in each]
KEY = "key-of-the-administrator"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with copies of the adapters, one of them below the name of an organisation."""
    root = tmp_path / "adapters"
    shutil.copytree(ADAPTERS["pirate"], root / "pirate")
    shutil.copytree(ADAPTERS["json"], root / "org" / "json")
    return root


@pytest.fixture
def later(folder: Path, tmp_path: Path) -> Iterator[Server]:
    flags = [
        "--served-model-name",
        "demo",
        "--lora-dir",
        str(folder),
        "--allow-adapter-loading",
        "--adapter-pages",
        "2",
    ]
    with serving(DEMO, tmp_path, *flags, environment={"ADMIN_API_KEY": KEY}) as server:
        yield server


def text(server: Server, snapshot: dict, adapter: str | None) -> str:
    limit = snapshot["max_new_tokens"]
    return server.generate(snapshot["prompt"], max_new_tokens=limit, adapter_id=adapter)["generated_text"]


def post(server: Server, route: str, **body: object) -> httpx.Response:
    return server.client.post(f"/v1/{route}_lora_adapter", json=body, headers={"authorization": f"Bearer {KEY}"})


def states(server: Server) -> dict[str, str]:
    return {each["name"]: each["state"] for each in server.client.get("/info").json()["adapters"]}


def test_an_adapter_is_loaded_used_replaced_and_unloaded_while_others_stream(later: Server) -> None:
    story, sums = SNAPSHOTS["pirate"][0], SNAPSHOTS["json"][0]
    with ThreadPoolExecutor(4) as clients:
        base = [clients.submit(text, later, BASE[0], None) for _ in range(4)]
        assert post(later, "load", lora_name="mine", lora_path="pirate").text == (
            "Success: LoRA adapter 'mine' added successfully."
        )
        assert text(later, story, "mine") == story["text"]
        assert post(later, "load", lora_name="mine", lora_path="org/json").status_code == 400
        assert post(later, "load", lora_name="mine", lora_path="org/json", load_inplace=True).status_code == 200
        assert text(later, sums, "mine") == sums["text"]
        assert [each.result() for each in base] == [BASE[0]["text"]] * 4
    assert post(later, "unload", lora_name="mine").status_code == 200
    assert post(later, "unload", lora_name="mine").status_code == 404
    refused = later.client.post("/generate", json={"inputs": "Hi", "parameters": {"adapter_id": "mine"}})
    assert refused.status_code == 422


def test_requests_find_what_is_in_the_folder_and_nothing_else(later: Server, folder: Path) -> None:
    for name, snapshot in (("pirate", SNAPSHOTS["pirate"][0]), ("org/json", SNAPSHOTS["json"][0])):
        assert text(later, snapshot, name) == snapshot["text"]
    assert set(states(later)) == {"pirate", "org/json"}
    (folder / "cut").mkdir()
    shutil.copy(folder / "pirate" / "adapter_config.json", folder / "cut")
    (folder / "cut" / "adapter_model.safetensors").write_bytes(b"no tensors")
    for name in ("cut", "parrot", "../adapters/pirate", str(folder / "pirate")):
        body = {"inputs": "Hi", "parameters": {"adapter_id": name, "max_new_tokens": 1}}
        assert later.client.post("/generate", json=body).status_code == 422, name
    assert text(later, BASE[0], None) == BASE[0]["text"]


def test_adapters_outlive_a_shard_and_a_damaged_one_ends_alone(later: Server, folder: Path) -> None:
    story, sums = SNAPSHOTS["pirate"][0], SNAPSHOTS["json"][0]
    assert text(later, story, "pirate") == story["text"]
    assert text(later, sums, "org/json") == sums["text"]
    assert post(later, "load", lora_name="mine", lora_path="pirate").status_code == 200
    (folder / "pirate" / "adapter_model.safetensors").write_bytes(b"no tensors")
    os.kill(later.shard(0), signal.SIGKILL)
    wait_for(lambda: later.metric("tgi_shard_restarts") == 1, "shards that serve again", 120)
    assert text(later, sums, "org/json") == sums["text"]
    assert text(later, BASE[0], None) == BASE[0]["text"]
    assert states(later)["mine"] == "changed"
    body = {"inputs": "Hi", "parameters": {"adapter_id": "mine", "max_new_tokens": 1}}
    ended = later.client.post("/generate", json=body)
    assert (ended.status_code, "adapter_changed" in ended.text) == (500, True)
    shutil.copytree(ADAPTERS["pirate"], folder / "pirate", dirs_exist_ok=True)
    assert post(later, "load", lora_name="mine", lora_path="pirate", load_inplace=True).status_code == 200
    assert text(later, story, "mine") == story["text"]
