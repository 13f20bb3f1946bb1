"""Routers of others before two servers: SMG and vLLM's router. Run by `make test-routers`; see docs/routers.md."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest
from harness import API_KEY, DEMO, Server, end, free_port, start, wait_for

COMMANDS = {"smg": ["smg", "launch"], "vllm-router": ["vllm-router"]}
MODEL = "demo"
# Longer than it takes a router that asks every second to see three times that a server leaves.
DRAIN_DELAY_S = 6
FLAGS = [
    *("--served-model-name", MODEL),
    *("--api-key", API_KEY),
    *("--metrics-aliases", "vllm"),
    *("--drain-delay", str(DRAIN_DELAY_S)),
]
QUESTION = {"model": MODEL, "messages": [{"role": "user", "content": "What is 12 + 30?"}], "temperature": 0}
# How a router learns that a server goes: it is refused and tries the other one, or it asks for health in time. Each of
# five tries may draw the server that refuses, so a router must leave it after fewer.
WAYS = {
    "retries": ["--cb-failure-threshold", "3"],
    "health": ["--disable-retries", "--health-check-interval-secs", "1"],
}


@contextlib.contextmanager
def two_servers(directory: Path) -> Iterator[list[Server]]:
    servers: list[Server] = []
    try:
        for name in ("first", "second"):
            own = directory / name
            own.mkdir()
            servers.append(start(DEMO, own, *FLAGS))
        for server in servers:
            server.client.headers["Authorization"] = f"Bearer {API_KEY}"
            server.wait_ready()
        yield servers
    finally:
        for server in servers:
            # The second one ends the delay.
            server.process.send_signal(signal.SIGTERM)
            end(server)


@contextlib.contextmanager
def router_before(
    name: str, servers: Sequence[Server], directory: Path, flags: Sequence[str] = ()
) -> Iterator[httpx.Client]:
    """A router that knows both servers, and a client of it."""
    url = f"http://127.0.0.1:{free_port()}"
    command = [*COMMANDS[name], "--host", "127.0.0.1", "--port", url.rpartition(":")[2], "--api-key", API_KEY]
    command += ["--prometheus-host", "127.0.0.1", "--prometheus-port", str(free_port())]
    command += ["--worker-urls", *(server.url for server in servers), *flags]
    log = directory / "router.log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
    headers = {"Authorization": f"Bearer {API_KEY}"}
    try:
        with httpx.Client(base_url=url, headers=headers, timeout=60) as client:

            def ready() -> bool:
                assert process.poll() is None, log.read_text()
                with contextlib.suppress(httpx.TransportError):
                    return MODEL in client.get("/v1/models").text
                return False

            wait_for(ready, "a router that knows its servers")
            yield client
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=5)
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Server]]:
    with two_servers(tmp_path_factory.mktemp("servers")) as servers:
        yield servers


@pytest.fixture(scope="module", params=COMMANDS)
def router(
    request: pytest.FixtureRequest, servers: list[Server], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[httpx.Client]:
    with router_before(request.param, servers, tmp_path_factory.mktemp("router")) as client:
        yield client


def events(client: httpx.Client, body: dict) -> list[dict]:
    """The events of a streamed chat, which must end as it should."""
    with client.stream("POST", "/v1/chat/completions", json={**body, "stream": True}) as reply:
        lines = [line[6:] for line in reply.iter_lines() if line]
    assert reply.status_code == 200, lines
    assert lines[-1] == "[DONE]", lines[-1]
    return [json.loads(line) for line in lines[:-1]]


def test_answers_are_those_of_the_server(router: httpx.Client, servers: list[Server]) -> None:
    direct = servers[0].client.post("/v1/chat/completions", json=QUESTION).json()
    (answer,) = direct["choices"]
    through = router.post("/v1/chat/completions", json=QUESTION)
    assert through.status_code == 200, through.text
    assert through.json()["choices"] == [answer]
    assert through.json()["usage"]["completion_tokens"] == direct["usage"]["completion_tokens"]
    streamed = events(router, {**QUESTION, "stream_options": {"include_usage": True}})
    texts = [choice["delta"].get("content") or "" for event in streamed for choice in event["choices"]]
    assert "".join(texts) == answer["message"]["content"]
    assert streamed[-1]["usage"]["completion_tokens"] == direct["usage"]["completion_tokens"]
    story = {"model": MODEL, "prompt": "Once upon a time", "temperature": 0, "max_tokens": 12}
    of_both = [client.post("/v1/completions", json=story).json()["choices"] for client in (router, servers[0].client)]
    assert of_both[0] == of_both[1]


def test_tools_and_schemas_reach_the_server(router: httpx.Client) -> None:
    add = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}
    tool = {"type": "function", "function": {"name": "add", "parameters": {**add, "required": ["a", "b"]}}}
    body = {**QUESTION, "tools": [tool], "tool_choice": "required", "max_tokens": 100}
    (choice,) = router.post("/v1/chat/completions", json=body).json()["choices"]
    assert json.loads(choice["message"]["tool_calls"][0]["function"]["arguments"]).keys() == {"a", "b"}
    form = {"type": "json_schema", "json_schema": {"name": "sum", "schema": {"enum": [41, 42]}, "strict": True}}
    reply = router.post("/v1/chat/completions", json={**QUESTION, "response_format": form}).json()
    assert json.loads(reply["choices"][0]["message"]["content"]) in (41, 42)


def test_what_a_server_refuses_is_refused_with_its_reason(router: httpx.Client) -> None:
    reply = router.post("/v1/chat/completions", json={**QUESTION, "max_tokens": 100_000})
    assert reply.status_code == 400
    assert "max_tokens" in reply.json()["error"]["message"]


@dataclass
class Clients:
    """Threads that stream one chat after the other, until they are told to stop."""

    client: httpx.Client
    stopped: threading.Event = field(default_factory=threading.Event)
    done: int = 0
    failures: list[str] = field(default_factory=list)

    def run(self, number: int) -> None:
        body = {"model": MODEL, "messages": [{"role": "user", "content": f"Tell me story {number}."}]}
        while not self.stopped.is_set():
            try:
                *_, last = events(self.client, {**body, "max_tokens": 48, "ignore_eos": True})
                assert last["choices"][0]["finish_reason"] == "length", last
            except (AssertionError, httpx.HTTPError) as failure:
                self.failures.append(repr(failure))
            self.done += 1

    @contextlib.contextmanager
    def running(self, count: int) -> Iterator[None]:
        threads = [threading.Thread(target=self.run, args=[number]) for number in range(count)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self.stopped.set()
            for thread in threads:
                thread.join()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", COMMANDS)
def test_no_stream_fails_when_one_of_two_servers_is_stopped(name: str, way: str, tmp_path: Path) -> None:
    with (
        two_servers(tmp_path) as servers,
        router_before(name, servers, tmp_path, ["--policy", "round_robin", *WAYS[way]]) as client,
    ):
        going, staying = servers
        clients = Clients(client)
        with clients.running(4):
            wait_for(lambda: all(server.metric("tgi_batch_current_size") for server in servers), "work for both", 60)
            assert going.stop() == 0
            before = clients.done
            wait_for(lambda: clients.done >= before + 8, "streams of the server that is left", 60)
        assert clients.failures == []
        assert staying.process.poll() is None
        # Who asked for health in time has sent nothing that was refused.
        assert ("shutting_down" in going.output()) == (way == "retries")


def test_smg_sends_nothing_to_a_server_that_others_keep_busy(servers: list[Server], tmp_path: Path) -> None:
    busy, idle = servers
    flags = ["--policy", "least_load", "--load-monitor-interval", "1"]
    long = {"model": MODEL, "prompt": "Once", "n": 16, "max_tokens": 900, "ignore_eos": True, "stream": True}
    with router_before("smg", servers, tmp_path, flags) as client, contextlib.ExitStack() as streams:

        def seen() -> bool:
            loads = client.get("/get_loads").json()["loads"]
            return any(load["worker"] == busy.url and load["num_running_reqs"] > 0 for load in loads)

        streams.enter_context(busy.client.stream("POST", "/v1/completions", json=long))
        wait_for(seen, "the load of a busy server")
        taken_by = {
            client.post("/v1/chat/completions", json=QUESTION).headers["x-smg-routed-worker-id"] for _ in "1234"
        }
        assert taken_by == {idle.url}
