"""Adapters over gRPC: loads beside the steps, copies by plans, and the reasons of refusals."""

import json
import shutil
import threading
from pathlib import Path
from typing import cast

import grpc
import pytest
from support.adapters import AdapterCase, write_adapter, write_base
from support.engine_driver import make_engine
from support.loading import load
from support.service import admitting, error_of, ready, request_pb, run, serving

from text_generation_server.engine.adapter_requests import AdapterLoaded, AdapterSource
from text_generation_server.engine.engine import Engine
from text_generation_server.engine.requests import ShardEngine
from text_generation_server.pb import generate_pb2 as pb

WARMUP = pb.WarmupRequest(
    max_batch_prefill_tokens=32,
    max_batch_size=4,
    max_batch_total_tokens=128,
    adapter_pages=2,
    adapters_later=True,
)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_base("llama", tmp_path_factory.mktemp("base"))


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("adapter")
    write_adapter(AdapterCase("llama", {"target_modules": ["q_proj"], "r": 17}), folder)
    return folder


def source(folder: Path, **fields: object) -> pb.LoadAdapterRequest:
    return pb.LoadAdapterRequest(name="mine", source=str(folder), **fields)  # type: ignore[arg-type]


def test_an_adapter_is_loaded_copied_used_and_unloaded(base: Path, adapter: Path, tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(tmp_path, lambda: cast("ShardEngine", make_engine(load(base), None))) as shard:
            await ready(shard)
            loaded = await shard.stub.LoadAdapter(source(adapter))
            assert loaded.generation > 0
            assert (loaded.rank, loaded.pages) == (17, 2)
            assert loaded.bytes > 2 * 17 * 32 * 4
            await shard.stub.Warmup(WARMUP)
            copies = [pb.AdapterCopy(number=1, generation=loaded.generation, first_page=0)]
            reply = await shard.stub.Decode(pb.StepPlan(number=0, adapter_copies=copies))
            assert list(reply.adapters_ready) == [1]
            reply = await shard.stub.Prefill(admitting(1, request_pb(0, adapter=1), request_pb(1, adapter=2)))
            assert list(reply.rows) == [0]
            assert [(each.request_id, each.reason) for each in reply.failures] == [(1, "invalid_request")]
            assert list(reply.adapters_ready) == []
            assert await shard.stub.LoadAdapter(source(adapter, generation=loaded.generation)) == loaded
            for generation in (loaded.generation, 7):
                await shard.stub.UnloadAdapter(pb.UnloadAdapterRequest(generation=generation))
            reply = await shard.stub.Decode(pb.StepPlan(number=2, decode=[0]))
            assert list(reply.rows) == [0]

    run(test())


def test_refusals_have_reasons_of_their_own(base: Path, adapter: Path, tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(tmp_path, lambda: cast("ShardEngine", make_engine(load(base), None))) as shard:
            await ready(shard)
            gone = await error_of(shard.stub.LoadAdapter(source(adapter / "gone")))
            assert gone[:2] == (grpc.StatusCode.NOT_FOUND, "adapter_not_found")
            assert "is no folder on this machine" in gone[2]
            bad = await error_of(shard.stub.LoadAdapter(source(base)))
            assert bad[:2] == (grpc.StatusCode.INVALID_ARGUMENT, "adapter_invalid")
            assert "is a model, not an adapter" in bad[2]
            shutil.copytree(adapter, tmp_path / "long")
            config = json.loads((adapter / "adapter_config.json").read_text())
            (tmp_path / "long" / "adapter_config.json").write_text(
                json.dumps({**config, "lora_alpha": "\u00e9" * 300_000})
            )
            long = await error_of(shard.stub.LoadAdapter(source(tmp_path / "long")))
            assert long[:2] == (grpc.StatusCode.INVALID_ARGUMENT, "adapter_invalid")
            assert "`lora_alpha` must be a number" in long[2]
            assert len(long[2].encode()) <= 2000
            other = await error_of(shard.stub.LoadAdapter(source(adapter, generation=7)))
            assert other[:2] == (grpc.StatusCode.FAILED_PRECONDITION, "adapter_changed")
            assert "has other contents than adapter `mine` had" in other[2]
            await shard.stub.Warmup(WARMUP)

    run(test())


class Slow(Engine):
    """Loads no adapter until it may."""

    may_load = threading.Event()

    def load_adapter(self, source: AdapterSource) -> AdapterLoaded:
        assert self.may_load.wait(20)
        return AdapterLoaded(5, 8, 1, 100)


def test_steps_go_on_while_an_adapter_is_read(base: Path, adapter: Path, tmp_path: Path) -> None:
    def build() -> ShardEngine:
        engine = make_engine(load(base), None)
        engine.__class__ = Slow
        return cast("ShardEngine", engine)

    async def test() -> None:
        async with serving(tmp_path, build) as shard:
            await ready(shard)
            await shard.stub.Warmup(WARMUP)
            call = shard.stub.LoadAdapter(source(adapter))
            reply = await shard.stub.Prefill(admitting(0, request_pb(0)))
            reply = await shard.stub.Decode(pb.StepPlan(number=1, decode=[0]))
            assert list(reply.rows) == [0]
            assert not call.done()
            Slow.may_load.set()
            assert (await call).generation == 5

    run(test())


def test_no_adapter_is_loaded_before_the_model(adapter: Path, tmp_path: Path) -> None:
    may_build = threading.Event()

    def build() -> ShardEngine:
        assert may_build.wait(20)
        return cast("ShardEngine", make_engine(limits=None))

    async def test() -> None:
        async with serving(tmp_path, build) as shard:
            early = await error_of(shard.stub.LoadAdapter(source(adapter), wait_for_ready=True))
            assert early[:2] == (grpc.StatusCode.FAILED_PRECONDITION, "not_ready")
            may_build.set()
            await ready(shard)
            none = await error_of(shard.stub.LoadAdapter(source(adapter)))
            assert none[:2] == (grpc.StatusCode.INVALID_ARGUMENT, "adapter_invalid")
            assert "adapter `mine` cannot be served beside this model" in none[2]

    run(test())
