"""Masks over gRPC: a bare caller without a router, on real sockets and the fake model."""

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import grpc
import pytest
from support.engine_driver import make_engine
from support.fake_model import FakeModel
from support.service import WAIT_S, WARMUP, ServedShard, admitting, error_of, greedy, ready, request_pb, run, serving

from text_generation_server.engine.requests import ShardEngine
from text_generation_server.pb import generate_pb2 as pb

INVALID = (grpc.StatusCode.INVALID_ARGUMENT, "invalid_request")


def masks(number: int, *writes: pb.MaskWrite, rows: Sequence[int], slots: Sequence[int]) -> pb.StepMasks:
    return pb.StepMasks(number=number, writes=writes, rows=rows, slots=slots)


def only(slot: int, *ids: int) -> pb.MaskWrite:
    return pb.MaskWrite(slot=slot, only=pb.TokenIds(ids=ids))


def bits(slot: int, *ids: int) -> pb.MaskWrite:
    return pb.MaskWrite(slot=slot, bits=sum(1 << token for token in ids).to_bytes(8, "little"))


def all_but(slot: int, *ids: int) -> pb.MaskWrite:
    return pb.MaskWrite(slot=slot, **{"except": pb.TokenIds(ids=ids)})  # type: ignore[arg-type]


def best_of(tokens: Sequence[int], allowed: Sequence[int]) -> int:
    logits = FakeModel().logits_after(list(tokens))
    return max(allowed, key=lambda token: float(logits[token]))


def test_a_bare_caller_constrains_one_row_beside_a_free_one(tmp_path: Path) -> None:
    """One call at a time: masks before their plan. Then two plans under way, and masks after them."""

    async def test() -> None:
        async with serving(tmp_path) as shard:
            await ready(shard)
            call = shard.stub.Constrain(masks(0, only(1, 30, 40), rows=[1], slots=[1]))
            assert (await error_of(call))[:2] == (grpc.StatusCode.FAILED_PRECONDITION, "not_ready")
            warmed = await shard.stub.Warmup(WARMUP)
            assert warmed.max_masks == 2048
            free = greedy([4, 5], 4)
            await shard.stub.Constrain(masks(0, only(1, 30, 40), all_but(2, 50), bits(3, 7), rows=[1], slots=[1]))
            plan = admitting(0, request_pb(1, [7, 8]), request_pb(2, [4, 5]), constrained=[1])
            reply = await shard.stub.Prefill(plan)
            told = [best_of([7, 8], [30, 40])]
            assert list(reply.ids) == [told[0], free[0]]

            steps = [
                asyncio.ensure_future(shard.stub.Decode(pb.StepPlan(number=n, decode=[2, 1], constrained=[1])))
                for n in (1, 2)
            ]
            await shard.stub.Constrain(masks(2, rows=[1], slots=[3]))
            await shard.stub.Health(pb.HealthRequest(), timeout=WAIT_S)
            await shard.stub.Constrain(masks(1, rows=[1], slots=[2]))
            told.append(best_of([7, 8, *told], [token for token in range(64) if token != 50]))
            replies = [await asyncio.wait_for(step, WAIT_S) for step in steps]
            assert [list(reply.ids) for reply in replies] == [[free[1], told[1]], [free[2], 7]]
            reply = await shard.stub.Decode(pb.StepPlan(number=3, decode=[1, 2]))
            assert list(reply.ids) == [greedy([7, 8, *told, 7], 1)[0], free[3]]

    run(test())


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (masks(0, only(2048, 1), rows=[1], slots=[1]), "mask slot 2048"),
        (masks(0, rows=[1], slots=[2048]), "mask slot 2048"),
        (masks(0, only(1, 64), rows=[1], slots=[1]), "below the vocabulary size 64"),
        (masks(0, pb.MaskWrite(slot=1, bits=b"\xff"), rows=[1], slots=[1]), "must be 8 bytes"),
        (masks(0, pb.MaskWrite(slot=1), rows=[1], slots=[1]), "`bits`, `only` or `except`"),
    ],
)
def test_wrong_masks_are_told_twice_and_everything_goes_on_after_clear_cache(
    tmp_path: Path, wrong: pb.StepMasks, message: str
) -> None:
    async def test() -> None:
        async with serving(tmp_path) as shard:
            await ready(shard)
            await shard.stub.Warmup(WARMUP)
            plan = admitting(0, request_pb(1), constrained=[1])
            waiting = asyncio.ensure_future(shard.stub.Prefill(plan))
            for call in (shard.stub.Constrain(wrong), waiting):
                error = await error_of(call)
                assert error[:2] == INVALID
                assert message in error[2]
            await shard.stub.ClearCache(pb.ClearCacheRequest())
            await shard.stub.Constrain(masks(0, only(1, 9), rows=[1], slots=[1]))
            assert list((await shard.stub.Prefill(plan)).ids) == [9]

    run(test())


