"""Replicas of the server on Ray Serve: each is a launcher of its own, and what Serve routes to it is passed through.

    serve run text_generation_ray:app model_id=meta-llama/Llama-3.1-8B-Instruct replicas=2 gpus=1 flags="--quantize fp8"

Serve decides which replica gets a request, and starts another one where a replica is lost. Streams pass as they come.
"""

import asyncio
import shlex
import signal
import socket
from collections.abc import AsyncIterator

import aiohttp
from pydantic import BaseModel
from ray import serve
from ray.serve import Application
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse

HOP_BY_HOP = {"connection", "content-length", "host", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade"}
STOP_LIMIT_S = 100


class Arguments(BaseModel):
    """What `serve run` takes."""

    model_id: str
    replicas: int = 1
    gpus: int = 0  # of a replica; Ray says which by CUDA_VISIBLE_DEVICES, which the launcher counts
    flags: str = ""  # others of text-generation-launcher, as on a command line


@serve.deployment(max_ongoing_requests=1024, health_check_period_s=0.5, graceful_shutdown_timeout_s=STOP_LIMIT_S)
class TextGeneration:
    """One replica. Lives in an actor of Ray; every method runs on its event loop."""

    async def __init__(self, command: list[str]) -> None:
        """Starts the launcher and waits until it serves. Raises RuntimeError where it ends instead."""
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            port = listener.getsockname()[1]
        # The launcher ends in order when the actor is lost, and its router and shards with it.
        command = ["setpriv", "--pdeathsig", "TERM", *command, "--hostname", "127.0.0.1", "--port", str(port)]
        self._server = await asyncio.create_subprocess_exec(*command)
        self._ended = asyncio.create_task(self._server.wait())
        no_limit = aiohttp.ClientTimeout(total=None)
        self._session = aiohttp.ClientSession(f"http://127.0.0.1:{port}", timeout=no_limit, auto_decompress=False)
        while not await self._ready():
            if self._ended.done():
                raise RuntimeError(f"text-generation-launcher ended with {self._server.returncode}; its log says why")
            await asyncio.wait([self._ended], timeout=0.2)

    async def _ready(self) -> bool:
        try:
            async with self._session.get("/ready") as reply:
                return reply.status == 200
        except aiohttp.ClientError:
            return False

    async def check_health(self) -> None:
        """Asked by Serve; three failures are a lost replica, which it replaces. Shards that start again are none."""
        if self._ended.done():
            raise RuntimeError(f"text-generation-launcher ended with {self._server.returncode}")

    async def __call__(self, request: Request) -> Response:
        """Passes a request on, and the answer back as it comes."""
        try:
            answer = await self._session.request(
                request.method,
                request.url.path,
                params=request.query_params.multi_items(),
                headers=[(name, value) for name, value in request.headers.items() if name not in HOP_BY_HOP],
                data=await request.body(),
            )
        except aiohttp.ClientError:
            return PlainTextResponse("this replica is starting again", 503, {"retry-after": "1"})
        headers = {name: value for name, value in answer.headers.items() if name.lower() not in HOP_BY_HOP}
        return StreamingResponse(content(answer), answer.status, headers)

    async def __del__(self) -> None:
        """Called by Serve when the replica has nothing more to do."""
        if not self._ended.done():
            self._server.send_signal(signal.SIGTERM)
            await asyncio.wait([self._ended], timeout=STOP_LIMIT_S)
        await self._session.close()


async def content(answer: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """The body. A client that has gone closes it, so the server stops generating for it."""
    async with answer:
        async for part in answer.content.iter_any():
            yield part


def app(arguments: Arguments) -> Application:
    """What `serve run` starts."""
    command = ["text-generation-launcher", "--model-id", arguments.model_id, *shlex.split(arguments.flags)]
    options = {"num_gpus": arguments.gpus} if arguments.gpus else {}
    return TextGeneration.options(num_replicas=arguments.replicas, ray_actor_options=options).bind(command)
