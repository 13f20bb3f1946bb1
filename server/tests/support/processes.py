"""Shards in processes of their own, and the router's view of them."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from text_generation_server.pb import generate_pb2 as pb
from text_generation_server.pb import generate_pb2_grpc as pb_grpc

WAIT_S = 90.0
COMMAND = [sys.executable, "-m", "text_generation_server.cli"]


@contextmanager
def started(*arguments: str, command: Sequence[str] = COMMAND, **environment: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [*command, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def serve_arguments(model: Path, sockets: Path, *more: str) -> list[str]:
    return ["serve", str(model), "--uds-path", str(sockets / "shard"), "--json-output", *more]


def wait_until_serving(process: subprocess.Popen[str]) -> None:
    """Reads the log up to the record that says so, then asks the health service."""
    assert process.stdout is not None
    for line in process.stdout:
        record = json.loads(line)
        if record["message"] == "serving":
            with grpc.insecure_channel(f"unix:{record['socket']}") as channel:
                reply = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=WAIT_S)
            assert reply.status == health_pb2.HealthCheckResponse.SERVING
            return
    raise AssertionError(process.stderr.read() if process.stderr else "no output")


def close_stdin(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.close()
    process.stdin = None


class Group:
    """The router's view of all ranks: every call goes to each, generations are joined."""

    def __init__(self, sockets: Path, world_size: int) -> None:
        self.channels = [grpc.insecure_channel(f"unix://{sockets}/shard-{rank}") for rank in range(world_size)]
        self.stubs = [pb_grpc.TextGenerationServiceStub(channel) for channel in self.channels]

    def call(self, name: str, request: object) -> list[object]:
        futures = [getattr(stub, name).future(request, timeout=WAIT_S) for stub in self.stubs]
        return [future.result() for future in futures]

    def generate(self, prompts: list[list[int]]) -> dict[int, list[int]]:
        """Ids by request; every second request samples with the seed 7."""
        self.call("Warmup", pb.WarmupRequest(max_batch_prefill_tokens=128, max_batch_size=8))
        requests = [
            pb.Request(
                id=i,
                input_ids=prompt,
                parameters=pb.NextTokenChooserParameters(
                    temperature=0.7 if i % 2 else 1.0,
                    top_p=0.9 if i % 2 else 1.0,
                    typical_p=1.0,
                    do_sample=bool(i % 2),
                    seed=7,
                    repetition_penalty=1.0,
                ),
                stopping_parameters=pb.StoppingCriteriaParameters(max_new_tokens=12, ignore_eos_token=True),
                slots=[pb.SlotRange(start=40 * i, length=len(prompt) + 12)],
            )
            for i, prompt in enumerate(prompts)
        ]
        tokens: dict[int, list[int]] = {i: [] for i in range(len(prompts))}
        replies = self.call("Prefill", pb.PrefillRequest(batch=pb.Batch(id=1, requests=requests)))
        while True:
            for reply in replies:
                assert reply.batch == replies[0].batch
                assert not reply.failures
                for generation in reply.generations:
                    tokens[generation.request_id] += generation.tokens.ids
            if not replies[0].HasField("batch"):
                return tokens
            replies = self.call("Decode", pb.DecodeRequest(batches=[replies[0].batch]))
