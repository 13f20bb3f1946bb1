"""A request is one trace, from what its client says to the steps of every shard."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from harness import serving, wait_for
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.trace.v1.trace_pb2 import Span

TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
SPAN_ID = "b7ad6b7169203331"
TOKENS = 5


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    """Keeps the spans that it gets, with the name of the service that sent them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._spans: list[tuple[str, Span]] = []
        self.endpoint = ""

    def Export(
        self,
        request: trace_service_pb2.ExportTraceServiceRequest,
        context: Any,  # noqa: ARG002 - gRPC gives it
    ) -> trace_service_pb2.ExportTraceServiceResponse:
        with self._lock:
            for of in request.resource_spans:
                said = {pair.key: pair.value.string_value for pair in of.resource.attributes}
                spans = [span for scope in of.scope_spans for span in scope.spans]
                self._spans += [(said["service.name"], span) for span in spans]
        return trace_service_pb2.ExportTraceServiceResponse()

    def spans(self, service: str) -> list[Span]:
        with self._lock:
            return [span for name, span in self._spans if name == service]


@pytest.fixture
def collector() -> Iterator[Collector]:
    service = Collector()
    server = grpc.server(ThreadPoolExecutor(1))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(service, server)
    service.endpoint = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    yield service
    server.stop(None).wait()


def test_a_trace_goes_from_the_header_of_the_client_to_the_steps_of_every_shard(
    tiny_llama: Path, tmp_path: Path, collector: Collector
) -> None:
    flags = ["--num-shard", "2", "--otlp-endpoint", collector.endpoint]
    with serving(tiny_llama, tmp_path, *flags, environment={"LOG_LEVEL": "debug"}) as server:
        body = {"inputs": "the dog ran", "parameters": {"max_new_tokens": TOKENS}}
        headers = {"traceparent": f"00-{TRACE_ID}-{SPAN_ID}-01"}
        assert server.client.post("/generate", json=body, headers=headers).status_code == 200
        # The end of a process sends what waits.
        assert server.stop() == 0
    wait_for(lambda: len(collector.spans("text-generation-inference.router")) >= 4, "the spans of the request")

    spans = {span.name: span for span in collector.spans("text-generation-inference.router")}
    root = spans["POST /generate"]
    assert (root.trace_id.hex(), root.parent_span_id.hex()) == (TRACE_ID, SPAN_ID)
    for name in ("queue", "prefill", "decode"):
        assert (spans[name].trace_id, spans[name].parent_span_id) == (root.trace_id, root.span_id)
    steps = [
        ({pair.key: pair.value for pair in span.attributes}["tgi.rank"].int_value, span)
        for span in collector.spans("text-generation-inference.server")
    ]
    for rank in (0, 1):
        own = [span for of, span in steps if of == rank]
        assert len(own) >= TOKENS
        for span in own:
            assert [(link.trace_id, link.span_id) for link in span.links] == [(root.trace_id, root.span_id)]
        # Within the request: the clocks are those of one machine.
        assert all(root.start_time_unix_nano <= span.start_time_unix_nano for span in own)