def test_masks_of_an_unknown_row_fail_the_plan(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(tmp_path) as shard:
            await ready(shard)
            await shard.stub.Warmup(WARMUP)
            await shard.stub.Constrain(masks(0, only(1, 9), rows=[1, 77], slots=[1, 1]))
            error = await error_of(shard.stub.Prefill(admitting(0, request_pb(1), constrained=[1])))
            assert error[:2] == INVALID
            assert error[2] == "plan 0: row 77 is in `rows` of Constrain but not `constrained`"

    run(test())


class TellingModel(FakeModel):
    """Tells when a step is launched, which is before it waits for masks."""

    def __init__(self) -> None:
        super().__init__()
        self.launched = threading.Event()

    def forward(self, input_ids, state):  # type: ignore[no-untyped-def]
        self.launched.set()
        return super().forward(input_ids, state)


async def waiting_plan(shard: ServedShard, model: TellingModel) -> "asyncio.Future[pb.StepReply]":
    """A plan whose masks never come; when this returns the engine has it."""
    await ready(shard)
    await shard.stub.Warmup(WARMUP)
    model.launched.clear()
    step = asyncio.ensure_future(shard.stub.Prefill(admitting(0, request_pb(1), constrained=[1])))
    # Calls may overtake each other on their way.
    assert await asyncio.to_thread(model.launched.wait, WAIT_S)
    behind = asyncio.ensure_future(shard.stub.FilterBatch(pb.FilterBatchRequest(request_ids=[1])))
    await shard.stub.Health(pb.HealthRequest(), timeout=WAIT_S)
    assert not step.done()
    assert not behind.done()
    behind.cancel()
    return step


def test_clear_cache_ends_a_wait(tmp_path: Path) -> None:
    async def test() -> None:
        model = TellingModel()
        async with serving(tmp_path, lambda: cast("ShardEngine", make_engine(model, limits=None))) as shard:
            step = await waiting_plan(shard, model)
            await shard.stub.ClearCache(pb.ClearCacheRequest(), timeout=WAIT_S)
            code, reason, message = await error_of(step)
            assert (code, reason) == (grpc.StatusCode.FAILED_PRECONDITION, "plan_refused")
            assert "ClearCache came before the masks of plan 0" in message
            assert list((await shard.stub.Prefill(admitting(0, request_pb(1)))).ids) == greedy([1, 2, 3], 1)

    run(test())


def test_the_end_of_the_shard_ends_a_wait(tmp_path: Path) -> None:
    async def test() -> None:
        model = TellingModel()
        async with serving(tmp_path, lambda: cast("ShardEngine", make_engine(model, limits=None))) as shard:
            step = await waiting_plan(shard, model)
            shard.server.stop()
            code, reason, message = await error_of(step)
            assert (code, reason, message) == (grpc.StatusCode.UNAVAILABLE, "engine_failed", "the shard is stopping")
            await asyncio.wait_for(shard.task, WAIT_S)

    run(test())
