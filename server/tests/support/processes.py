"""Shards in processes of their own, and the router's view of them."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from text_generation_server.pb import generate_pb2 as pb
from text_generation_server.pb import generate_pb2_grpc as pb_grpc

WAIT_S = 90.0
REFUSED = grpc.StatusCode.FAILED_PRECONDITION
COMMAND = [sys.executable, "-m", "text_generation_server"]


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


def request_of(number: int, prompt: list[int]) -> pb.Request:
    """In the row of its number; every second one samples."""
    parameters = pb.NextTokenChooserParameters(
        temperature=0.7 if number % 2 else 1.0,
        top_p=0.9 if number % 2 else 1.0,
        typical_p=1.0,
        do_sample=bool(number % 2),
        seed=7,
        repetition_penalty=1.0,
    )
    slots = [pb.SlotRange(start=40 * number, length=len(prompt) + 12)]
    return pb.Request(id=number, row=number, input_ids=prompt, parameters=parameters, slots=slots)


class RankClients:
    """The router's view of all ranks: every call goes to each, and they agree."""

    def __init__(self, sockets: Path, world_size: int) -> None:
        self.channels = [grpc.insecure_channel(f"unix://{sockets}/shard-{rank}") for rank in range(world_size)]
        self.stubs = [pb_grpc.TextGenerationServiceStub(channel) for channel in self.channels]

    def call(self, name: str, request: object) -> list[Any]:
        futures = [getattr(stub, name).future(request, timeout=WAIT_S) for stub in self.stubs]
        return [future.result() for future in futures]

    def generate(self, prompts: list[list[int]]) -> list[list[int]]:
        """Ids of each prompt, computed in chunks of at most 7; every second request samples with the seed 7, and the
        first two choose among even ids. Masks come before plans with even numbers and after the others.
        """
        (warmed, *_) = self.call("Warmup", pb.WarmupRequest(max_batch_prefill_tokens=128, max_batch_size=8))
        requests = [request_of(i, prompt) for i, prompt in enumerate(prompts)]
        tokens: list[list[int]] = [[] for _ in prompts]
        done = [0 for _ in prompts]
        number = 0
        while any(len(each) < 12 for each in tokens):
            plan = pb.StepPlan(number=number, admit=requests if number == 0 else [])
            for row, prompt in enumerate(prompts):
                if done[row] < len(prompt):
                    count = min(7, len(prompt) - done[row])
                    plan.chunks.add(row=row, first=done[row], count=count)
                    done[row] += count
                elif len(tokens[row]) < 12:
                    plan.decode.append(row)
            ends = {chunk.row for chunk in plan.chunks if done[chunk.row] == len(prompts[chunk.row])}
            plan.constrained.extend({0, 1} & (ends | set(plan.decode)))
            replies = self._step(plan)
            for reply in replies:
                assert (reply.rows, reply.ids, reply.failures) == (replies[0].rows, replies[0].ids, [])
            assert len(replies[0].logprobs) == len(replies[0].ids)
            assert not any(reply.logprobs for reply in replies[1:])
            for row, token in zip(replies[0].rows, replies[0].ids, strict=True):
                tokens[row].append(token)
            number += 1
        assert warmed.cost.times_ms
        return tokens

    def lose_masks(self, prompt: list[int]) -> list[list[int]]:
        """Masks of a step reach the first rank alone, then everything is dropped. Returns what each rank chooses in the
        step after it: they must not have parted in their collectives.
        """
        plan = pb.StepPlan(number=0, admit=[request_of(0, prompt)], constrained=[0])
        plan.chunks.add(row=0, first=0, count=len(prompt))
        self.call("ClearCache", pb.ClearCacheRequest())
        lost = [stub.Prefill.future(plan, timeout=WAIT_S) for stub in self.stubs]
        self.stubs[0].Constrain(pb.StepMasks(number=0, rows=[0], slots=[0]), timeout=WAIT_S)
        self.call("Health", pb.HealthRequest())
        self.call("ClearCache", pb.ClearCacheRequest())
        assert [step.code() for step in lost] == [grpc.StatusCode.OK, *[REFUSED] * (len(lost) - 1)]
        del plan.constrained[:]
        return [list(reply.ids) for reply in self.call("Prefill", plan)]

    def _step(self, plan: pb.StepPlan) -> list[Any]:
        name = "Prefill" if plan.chunks else "Decode"
        if not plan.constrained:
            return self.call(name, plan)
        masks = pb.StepMasks(number=plan.number, rows=plan.constrained, slots=[1] * len(plan.constrained))
        masks.writes.add(slot=1, bits=b"\x55" * 48)
        if plan.number % 2 == 0:
            self.call("Constrain", masks)
            return self.call(name, plan)
        steps = [getattr(stub, name).future(plan, timeout=WAIT_S) for stub in self.stubs]
        self.call("Constrain", masks)
        return [step.result() for step in steps]
