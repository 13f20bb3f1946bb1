"""Start and stop of a shard process: socket, gRPC server, engine thread, signals, the watch on the parent."""

import asyncio
import logging
import os
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from grpc import aio
from grpc_health.v1 import health, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from ..config.cluster import ClusterListener
from ..engine.worker import EngineWorker
from ..errors import ConfigurationError, EngineFailed
from ..launcher import end_with_launcher
from ..pb import generate_pb2, generate_pb2_grpc
from .cluster import listen_for_nodes
from .interceptor import ErrorInterceptor
from .parent import watch_parent
from .servicer import HealthServicer, TextGenerationServicer
from .signals import stopping
from .socket import SocketFile

if TYPE_CHECKING:
    from .traces import StepTraces

logger = logging.getLogger(__name__)

STOP_LIMIT_S = 3.0
"""Limit of an orderly end: of calls in flight, then of the engine's threads. The launcher kills after 5 s."""
_CALLS_SHARE = 2 / 3
"""Fraction of that time for the calls; the threads, which must free what they hold, get the rest."""
ORPHAN_LIMIT_S = 1.5
"""Limit of an orderly end once the parent is gone: nobody waits for an answer then, and docs/operation.md promises 2 s.
"""
_OPTIONS = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.so_reuseport", 0),
)


@dataclass(frozen=True)
class TraceSettings:
    """The OTLP collector (gRPC), the name of this server in it, and the rank of this shard."""

    endpoint: str
    service_name: str | None
    rank: int


@dataclass(frozen=True)
class ServiceSettings:
    """Settings of a shard's service.

    - `urls`: where all ranks listen, in rank order.
    - `model_folder`: the folder of the tokenizer, for the Tokens call.
    - `rendezvous`: the file by which the ranks met.
    - `group`: the name of this start of all ranks.
    - `traces`: where spans of steps go.
    - `listener`: where the router of another node connects.
    """

    socket_path: Path
    urls: Sequence[str]
    model_folder: Path
    rendezvous: Path | None = None
    group: str = ""
    socket_dir_owned: bool = False
    exit_on_stdin_eof: bool = False
    traces: TraceSettings | None = None
    listener: ClusterListener | None = None


