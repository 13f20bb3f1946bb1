"""A request is one trace, from what its client says to the steps of every shard; the start of the server is another."""

from __future__ import annotations

from pathlib import Path

from harness import serving
from support.collector import attributes, collecting

TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
SPAN_ID = "b7ad6b7169203331"
TOKENS = 5
LAUNCHER = "text-generation-inference.launcher"
ROUTER = "text-generation-inference.router"
SHARDS = "text-generation-inference.server"
LIMIT_S = 30


def test_a_trace_goes_from_the_header_of_the_client_to_the_steps_of_every_shard(
    tiny_llama: Path, tmp_path: Path
) -> None:
    with collecting() as collector:
        flags = ["--num-shard", "2", "--otlp-endpoint", collector.endpoint]
        with serving(tiny_llama, tmp_path, *flags, environment={"LOG_LEVEL": "debug"}) as server:
            body = {"inputs": "the dog ran", "parameters": {"max_new_tokens": TOKENS}}
            headers = {"traceparent": f"00-{TRACE_ID}-{SPAN_ID}-01"}
            assert server.client.post("/generate", json=body, headers=headers).status_code == 200
            # The end of a process sends what waits.
            assert server.stop() == 0
        spans = {span.name: span for span in collector.spans(ROUTER, 4, LIMIT_S)}
        steps = collector.spans(SHARDS, 2 * TOKENS, LIMIT_S)
        start = collector.spans(LAUNCHER, 6, LIMIT_S)

    root = spans["POST /generate"]
    assert (root.trace_id.hex(), root.parent_span_id.hex()) == (TRACE_ID, SPAN_ID)
    for name in ("queue", "prefill", "decode"):
        assert (spans[name].trace_id, spans[name].parent_span_id) == (root.trace_id, root.span_id)
    for rank in (0, 1):
        own = [span for span in steps if attributes(span)["tgi.rank"].int_value == rank]
        assert len(own) >= TOKENS
        for span in own:
            assert [(link.trace_id, link.span_id) for link in span.links] == [(root.trace_id, root.span_id)]
        # Within the request: the clocks are those of one machine.
        assert all(root.start_time_unix_nano <= span.start_time_unix_nano for span in own)

    assert sorted(span.name for span in start) == ["download", "load", "load shard", "load shard", "start", "warm up"]
    assert len({span.trace_id for span in start}) == 1
    assert {attributes(span)["tgi.rank"].int_value for span in start if span.name == "load shard"} == {0, 1}
