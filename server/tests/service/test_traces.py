"""Spans of steps, as an in-process collector gets them from a shard that serves."""

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path

import grpc
import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Status
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from support.collector import attributes, collecting
from support.service import WAIT_S, WARMUP, admitting, error_of, ready, request_pb, run, serving

from text_generation_server.pb import generate_pb2 as pb
from text_generation_server.service.server import TraceSettings
from text_generation_server.service.traces import StepTraces, ToldOnce

SERVICE = "text_generation.v1.TextGenerationService"
LINK = bytes(range(1, 25))


def test_steps_link_to_the_requests_that_they_compute(tmp_path: Path) -> None:
    async def test(endpoint: str) -> None:
        async with serving(tmp_path, traces=TraceSettings(endpoint, "here", 3)) as shard:
            await ready(shard)
            await shard.stub.Warmup(WARMUP)
            await shard.stub.Prefill(admitting(0, request_pb(1, [7, 8]), trace_links=LINK * 2))
            await shard.stub.Decode(pb.StepPlan(number=1, decode=[1]))
            code, _, _ = await error_of(shard.stub.Decode(pb.StepPlan(number=2, decode=[9], trace_links=LINK)))
            assert code != grpc.StatusCode.OK

    with collecting() as collector:
        run(test(collector.endpoint))
        spans = {span.name: span for span in collector.spans("here", 2, WAIT_S)}
    # The step whose requests nobody traces has none.
    assert set(spans) == {f"{SERVICE}/Prefill", f"{SERVICE}/Decode"}
    prefill, decode = spans[f"{SERVICE}/Prefill"], spans[f"{SERVICE}/Decode"]
    assert [link.trace_id + link.span_id for link in prefill.links] == [LINK, LINK]
    # It is in the trace of the first.
    assert prefill.trace_id + prefill.parent_span_id == LINK
    said = attributes(prefill)
    assert (said["tgi.rank"].int_value, said["tgi.step.chunk_tokens"].int_value) == (3, 2)
    assert said["tgi.step.host"].double_value > 0
    assert decode.status.code == Status.STATUS_CODE_ERROR
    assert not decode.events


class Collector(SpanExporter):
    """Takes batches, or does not."""

    def __init__(self, takes: Sequence[bool]) -> None:
        self._takes = iter(takes)

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        return SpanExportResult.SUCCESS if next(self._takes) else SpanExportResult.FAILURE


def test_the_log_says_once_that_spans_are_lost_and_once_that_they_come_again(caplog: pytest.LogCaptureFixture) -> None:
    takes = [False, False, True, True, False]
    exporter = ToldOnce(Collector(takes))
    with caplog.at_level(logging.INFO):
        for _ in takes:
            exporter.export([])
    lost, again = (
        "traces are dropped: the collector of `--otlp-endpoint` takes none",
        "the collector takes traces again",
    )
    assert [record.message for record in caplog.records] == [lost, again, lost]


def test_the_library_says_nothing_of_a_collector_that_is_away(caplog: pytest.LogCaptureFixture) -> None:
    traces = StepTraces.to("http://127.0.0.1:1", None, 0)
    with traces.step(pb.StepPlan()):
        pass
    traces.end(WAIT_S)
    ours = [record.name for record in caplog.records if record.levelno >= logging.WARNING]
    assert set(ours) == {"text_generation_server.service.traces"}


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
