"""A collector of traces in the process of a test."""

import contextlib
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.trace.v1.trace_pb2 import Span


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    """Keeps the spans that it gets, with the name of the service that sent them. Any thread may ask."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._spans: list[tuple[str, Span]] = []
        self.endpoint = ""

    def Export(
        self, request: trace_service_pb2.ExportTraceServiceRequest, context: Any
    ) -> trace_service_pb2.ExportTraceServiceResponse:
        with self._changed:
            for of in request.resource_spans:
                service = attributes(of.resource)["service.name"].string_value
                self._spans += [(service, span) for scope in of.scope_spans for span in scope.spans]
            self._changed.notify_all()
        return trace_service_pb2.ExportTraceServiceResponse()

    def spans(self, service: str, at_least: int, limit_s: float) -> list[Span]:
        """What came from `service`, once there are `at_least` so many spans, or after `limit_s` seconds."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._of(service)) >= at_least, limit_s)
            return self._of(service)

    def _of(self, service: str) -> list[Span]:
        return [span for name, span in self._spans if name == service]


def attributes(of: Any) -> dict[str, Any]:
    """The attributes of a span or resource."""
    return {pair.key: pair.value for pair in of.attributes}


@contextlib.contextmanager
def collecting() -> Iterator[Collector]:
    """A collector on a free port."""
    service = Collector()
    server = grpc.server(ThreadPoolExecutor(1))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(service, server)
    service.endpoint = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield service
    finally:
        server.stop(None).wait()
