# Handlers carry the names, and the arguments, that the generated code calls them by.
# ruff: noqa: ARG002, D102
"""The RPCs of the shard contract: they translate messages, hand them to the engine thread, and translate results."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import grpc
from grpc_health.v1 import health, health_pb2
from tokenizers import Tokenizer

from ..engine.worker import EngineWorker
from ..errors import EngineError, NotReady
from ..pb import generate_pb2 as pb
from ..pb import generate_pb2_grpc as pb_grpc
from . import convert
from .pixels import read_pixels

if TYPE_CHECKING:
    from .traces import StepTraces

logger = logging.getLogger(__name__)

T = TypeVar("T")


class TextGenerationServicer(pb_grpc.TextGenerationServiceServicer):
    """Handlers of the RPCs, on the event loop. Only `worker` touches tensors, so no handler ever blocks the loop."""

    def __init__(
        self,
        worker: EngineWorker,
        urls: Sequence[str],
        tokenizer_file: Path,
        group: str,
        abandon: Callable[[str], None],
        traces: "StepTraces | None" = None,
        media_folder: Path | None = None,
    ) -> None:
        """`abandon` ends the process, with a reason; `traces` gets the steps that compute traced requests. Files of
        pixels lie in `media_folder`.
        """
        self._worker = worker
        self._urls = urls
        self._group = group
        self._abandon = abandon
        self._traces = traces
        self._media_folder = media_folder
        self._tokenizer_file = tokenizer_file
        self._tokenizer: Tokenizer | None = None

    async def Info(self, request: pb.InfoRequest, context: Any) -> pb.InfoResponse:
        return convert.info_to_pb(self._worker.info(), self._group)

    async def ServiceDiscovery(self, request: pb.ServiceDiscoveryRequest, context: Any) -> pb.ServiceDiscoveryResponse:
        return pb.ServiceDiscoveryResponse(urls=self._urls)

    async def Health(self, request: pb.HealthRequest, context: Any) -> pb.HealthResponse:
        self._worker.check_health()
        return pb.HealthResponse()

    async def Warmup(self, request: pb.WarmupRequest, context: Any) -> pb.WarmupResponse:
        limits = convert.warmup_limits_from_pb(request)
        return convert.warmup_result_to_pb(await _outcome(self._worker.warmup(limits)))

    async def Prefill(self, request: pb.StepPlan, context: Any) -> pb.StepReply:
        return await self._step(request)

    async def Decode(self, request: pb.StepPlan, context: Any) -> pb.StepReply:
        return await self._step(request)

    async def Constrain(self, request: pb.StepMasks, context: Any) -> pb.StepMasksResponse:
        self._worker.constrain(convert.masks_from_pb(request))
        return pb.StepMasksResponse()

    async def PutMedia(self, request: pb.PutMediaRequest, context: Any) -> pb.PutMediaResponse:
        self._worker.check_media()
        pixels = await asyncio.to_thread(read_pixels, request, self._media_folder)
        put = convert.media_put_from_pb(request, pixels)
        await _outcome(self._worker.submit(lambda engine: engine.put_media(put)))
        return pb.PutMediaResponse()

    async def LoadAdapter(self, request: pb.LoadAdapterRequest, context: Any) -> pb.LoadAdapterResponse:
        source = convert.adapter_source_from_pb(request)
        return convert.adapter_loaded_to_pb(await _outcome(self._worker.load_adapter(source)))

    async def UnloadAdapter(self, request: pb.UnloadAdapterRequest, context: Any) -> pb.UnloadAdapterResponse:
        generation = request.generation
        await _outcome(self._worker.submit(lambda engine: engine.unload_adapter(generation)))
        return pb.UnloadAdapterResponse()

    async def FilterBatch(self, request: pb.FilterBatchRequest, context: Any) -> pb.FilterBatchResponse:
        request_ids = tuple(request.request_ids)
        kept = await _outcome(self._worker.submit(lambda engine: engine.filter_batch(request_ids)))
        return pb.FilterBatchResponse(request_ids=kept)

    async def ClearCache(self, request: pb.ClearCacheRequest, context: Any) -> pb.ClearCacheResponse:
        request_id = request.request_id if request.HasField("request_id") else None
        await _outcome(self._worker.clear_cache(request_id))
        return pb.ClearCacheResponse()

    async def Abandon(self, request: pb.AbandonRequest, context: Any) -> pb.AbandonResponse:
        self._abandon(request.reason)
        return pb.AbandonResponse()

    async def Tokens(self, request: pb.TokensRequest, context: Any) -> pb.TokensResponse:
        return pb.TokensResponse(count=await asyncio.to_thread(self._count_tokens, request.text))

    async def _step(self, request: pb.StepPlan) -> pb.StepReply:
        if self._traces is None or not request.trace_links:
            return await self._reply(request)
        with self._traces.step(request) as note:
            reply = await self._reply(request)
            note(reply)
            return reply

    async def _reply(self, request: pb.StepPlan) -> pb.StepReply:
        return convert.reply_to_pb(await _outcome(self._worker.step(convert.plan_from_pb(request))))

    def _count_tokens(self, text: str) -> int:
        if self._tokenizer is None:
            if not self._tokenizer_file.is_file():
                raise NotReady("the model folder has no tokenizer.json, so this shard cannot count tokens")
            self._tokenizer = Tokenizer.from_file(str(self._tokenizer_file))
        return len(self._tokenizer.encode(text).ids)


async def _outcome(future: "Future[T]") -> T:
    """Waits for a future. A caller that goes away does not cancel it: the futures of `EngineWorker` cannot be
    cancelled.
    """
    return await asyncio.wrap_future(future)


# The type stubs lack the asyncio half of grpc_health.
class HealthServicer(health.aio.HealthServicer):  # pyright: ignore[reportUntypedBaseClass, reportAttributeAccessIssue]
    """`grpc.health.v1`, answered from the engine's heartbeat at the moment of the question."""

    _SERVICES = ("", pb.DESCRIPTOR.services_by_name["TextGenerationService"].full_name)

    def __init__(self, worker: EngineWorker) -> None:
        super().__init__()
        self._worker = worker
        self._serves = False
        self._watches: set[asyncio.Future[None]] = set()
        self._ends = False

    async def refresh(self) -> None:
        """Tells watchers the health of the engine, and logs when the engine stops serving."""
        status = health_pb2.HealthCheckResponse.SERVING
        try:
            self._worker.check_health()
        except EngineError as error:
            status = health_pb2.HealthCheckResponse.NOT_SERVING
            if self._serves:
                logger.error("the shard has stopped serving: %s", error)
        self._serves = status == health_pb2.HealthCheckResponse.SERVING
        for service in self._SERVICES:
            await self.set(service, status)

    def end_watches(self) -> None:
        """Ends the streams of watchers, which would otherwise last as long as the watchers want."""
        self._ends = True
        for watch in self._watches:
            watch.cancel()

    async def Watch(self, request: health_pb2.HealthCheckRequest, context: Any) -> None:
        watch = asyncio.ensure_future(super().Watch(request, context))
        self._watches.add(watch)
        try:
            if not self._ends:
                await asyncio.wait((watch,))
        finally:
            # gRPC cancels this call when its watcher leaves.
            watch.cancel()
            self._watches.discard(watch)
        if self._ends:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the shard is stopping")
        await watch

    async def Check(self, request: health_pb2.HealthCheckRequest, context: Any) -> health_pb2.HealthCheckResponse:
        await self.refresh()
        return await super().Check(request, context)
