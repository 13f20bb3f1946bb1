"""Start, drain and loss of processes, with real signals."""

from __future__ import annotations

import json
import os
import signal
import threading
from pathlib import Path

import httpx
import pytest
from harness import Server, alive, descendants, serving, start, wait_for


def stream_in_background(server: Server, max_new_tokens: int) -> tuple[threading.Thread, list[str], threading.Event]:
    """Starts a stream; the event is set at its first token."""
    lines: list[str] = []
    started = threading.Event()

    def read() -> None:
        body = {"inputs": "Once upon a time", "parameters": {"max_new_tokens": max_new_tokens, "details": True}}
        with (
            httpx.Client(base_url=server.url, timeout=60) as client,
            client.stream("POST", "/generate_stream", json=body) as reply,
        ):
            for line in reply.iter_lines():
                if line.startswith("data: "):
                    lines.append(line.removeprefix("data: "))
                    started.set()

    thread = threading.Thread(target=read)
    thread.start()
    return thread, lines, started


def gone(server: Server, pids: list[int]) -> None:
    wait_for(lambda: not any(alive(pid) for pid in pids), f"no process of {pids} left")
    wait_for(lambda: server.sockets() == [], "no socket left")


def test_sigterm_lets_streams_finish(tiny_llama: Path, tmp_path: Path) -> None:
    with serving(tiny_llama, tmp_path, "--num-shard", "2") as server:
        pids = descendants(server.process.pid)
        assert len(server.shards()) == 2
        thread, lines, started = stream_in_background(server, 300)
        assert started.wait(60)
        assert server.stop() == 0
        thread.join(60)
        assert json.loads(lines[-1])["details"]["generated_tokens"] == len(lines)
        gone(server, pids)


def test_the_last_loss_of_a_shard_stops_the_server_with_one_clear_line(tiny_llama: Path, tmp_path: Path) -> None:
    with serving(tiny_llama, tmp_path, "--max-shard-losses", "1", "--drain-delay", "60") as server:
        pids = descendants(server.process.pid)
        (shard,) = server.shards()
        thread, lines, started = stream_in_background(server, 480)
        assert started.wait(60)
        os.kill(shard, signal.SIGKILL)
        assert server.process.wait(timeout=30) == 1
        assert "hard 0" in server.output()
        thread.join(60)
        assert json.loads(lines[-1])["error_type"] == "shutting_down"
        gone(server, pids)


def has_torch(pid: int) -> bool:
    """Whether the process has loaded torch."""
    try:
        return "libtorch" in Path(f"/proc/{pid}/maps").read_text()
    except OSError:
        return False


@pytest.mark.parametrize("are_stopped", [False, True])
def test_nothing_outlives_a_killed_launcher(tiny_llama: Path, tmp_path: Path, are_stopped: bool) -> None:
    """Nor what a signal has stopped, or waits on standby."""
    standby = {"STANDBY_SHARDS": "true"}
    with serving(tiny_llama, tmp_path, "--num-shard", "2", environment=standby) as server:
        # Two shards, and two on standby: from the first line of their code on they end with the launcher.
        wait_for(lambda: sum(map(has_torch, descendants(server.process.pid))) == 4, "four processes of shards")
        pids = descendants(server.process.pid)
        assert server.sockets()
        for pid in pids if are_stopped else ():
            os.kill(pid, signal.SIGSTOP)
        server.process.kill()
        server.process.wait()
        gone(server, pids)
        assert list(server.runtime_dir.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--quantize", "gptq"], "quantize"),
        (["--max-input-tokens", "100", "--max-total-tokens", "50"], "max"),
        (["--max-total-tokens", "1000000"], "max"),
        (["--tool-call-parser", "no_such_format"], "--tool-call-parser"),
        (["--reasoning-parser", "openai"], "`--reasoning-parser openai` does not fit this model"),
    ],
)
def test_a_bad_flag_is_one_error_that_names_it(
    tiny_llama: Path, tmp_path: Path, arguments: list[str], message: str
) -> None:
    server = start(tiny_llama, tmp_path, *arguments)
    assert server.process.wait(timeout=60) == 1
    assert message in server.output()
    assert "Starting router" not in server.output()
    assert server.sockets() == []


def test_a_missing_model_is_an_error(tmp_path: Path) -> None:
    server = start(tmp_path / "nowhere", tmp_path)
    assert server.process.wait(timeout=60) == 1
    assert "nowhere" in server.output()


def test_a_taken_port_is_an_error(tiny_llama: Path, tmp_path: Path, server: Server) -> None:
    port = server.url.rsplit(":", 1)[1]
    second = start(tiny_llama, tmp_path, "--port", port)
    assert second.process.wait(timeout=120) == 1
    assert port in second.output()
    assert server.client.get("/health").status_code == 200