class ShardServer:
    """Serves `worker` until a signal, the end of the parent or a failure of the engine.

    It runs once. All methods run on the event loop, except `_orphaned`.
    """

    def __init__(self, worker: EngineWorker, settings: ServiceSettings) -> None:
        self._worker = worker
        self._settings = settings
        self._socket = SocketFile(settings.socket_path, settings.socket_dir_owned)
        self._stop = asyncio.Event()
        self._stop_limit_s = STOP_LIMIT_S
        self._traces = _traces(settings.traces)

    def stop(self) -> None:
        """Begins an orderly end; `run` returns once it is done."""
        self._stop.set()

    async def run(self) -> None:
        """Returns after an orderly end.

        Raises `ConfigurationError` when the socket cannot be made, `EngineFailed` when the engine was poisoned, and
        what `worker.ready` holds when the model cannot be loaded.
        """
        loop = asyncio.get_running_loop()
        self._socket.prepare()
        server, health_servicer = self._build_server()
        try:
            await server.start()
            self._socket.restrict()
            for number in stopping():
                loop.add_signal_handler(number, self.stop)
            if self._settings.exit_on_stdin_eof:
                watch_parent(lambda: self._orphaned(loop))
                # A process that SIGSTOP has stopped reads nothing.
                end_with_launcher()
            self._worker.start()
            await self._serve(health_servicer)
        finally:
            await self._end(server, health_servicer)

    async def _end(self, server: aio.Server, health_servicer: HealthServicer) -> None:
        """Lets calls and steps in flight finish within the limit: a step whose other ranks are gone never does."""
        deadline = time.monotonic() + self._stop_limit_s
        self._worker.expect_no_masks()
        health_servicer.end_watches()
        await server.stop(self._stop_limit_s * _CALLS_SHARE)
        self._socket.remove()
        # Nobody waits for a load that is still running: its thread is a daemon and ends with the process.
        if self._worker.ready.done() and not self._worker.stop(max(0.0, deadline - time.monotonic())):
            logger.warning("the engine did not finish its work in time and is stopped")
        if self._traces is not None:
            self._traces.end(max(0.0, deadline - time.monotonic()))

    async def _serve(self, health_servicer: HealthServicer) -> None:
        stopped = asyncio.ensure_future(self._stop.wait())
        ready = asyncio.wrap_future(self._worker.ready)
        failed = asyncio.wrap_future(self._worker.failed)
        await asyncio.wait((stopped, ready), return_when=asyncio.FIRST_COMPLETED)
        if stopped.done():
            return
        info = ready.result()
        await health_servicer.refresh()
        logger.info(
            "serving",
            extra={"socket": str(self._settings.socket_path), "device": info.device_type, "dtype": info.dtype},
        )
        await asyncio.wait((stopped, failed), return_when=asyncio.FIRST_COMPLETED)
        await health_servicer.refresh()
        if failed.done():
            raise EngineFailed("the engine failed; its log record says why")

    def _build_server(self) -> tuple[aio.Server, HealthServicer]:
        settings = self._settings
        server = aio.server(interceptors=(ErrorInterceptor(),), options=_OPTIONS)
        tokenizer_file = settings.model_folder / "tokenizer.json"
        servicer = TextGenerationServicer(
            self._worker,
            settings.urls,
            tokenizer_file,
            settings.group,
            _abandon,
            self._traces,
            settings.socket_path.parent,
        )
        generate_pb2_grpc.add_TextGenerationServiceServicer_to_server(servicer, server)
        health_servicer = HealthServicer(self._worker)
        health_pb2_grpc.add_HealthServicer_to_server(health_servicer, server)
        names = (
            generate_pb2.DESCRIPTOR.services_by_name["TextGenerationService"].full_name,
            health.SERVICE_NAME,
            reflection.SERVICE_NAME,
        )
        reflection.enable_server_reflection(names, server)
        # The socket must never exist with wider permissions; no other thread makes files at this point.
        mask = os.umask(0o177)
        try:
            # Without slashes after the scheme: gRPC counts them as part of the path, of which 107 bytes fit.
            server.add_insecure_port(f"unix:{settings.socket_path}")
        except RuntimeError as error:
            raise ConfigurationError(f"cannot listen on {settings.socket_path}: {error}") from error
        finally:
            os.umask(mask)
        if settings.listener is not None:
            listen_for_nodes(server, settings.listener)
        return server, health_servicer

    def _orphaned(self, loop: asyncio.AbstractEventLoop) -> None:
        """Ends the process even when the event loop or the engine thread hangs. It runs on the watching thread."""
        self._stop_limit_s = ORPHAN_LIMIT_S / 2
        # The parent, while it lives, removes the file: a rank that leaves must not take it from ranks that use it.
        if self._settings.rendezvous is not None:
            self._settings.rendezvous.unlink(missing_ok=True)
        self._socket.remove_with_folder()
        if not loop.is_closed():
            loop.call_soon_threadsafe(self.stop)
        timer = threading.Timer(ORPHAN_LIMIT_S, os._exit, args=(0,))
        timer.daemon = True
        timer.start()


def _traces(settings: TraceSettings | None) -> "StepTraces | None":
    if settings is None:
        return None
    from .traces import StepTraces

    return StepTraces.to(settings.endpoint, settings.service_name, settings.rank)


def _abandon(reason: str) -> None:
    """Ends the process at once. Whoever starts the group again cleans up."""
    logger.error("abandoned: %s", reason)
    logging.shutdown()
    os._exit(1)


def serve(worker: EngineWorker, settings: ServiceSettings) -> None:
    """Runs a shard until it is told to stop; see `ShardServer.run` for errors."""

    async def run() -> None:
        await ShardServer(worker, settings).run()

    asyncio.run(run())
