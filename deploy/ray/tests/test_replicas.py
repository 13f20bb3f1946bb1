"""Two replicas on Ray Serve without a network: streams arrive whole, and a replica that is lost is replaced.

The commands of the server must be on the path, Ray installed. Uses the demo model, on the CPU.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
import ray
from ray import serve

ROOT = Path(__file__).parents[3]
APPLICATION = str(Path(__file__).parents[1])
sys.path.insert(0, APPLICATION)
# Workers of Ray find the module there too.
os.environ["PYTHONPATH"] = os.pathsep.join([APPLICATION, *filter(None, [os.environ.get("PYTHONPATH")])])
URL = "http://127.0.0.1:8123"
REPLACED_WITHIN_S = 20.0


def wait_for(condition: Callable[[], bool], what: str, limit_s: float, pause_s: float = 0.05) -> float:
    """Seconds until the condition holds."""
    started = time.monotonic()
    while not condition():
        if time.monotonic() - started > limit_s:
            raise AssertionError(f"no {what} within {limit_s:g} s")
        time.sleep(pause_s)
    return time.monotonic() - started


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    from text_generation_ray import Arguments, app

    # One place more than replicas take, so that the next one need not wait for the end of a lost one.
    ray.init(num_cpus=3, include_dashboard=False, log_to_driver=False, object_store_memory=100 * 2**20)
    serve.start(http_options={"host": "127.0.0.1", "port": 8123})
    model = str(ROOT / "models" / "demo")
    # Processes on standby take seconds of a core, and no shard is lost here.
    serve.run(app(Arguments(model_id=model, replicas=2, flags="--standby-shards false")), route_prefix="/")
    with httpx.Client(base_url=URL, timeout=60) as made:
        yield made
    serve.shutdown()
    ray.shutdown()
    wait_for(lambda: not launchers(), "end of the launchers", 30)


def launchers() -> set[int]:
    """Process ids of the launchers that Serve has started; others of this machine have no such PYTHONPATH."""
    found = set()
    for entry in Path("/proc").iterdir():
        try:
            command = (entry / "cmdline").read_bytes().split(b"\0") if entry.name.isdigit() else []
            ours = bool(command) and APPLICATION.encode() in (entry / "environ").read_bytes()
        except OSError:
            continue
        if ours and command[0].endswith(b"text-generation-launcher"):
            found.add(int(entry.name))
    return found


def instance(client: httpx.Client) -> str | None:
    """Which replica answers, if one does."""
    return client.get("/health").headers.get("x-router-instance")


def instances_of_two_replicas(client: httpx.Client) -> set[str | None]:
    seen: set[str | None] = set()
    wait_for(lambda: len(seen.add(instance(client)) or seen - {None}) == 2, "answer of both replicas", 20)
    return seen


def stream(client: httpx.Client, tokens: int) -> list[int]:
    body = {"inputs": "Once upon a time", "parameters": {"max_new_tokens": tokens}}
    with client.stream("POST", "/generate_stream", json=body) as reply:
        assert reply.headers["content-type"].startswith("text/event-stream")
        events = [json.loads(line[5:]) for line in reply.iter_lines() if line.startswith("data:")]
    return [event["token"]["id"] for event in events]


def test_a_stream_arrives_as_the_server_sends_it(client: httpx.Client) -> None:
    whole = client.post(
        "/generate",
        json={"inputs": "Once upon a time", "parameters": {"max_new_tokens": 40, "details": True}},
    ).json()
    assert stream(client, 40) == [token["id"] for token in whole["details"]["tokens"]]


def test_errors_and_headers_are_those_of_the_server(client: httpx.Client) -> None:
    reply = client.post("/generate", json={"inputs": "a", "parameters": {"temperature": -1}})
    assert reply.status_code == 422
    assert reply.json()["error_type"] == "validation"
    assert client.get("/info", params={"a": ["1", "2"]}).json()["model_id"].endswith("models/demo")


def test_requests_reach_both_replicas(client: httpx.Client) -> None:
    instances_of_two_replicas(client)


def test_a_replica_that_is_killed_is_replaced_and_the_other_serves_on(client: httpx.Client) -> None:
    before = launchers()
    assert len(before) == 2
    instances = instances_of_two_replicas(client)
    os.kill(min(before), signal.SIGKILL)
    statuses: list[int] = []

    def replaced() -> bool:
        reply = client.post("/generate", json={"inputs": "a", "parameters": {"max_new_tokens": 1}})
        statuses.append(reply.status_code)
        if reply.status_code == 503:
            assert re.fullmatch(r"\d+", reply.headers["retry-after"])
        return instance(client) not in {None, *instances}

    # Requests take the cores on which the new one starts.
    wait_for(replaced, "replacement", REPLACED_WITHIN_S, pause_s=0.25)
    assert set(statuses) <= {200, 503}
    assert 200 in statuses
    assert stream(client, 5)
