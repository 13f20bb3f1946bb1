"""Shards are lost while streams run: every stream gets the very tokens that it would have got."""

from __future__ import annotations

import json
import os
import random
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from harness import Server, serving, wait_for

STREAMS = 16
TOKENS = 120
RECOVERY_LIMIT_S = 120.0


class Load:
    """Streams at once, half of them greedy and half sampled with seeds, and the ids that they have got so far."""

    def __init__(self, server: Server, prompts: list[str]) -> None:
        self._server = server
        self.ids: list[list[int]] = [[] for _ in range(STREAMS)]
        self._bodies = [
            {
                "inputs": prompts[number % len(prompts)] + f" {number}",
                "parameters": {
                    "max_new_tokens": TOKENS,
                    **({"do_sample": True, "seed": number, "temperature": 0.9} if number % 2 else {}),
                },
            }
            for number in range(STREAMS)
        ]

    def run(self) -> list[list[int]]:
        """Returns the ids of all streams, once they have ended."""
        with ThreadPoolExecutor(STREAMS) as pool:
            list(pool.map(self._stream, range(STREAMS)))
        return self.ids

    def steps(self) -> int:
        """How many tokens the stream has that is farthest: others may have ended."""
        return max(map(len, self.ids))

    def _stream(self, number: int) -> None:
        with (
            httpx.Client(base_url=self._server.url, timeout=RECOVERY_LIMIT_S) as client,
            client.stream("POST", "/generate_stream", json=self._bodies[number]) as reply,
        ):
            for line in reply.iter_lines():
                if line.startswith("data:"):
                    event = json.loads(line.removeprefix("data:"))
                    if "token" not in event:
                        raise AssertionError(event)
                    self.ids[number].append(event["token"]["id"])


def disturbed(server: Server, prompts: list[str], rank: int, number: signal.Signals, step: int) -> list[list[int]]:
    """What the streams get where a signal reaches a shard once they have some `step` tokens."""
    load = Load(server, prompts)
    running = threading.Thread(target=load.run)
    running.start()
    try:
        wait_for(lambda: load.steps() >= step, f"{step} tokens of a stream", RECOVERY_LIMIT_S)
        os.kill(server.shard(rank), number)
        wait_for(lambda: server.client.get("/health").status_code == 503, "a server that is not ready")
    finally:
        running.join(RECOVERY_LIMIT_S)
    assert not running.is_alive()
    wait_for(lambda: server.client.get("/health").status_code == 200, "a server that has recovered", RECOVERY_LIMIT_S)
    return load.ids


@pytest.mark.parametrize(
    ("shards", "losses"),
    [
        (1, [(0, signal.SIGKILL)]),
        (2, [(0, signal.SIGKILL), (1, signal.SIGKILL), (1, signal.SIGSTOP)]),
        (4, [(3, signal.SIGKILL)]),
    ],
)
def test_streams_go_on_after_the_loss_of_a_shard(
    tiny_llama: Path, tmp_path: Path, prompts: list[str], shards: int, losses: list[tuple[int, signal.Signals]]
) -> None:
    choose = random.Random(shards)
    flags = ["--num-shard", str(shards), "--max-shard-losses", "9", "--deterministic", "--standby-shards", "true"]
    with serving(tiny_llama, tmp_path, *flags) as server:
        expected = Load(server, prompts).run()
        assert all(expected)
        for rank, number in losses:
            step = choose.randrange(TOKENS // 2)
            assert disturbed(server, prompts, rank, number, step) == expected
        assert server.stop() == 0
        assert server.output().count("restarting all shards") == len(losses)


def test_a_shard_that_is_lost_while_nobody_asks_is_warm_before_the_next_request(
    tiny_llama: Path, tmp_path: Path
) -> None:
    """Neither a request nor a probe of `/health` tells the router."""
    with serving(tiny_llama, tmp_path) as server:
        expected = server.ids("Once upon a time")
        os.kill(server.shard(0), signal.SIGKILL)
        wait_for(lambda: server.metric("tgi_shard_restarts") == 1, "shards that serve again", RECOVERY_LIMIT_S)
        assert server.ids("Once upon a time") == expected
