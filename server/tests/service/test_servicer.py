"""The gRPC front end in process: real sockets, the fake model, every RPC and error."""

import asyncio
import os
import stat
import threading
from pathlib import Path
from typing import cast

import grpc
import pytest
from grpc import aio
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from support.engine_driver import make_engine
from support.fake_model import FakeModel
from support.service import WAIT_S, WARMUP, admitting, error_of, greedy, ready, request_pb, run, serving
from tokenizers import Tokenizer, models, pre_tokenizers

from text_generation_server.engine.requests import ShardEngine
from text_generation_server.errors import ConfigurationError, EngineFailed, ModelFilesError
from text_generation_server.pb import generate_pb2 as pb

SERVICE = "text_generation.v1.TextGenerationService"


def test_a_bare_caller_prefills_decodes_filters_and_clears(tmp_path: Path) -> None:
    """One call at a time, as a caller without a router would do it."""

    async def test() -> None:
        async with serving(tmp_path) as shard:
            assert await shard.status() in (1, 2)
            await ready(shard)
            info = await shard.stub.Info(pb.InfoRequest())
            assert (info.dtype, info.device_type, info.vocab_size) == ("float32", "cpu", 64)
            assert (info.world_size, info.max_position_embeddings, info.attention_impl) == (1, 64, "torch")
            assert info.group == "start-1"
            found = await shard.stub.ServiceDiscovery(pb.ServiceDiscoveryRequest())
            assert list(found.urls) == [f"unix://{tmp_path}/shard-0", f"unix://{tmp_path}/shard-1"]
            await shard.stub.ClearCache(pb.ClearCacheRequest())
            limits = await shard.stub.Warmup(WARMUP)
            assert (limits.max_total_tokens, limits.max_input_tokens, limits.max_batch_size) == (64, 63, 4)
            assert len(limits.cost.tokens) == len(limits.cost.times_ms) > 1
            assert not limits.graph_tokens

            first, second = request_pb(1, [7, 8], top_n_tokens=2), request_pb(2, [4, 5, 6], prefill_logprobs=True)
            wanted = {1: greedy([7, 8], 4), 2: greedy([4, 5, 6], 4)}
            reply = await shard.stub.Prefill(admitting(0, first, second))
            assert (list(reply.rows), list(reply.ids)) == ([1, 2], [wanted[1][0], wanted[2][0]])
            assert len(reply.logprobs) == 2
            assert [(top.index, len(top.ids)) for top in reply.top_tokens] == [(0, 2)]
            assert [(s.row, s.first, len(s.logprobs)) for s in reply.prompt_scores] == [(2, 0, 2)]
            assert reply.timings.host_ns > 0
            reply = await shard.stub.Decode(pb.StepPlan(number=1, decode=[1, 2]))
            assert list(reply.ids) == [wanted[1][1], wanted[2][1]]

            kept = await shard.stub.FilterBatch(pb.FilterBatchRequest(request_ids=[2, 9]))
            assert list(kept.request_ids) == [2]
            reply = await shard.stub.Decode(pb.StepPlan(number=2, decode=[2]))
            assert list(reply.ids) == [wanted[2][2]]
            third = request_pb(1, [9])
            reply = await shard.stub.Prefill(admitting(3, third, decode=[2]))
            assert list(reply.ids) == [wanted[2][3], *greedy([9], 1)]
            await shard.stub.ClearCache(pb.ClearCacheRequest(request_id=1))
            assert list((await shard.stub.FilterBatch(pb.FilterBatchRequest(request_ids=[1, 2]))).request_ids) == [2]

            await shard.stub.ClearCache(pb.ClearCacheRequest())
            reply = await shard.stub.Prefill(admitting(0, first))
            assert list(reply.ids) == wanted[1][:1]

    run(test())


