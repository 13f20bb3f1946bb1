"""Spans of steps, as an in-process collector gets them from a shard that serves."""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from support.service import WAIT_S, WARMUP, admitting, error_of, ready, request_pb, run, serving

from text_generation_server.pb import generate_pb2 as pb
from text_generation_server.service.server import TraceSettings

SERVICE = "text_generation.v1.TextGenerationService"
LINK = bytes(range(1, 25))


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    """Keeps what it gets."""

    def __init__(self) -> None:
        self.exports: list[trace_service_pb2.ExportTraceServiceRequest] = []
        self.got = threading.Event()
        self.endpoint = ""

    def Export(
        self, request: trace_service_pb2.ExportTraceServiceRequest, context: Any
    ) -> trace_service_pb2.ExportTraceServiceResponse:
        self.exports.append(request)
        self.got.set()
        return trace_service_pb2.ExportTraceServiceResponse()

    def spans(self) -> dict[str, Span]:
        exported = [spans for export in self.exports for spans in export.resource_spans]
        return {span.name: span for of in exported for scope in of.scope_spans for span in scope.spans}


@pytest.fixture
def collector() -> Iterator[Collector]:
    service = Collector()
    server = grpc.server(ThreadPoolExecutor(1))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(service, server)
    service.endpoint = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    yield service
    server.stop(None).wait()


def test_steps_link_to_the_requests_that_they_compute(tmp_path: Path, collector: Collector) -> None:
    async def test() -> None:
        async with serving(tmp_path, traces=TraceSettings(collector.endpoint, "here", 3)) as shard:
            await ready(shard)
            await shard.stub.Warmup(WARMUP)
            await shard.stub.Prefill(admitting(0, request_pb(1, [7, 8]), trace_links=LINK * 2))
            await shard.stub.Decode(pb.StepPlan(number=1, decode=[1]))
            code, _, _ = await error_of(shard.stub.Decode(pb.StepPlan(number=2, decode=[9], trace_links=LINK)))
            assert code != grpc.StatusCode.OK

    run(test())
    assert collector.got.wait(WAIT_S)
    spans = collector.spans()
    # The step whose requests nobody traces has none.
    assert set(spans) == {f"{SERVICE}/Prefill", f"{SERVICE}/Decode"}
    prefill, decode = spans[f"{SERVICE}/Prefill"], spans[f"{SERVICE}/Decode"]
    assert [link.trace_id + link.span_id for link in prefill.links] == [LINK, LINK]
    said = {attribute.key: attribute.value for attribute in prefill.attributes}
    assert (said["tgi.rank"].int_value, said["tgi.step.chunk_tokens"].int_value) == (3, 2)
    assert said["tgi.step.host"].double_value > 0
    assert decode.status.code == Status.STATUS_CODE_ERROR
    assert not decode.events
    resource = {
        attribute.key: attribute.value for attribute in collector.exports[0].resource_spans[0].resource.attributes
    }
    assert resource["service.name"].string_value == "here"


def test_a_collector_that_is_away_stops_neither_steps_nor_the_end(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(tmp_path, traces=TraceSettings("http://127.0.0.1:1", None, 0)) as shard:
            await ready(shard)
            await shard.stub.Warmup(WARMUP)
            reply = await shard.stub.Prefill(admitting(0, request_pb(1, [7, 8]), trace_links=LINK))
            assert len(reply.ids) == 1
            shard.server.stop()
            await asyncio.wait_for(asyncio.shield(shard.task), WAIT_S)

    run(test())
