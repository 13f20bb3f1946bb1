"""A shard that serves the fake model in this process, and short ways to call it over gRPC."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import grpc
import pytest
from grpc import aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from text_generation_server.engine.requests import ShardEngine
from text_generation_server.engine.worker import EngineWorker
from text_generation_server.pb import generate_pb2 as pb
from text_generation_server.pb import generate_pb2_grpc as pb_grpc
from text_generation_server.service.server import ServiceSettings, ShardServer, TraceSettings

from .engine_driver import make_engine
from .fake_model import FakeModel

WAIT_S = 20.0


class ServedShard:
    """A shard that serves, and what a test needs to talk to it."""

    def __init__(self, server: ShardServer, worker: EngineWorker, task: "asyncio.Task[None]", socket: Path) -> None:
        self.server = server
        self.worker = worker
        self.task = task
        self.socket = socket
        self.channel = aio.insecure_channel(f"unix://{socket}")
        self.stub = pb_grpc.TextGenerationServiceStub(self.channel)
        self.health = health_pb2_grpc.HealthStub(self.channel)

    async def status(self, service: str = "") -> int:
        request = health_pb2.HealthCheckRequest(service=service)
        return (await self.health.Check(request, wait_for_ready=True, timeout=WAIT_S)).status


@asynccontextmanager
async def serving(
    folder: Path,
    build: Callable[[], ShardEngine] | None = None,
    name: str = "shard-0",
    traces: TraceSettings | None = None,
) -> AsyncIterator[ServedShard]:
    worker = EngineWorker(build or (lambda: cast("ShardEngine", make_engine(limits=None))))
    socket = folder / name
    urls = [f"unix://{folder}/shard-{rank}" for rank in range(2)]
    settings = ServiceSettings(socket, urls, folder, group="start-1", traces=traces)
    server = ShardServer(worker, settings)
    task = asyncio.create_task(server.run())
    running = ServedShard(server, worker, task, socket)
    try:
        yield running
    finally:
        await running.channel.close()
        server.stop()
        if not task.done():
            await asyncio.wait_for(task, WAIT_S)


async def ready(running: ServedShard) -> None:
    await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(running.worker.ready)), WAIT_S)


def run(test: Awaitable[None]) -> None:
    async def main() -> None:
        await test

    asyncio.run(main())


def request_pb(request_id: int, ids: Sequence[int] = (1, 2, 3), **fields: Any) -> pb.Request:
    """A request in the row of its own number, greedy unless `parameters` say else."""
    off = {"temperature": 1.0, "top_p": 1.0, "typical_p": 1.0, "repetition_penalty": 1.0}
    parameters = pb.NextTokenChooserParameters(**{**off, **fields.pop("parameters", {})})
    slots = [pb.SlotRange(start=16 * request_id, length=16)]
    return pb.Request(id=request_id, row=request_id, input_ids=ids, slots=slots, parameters=parameters, **fields)


def admitting(number: int, *requests: pb.Request, **fields: Any) -> pb.StepPlan:
    """A plan that computes these prompts whole."""
    chunks = [pb.Chunk(row=request.row, first=0, count=len(request.input_ids)) for request in requests]
    return pb.StepPlan(number=number, admit=requests, chunks=chunks, **fields)


async def error_of(call: Awaitable[object]) -> tuple[grpc.StatusCode, str, str]:
    with pytest.raises(aio.AioRpcError) as caught:
        await call
    metadata = {str(key): value for key, value in caught.value.trailing_metadata()}
    return caught.value.code(), str(metadata.get("error-reason")), caught.value.details() or ""


WARMUP = pb.WarmupRequest(max_batch_prefill_tokens=64, max_batch_size=4)


def greedy(prompt: Sequence[int], steps: int) -> list[int]:
    """Oracle: argmax over the fake model's own arithmetic."""
    tokens = list(prompt)
    for _ in range(steps):
        tokens.append(int(FakeModel().logits_after(tokens).argmax()))
    return tokens[len(prompt) :]