def test_plans_under_way_at_once_are_executed_in_order(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(tmp_path, lambda: cast("ShardEngine", make_engine())) as shard:
            await ready(shard)
            plans = [pb.StepPlan(number=2, decode=[1]), pb.StepPlan(number=1, decode=[1]), admitting(0, request_pb(1))]
            replies = await asyncio.gather(*(shard.stub.Decode(plan) for plan in plans))
            assert [reply.number for reply in replies] == [2, 1, 0]
            assert [list(reply.ids) for reply in replies[::-1]] == [[token] for token in greedy([1, 2, 3], 3)]

    run(test())


def test_errors_carry_status_message_and_reason(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(tmp_path) as shard:
            await ready(shard)
            for number in (0, 2, 9621):
                early = await error_of(shard.stub.Prefill(pb.StepPlan(number=number)))
                assert early[:2] == (grpc.StatusCode.FAILED_PRECONDITION, "not_ready")
            await shard.stub.Warmup(WARMUP)
            assert (await error_of(shard.stub.Warmup(WARMUP)))[:2] == (
                grpc.StatusCode.FAILED_PRECONDITION,
                "not_ready",
            )
            reply = await shard.stub.Prefill(admitting(0, request_pb(1, [64]), request_pb(2)))
            assert [(f.request_id, f.row, f.reason) for f in reply.failures] == [(1, 1, "invalid_request")]
            assert list(reply.ids) == greedy([1, 2, 3], 1)
            code, reason, message = await error_of(shard.stub.Decode(pb.StepPlan(number=1, decode=[2, 3])))
            assert (code, reason) == (grpc.StatusCode.INVALID_ARGUMENT, "invalid_request")
            assert message == "`decode` names row 3, which no request owns"
            code, reason, message = await error_of(shard.stub.Decode(pb.StepPlan(number=2, decode=[2])))
            assert (code, reason) == (grpc.StatusCode.FAILED_PRECONDITION, "plan_refused")
            assert "ClearCache" in message
            await shard.stub.ClearCache(pb.ClearCacheRequest())
            without = request_pb(1)
            without.slots[0].length = 2
            code, reason, message = await error_of(shard.stub.Prefill(admitting(0, without)))
            assert (code, reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "out_of_slots")

    run(test())


def test_an_unexpected_error_ends_the_shard_and_leaks_nothing(tmp_path: Path) -> None:
    async def test() -> None:
        model = FakeModel()
        async with serving(tmp_path, lambda: cast("ShardEngine", make_engine(model))) as shard:
            await ready(shard)
            model.error = ValueError("/secret/path")
            code, reason, message = await error_of(shard.stub.Prefill(admitting(0, request_pb(1))))
            assert (code, reason) == (grpc.StatusCode.UNAVAILABLE, "engine_failed")
            assert "secret" not in message
            with pytest.raises(EngineFailed):
                await asyncio.wait_for(shard.task, WAIT_S)
            assert not shard.socket.exists()

    run(test())


def test_an_error_outside_the_engine_is_internal_without_details(tmp_path: Path) -> None:
    async def test() -> None:
        (tmp_path / "tokenizer.json").write_text("not a tokenizer")
        async with serving(tmp_path) as shard:
            await ready(shard)
            error = await error_of(shard.stub.Tokens(pb.TokensRequest(text="a b")))
            assert error == (grpc.StatusCode.INTERNAL, "internal", "internal error of the shard; see its log")

    run(test())


def test_health_follows_the_engine(tmp_path: Path) -> None:
    async def test() -> None:
        release = threading.Event()

        def build() -> ShardEngine:
            release.wait(WAIT_S)
            return cast("ShardEngine", make_engine())

        async with serving(tmp_path, build) as shard:
            assert await shard.status() == health_pb2.HealthCheckResponse.NOT_SERVING
            assert await shard.status(SERVICE) == health_pb2.HealthCheckResponse.NOT_SERVING
            assert (await error_of(shard.stub.Health(pb.HealthRequest())))[1] == "not_ready"
            assert (await error_of(shard.stub.Info(pb.InfoRequest())))[1] == "not_ready"
            release.set()
            await ready(shard)
            assert await shard.status() == health_pb2.HealthCheckResponse.SERVING
            await shard.stub.Health(pb.HealthRequest())

    run(test())


def test_health_answers_while_a_step_runs_and_stop_lets_it_finish(tmp_path: Path) -> None:
    async def test() -> None:
        entered, release = threading.Event(), threading.Event()

        class SlowModel(FakeModel):
            slow = False

            def forward(self, input_ids, state):  # type: ignore[no-untyped-def]
                if self.slow:
                    entered.set()
                    release.wait(WAIT_S)
                return super().forward(input_ids, state)

        model = SlowModel()
        async with serving(tmp_path, lambda: cast("ShardEngine", make_engine(model))) as shard:
            await ready(shard)
            model.slow = True
            call = shard.stub.Prefill(admitting(0, request_pb(1)))
            await asyncio.to_thread(entered.wait, WAIT_S)
            await shard.stub.Health(pb.HealthRequest(), timeout=WAIT_S)
            shard.server.stop()
            release.set()
            assert len((await call).ids) == 1
            await asyncio.wait_for(shard.task, WAIT_S)
            assert not shard.socket.exists()

    run(test())


def test_watchers_of_its_health_do_not_hold_up_a_stop(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        async with serving(tmp_path, lambda: cast("ShardEngine", make_engine())) as shard:
            await ready(shard)
            watch, left = (shard.health.Watch(health_pb2.HealthCheckRequest()) for _ in range(2))
            for each in (watch, left):
                assert (await each.read()).status == health_pb2.HealthCheckResponse.SERVING
            left.cancel()
            shard.server.stop()
            await asyncio.wait_for(shard.task, WAIT_S)
            with pytest.raises(aio.AioRpcError, match="the shard is stopping"):
                await watch.read()
        # The engine had its time too, and nothing is told of an end that was none.
        assert [record.getMessage() for record in caplog.records if record.levelname in ("WARNING", "ERROR")] == []

    run(test())


def test_a_call_that_its_caller_gave_up_is_still_executed(tmp_path: Path) -> None:
    """Other ranks execute it too, so withdrawing it here would part them."""

    async def test() -> None:
        entered, release = threading.Event(), threading.Event()

        def hold(_: ShardEngine) -> None:
            entered.set()
            release.wait(WAIT_S)

        async with serving(tmp_path, lambda: cast("ShardEngine", make_engine())) as shard:
            await ready(shard)
            shard.worker.submit(hold)
            await asyncio.to_thread(entered.wait, WAIT_S)
            with pytest.raises(aio.AioRpcError):
                await shard.stub.Prefill(admitting(0, request_pb(1)), timeout=0.2)
            release.set()
            reply = await shard.stub.Decode(pb.StepPlan(number=1, decode=[1]))
            assert list(reply.ids) == greedy([1, 2, 3], 2)[1:]

    run(test())


def test_tokens_counts_with_the_tokenizer_of_the_folder(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(tmp_path) as shard:
            await ready(shard)
            error = await error_of(shard.stub.Tokens(pb.TokensRequest(text="a b")))
            assert error[:2] == (grpc.StatusCode.FAILED_PRECONDITION, "not_ready")
            assert "tokenizer.json" in error[2]
            tokenizer = Tokenizer(models.WordLevel({"a": 0, "b": 1, "?": 2}, unk_token="?"))
            tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()  # type: ignore[assignment]
            tokenizer.save(str(tmp_path / "tokenizer.json"))
            assert (await shard.stub.Tokens(pb.TokensRequest(text="a b a x"))).count == 4

    run(test())


def test_the_socket_is_private_and_gone_afterwards(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(tmp_path) as shard:
            await ready(shard)
            mode = shard.socket.stat().st_mode
            assert stat.S_ISSOCK(mode)
            assert stat.S_IMODE(mode) == 0o600
        assert not shard.socket.exists()

    run(test())


def test_a_stale_socket_is_replaced_and_everything_else_is_left_alone(tmp_path: Path) -> None:
    import socket as sockets

    async def refused(name: str) -> str:
        async with serving(tmp_path, name=name) as shard:
            with pytest.raises(ConfigurationError) as caught:
                await asyncio.wait_for(shard.task, WAIT_S)
        return str(caught.value)

    async def test() -> None:
        stale = sockets.socket(sockets.AF_UNIX)
        stale.bind(str(tmp_path / "shard-0"))
        stale.close()
        async with serving(tmp_path) as shard:
            assert await shard.status() in (1, 2)
            await ready(shard)
            assert "another server listens" in await refused("shard-0")
            await shard.stub.Health(pb.HealthRequest())
        (tmp_path / "file").write_text("mine")
        assert "is in the way" in await refused("file")
        assert (tmp_path / "file").read_text() == "mine"
        os.symlink(tmp_path / "elsewhere", tmp_path / "link")
        assert "is in the way" in await refused("link")
        assert (tmp_path / "link").is_symlink()
        assert "does not exist" in await refused("missing/shard-0")
        assert "107 bytes" in await refused("x" * 120)

    run(test())


def test_a_model_that_cannot_be_loaded_ends_the_server(tmp_path: Path) -> None:
    def build() -> ShardEngine:
        raise ModelFilesError("no weights")

    async def test() -> None:
        async with serving(tmp_path, build) as shard:
            with pytest.raises(ModelFilesError, match="no weights"):
                await asyncio.wait_for(shard.task, WAIT_S)
            assert not shard.socket.exists()

    run(test())


def test_reflection_describes_the_service(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(tmp_path) as shard:
            await ready(shard)

            def reflected() -> list[str]:
                with grpc.insecure_channel(f"unix://{shard.socket}") as channel:
                    database = ProtoReflectionDescriptorDatabase(channel)
                    return list(database.get_services())

            assert {SERVICE, "grpc.health.v1.Health"} <= set(await asyncio.to_thread(reflected))

    run(test())
