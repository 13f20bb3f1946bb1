"""Traces of steps for an OpenTelemetry collector, as OTLP over gRPC. A step serves many requests: its span is in the
trace of the first that its plan names, and links to the spans of all of them.

The shard imports this module only with traces, because the library takes half a second to load.
"""

import contextlib
import logging
import threading
from collections.abc import Callable, Generator, Sequence

from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    set_span_in_context,
)

from ..errors import EngineError
from ..pb import generate_pb2 as pb

logger = logging.getLogger(__name__)
# It reports each attempt at a collector that is away; `ToldOnce` says it once.
logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)

_SERVICE = pb.DESCRIPTOR.services_by_name["TextGenerationService"].full_name
_DEFAULT_SERVICE_NAME = "text-generation-inference.server"
_TRACE_ID_BYTES = 16
_LINK_BYTES = 24


class StepTraces:
    """Writes a span for each step that names traced requests. The event loop calls it and never waits for the
    collector: a thread of the library sends batches from a bounded queue.
    """

    def __init__(self, exporter: SpanExporter, service_name: str | None, rank: int) -> None:
        """`service_name` None means that of the environment (`OTEL_SERVICE_NAME`), or else TGI's."""
        self._rank = rank
        self._provider = TracerProvider(resource=_resource(service_name), shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(ToldOnce(exporter)))
        self._tracer = self._provider.get_tracer("text-generation-server")

    @classmethod
    def to(cls, endpoint: str, service_name: str | None, rank: int) -> "StepTraces":
        """Returns traces for the collector at `endpoint`, such as `http://localhost:4317`, without waiting for it."""
        return cls(OTLPSpanExporter(endpoint=endpoint, insecure=True), service_name, rank)

    @contextlib.contextmanager
    def step(self, plan: pb.StepPlan) -> Generator[Callable[[pb.StepReply], None]]:
        """Opens the span of a step: from its plan to its reply, which the caller hands over, or to its failure."""
        method = "Prefill" if plan.chunks else "Decode"
        links = _links(plan.trace_links)
        with self._tracer.start_as_current_span(
            f"{_SERVICE}/{method}",
            context=set_span_in_context(NonRecordingSpan(links[0].context)) if links else None,
            kind=SpanKind.SERVER,
            links=links,
            attributes={
                "rpc.system.name": "grpc",
                "rpc.method": f"{_SERVICE}/{method}",
                "tgi.rank": self._rank,
                "tgi.step.number": plan.number,
                "tgi.step.decodes": len(plan.decode),
                "tgi.step.chunks": len(plan.chunks),
                "tgi.step.chunk_tokens": sum(chunk.count for chunk in plan.chunks),
            },
            # Messages of errors may hold anything.
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            try:
                yield lambda reply: _note_timings(span, reply)
            except Exception as error:
                reason = error.reason if isinstance(error, EngineError) else EngineError.reason
                span.set_attribute("error.type", reason)
                span.set_status(Status(StatusCode.ERROR, reason))
                raise

    def end(self, limit_s: float) -> None:
        """Sends queued spans, for at most `limit_s` seconds; the collector may be unreachable."""
        sending = threading.Thread(target=self._provider.shutdown, name="traces", daemon=True)
        sending.start()
        sending.join(limit_s)
        if sending.is_alive():
            logger.warning("the last traces did not reach the collector in time")


class ToldOnce(SpanExporter):
    """Says once that the collector takes no spans, and once that it does again. A thread of the library calls it."""

    def __init__(self, exporter: SpanExporter) -> None:
        self._exporter = exporter
        self._is_failing = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Sends a batch."""
        result = self._exporter.export(spans)
        fails = result is not SpanExportResult.SUCCESS
        if fails and not self._is_failing:
            logger.warning("traces are dropped: the collector of `--otlp-endpoint` takes none")
        elif self._is_failing and not fails:
            logger.info("the collector takes traces again")
        self._is_failing = fails
        return result

    def shutdown(self) -> None:
        """Ends the connection."""
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        """Waits for what is being sent."""
        return self._exporter.force_flush(timeout_millis)


def _note_timings(span: Span, reply: pb.StepReply) -> None:
    """Notes the seconds of a step: on the host before its launch, on the device, idle, and idle for late masks."""
    timings = reply.timings
    span.set_attributes(
        {
            "tgi.step.host": timings.host_ns / 1e9,
            "tgi.step.forward": timings.forward_ns / 1e9,
            "tgi.step.idle": timings.idle_ns / 1e9,
            "tgi.step.mask_wait": timings.mask_wait_ns / 1e9,
        }
    )


def _resource(name: str | None) -> Resource:
    found = Resource.create()
    if name is None and not str(found.attributes.get(SERVICE_NAME)).startswith("unknown_service"):
        return found
    return found.merge(Resource({SERVICE_NAME: name or _DEFAULT_SERVICE_NAME}))


def _links(encoded: bytes) -> Sequence[Link]:
    """Decodes the links of a plan: 24 bytes each, trace id and span id. The sender has sampled these requests."""
    starts = range(0, len(encoded) - _LINK_BYTES + 1, _LINK_BYTES)
    return [Link(_span_context(encoded[start : start + _LINK_BYTES])) for start in starts]


def _span_context(link: bytes) -> SpanContext:
    return SpanContext(
        trace_id=int.from_bytes(link[:_TRACE_ID_BYTES], "big"),
        span_id=int.from_bytes(link[_TRACE_ID_BYTES:], "big"),
        is_remote=True,
        trace_flags=TraceFlags(TraceFlags.SAMPLED),
    )
