"""Steps of the engine against the fake model's own arithmetic: what a plan may say, and what comes of it."""

import gc
import math
import weakref
from typing import Any

import pytest
import torch
from support.engine_driver import SERVING, directly, make_engine, make_request, stream
from support.fake_model import FakeModel
from support.router import Router

from text_generation_server.engine.engine import Engine
from text_generation_server.engine.requests import (
    Chunk,
    Grant,
    Request,
    SlotRange,
    StepPlan,
    StepReply,
    WarmupLimits,
)
from text_generation_server.errors import EngineError, EngineFailed, InvalidRequest, NotReady, OutOfMemory, OutOfSlots

PROMPTS = [[5], [1, 2, 3], [9, 8, 7, 6, 5, 4, 3, 2, 1], [11, 12], [60] * 7]


@pytest.fixture(scope="module")
def served() -> Engine:
    return make_engine()


@pytest.fixture
def engine(served: Engine) -> Engine:
    served.clear_cache(None)
    return served


def greedy(prompt: list[int], steps: int, model: FakeModel | None = None) -> list[int]:
    """Oracle: argmax over the model's own arithmetic."""
    model = model or FakeModel()
    tokens = list(prompt)
    for _ in range(steps):
        tokens.append(int(model.logits_after(tokens).argmax()))
    return tokens[len(prompt) :]


def run(engine: Engine, number: int = 0, **plan: Any) -> StepReply:
    return engine.step(StepPlan(number, **plan)).result()


def whole(request: Request) -> Chunk:
    return Chunk(request.row, request.cached_length, len(request.input_ids) - request.cached_length)


def prefill(engine: Engine, *requests: Request) -> StepReply:
    return run(engine, admit=requests, chunks=[whole(request) for request in requests])


def test_a_batch_of_mixed_lengths_gives_each_request_what_it_gets_alone(engine: Engine) -> None:
    asked = [stream(i, prompt) for i, prompt in enumerate(PROMPTS)]
    tokens = Router(directly(engine), SERVING, depth=2).run(*asked)
    assert tokens == [greedy(prompt, 8) for prompt in PROMPTS]
    for each in asked:
        expected = [
            FakeModel().logits_after([*each.prompt, *each.tokens[:n]]).log_softmax(-1)[token].item()
            for n, token in enumerate(each.tokens)
        ]
        assert each.logprobs == pytest.approx(expected, abs=1e-5)


def test_tokens_come_in_the_order_of_the_plan_decodes_first(engine: Engine) -> None:
    first, second, third = (make_request(i, prompt) for i, prompt in enumerate(PROMPTS[:3]))
    assert prefill(engine, first, second).rows == [0, 1]
    reply = run(engine, admit=[third], chunks=[Chunk(2, 0, 9)], decode=[1, 0])
    assert reply.rows == [1, 0, 2]
    assert reply.ids == [greedy(PROMPTS[1], 2)[1], greedy(PROMPTS[0], 2)[1], *greedy(PROMPTS[2], 1)]
    assert len(reply.logprobs) == 3
    assert reply.timings.host_ns > 0
    assert reply.timings.forward_ns > 0


def test_a_chunk_that_does_not_end_the_prompt_brings_no_token(engine: Engine) -> None:
    request = make_request(1, PROMPTS[2])
    reply = run(engine, admit=[request], chunks=[Chunk(1, 0, 5)])
    assert (reply.rows, reply.ids, reply.logprobs) == ([], [], [])
    assert run(engine, chunks=[Chunk(1, 5, 3)]).rows == []
    assert run(engine, chunks=[Chunk(1, 8, 1)]).ids == greedy(PROMPTS[2], 1)


def test_a_plan_that_computes_nothing_is_answered(engine: Engine) -> None:
    assert (run(engine, 4).number, run(engine, 4).timings.forward_ns) == (4, 0)
    reply = run(engine, 5, admit=[make_request(1)])
    assert (reply.number, reply.rows, reply.failures) == (5, [], [])
    assert run(engine, 6, chunks=[Chunk(1, 0, 3)]).ids == greedy([1, 2, 3], 1)


def test_drops_come_first_and_grants_before_the_tokens_that_need_them(engine: Engine) -> None:
    prefill(engine, make_request(1, slots=[SlotRange(0, 3)]))
    reply = run(engine, grants=[Grant(1, (SlotRange(300, 1),))], decode=[1])
    assert reply.ids == greedy([1, 2, 3], 2)[1:]
    again = make_request(2, [4], slots=[SlotRange(3, 4)], row=1)
    reply = run(engine, drop=[1], admit=[again], chunks=[Chunk(1, 0, 1)])
    assert reply.ids == greedy([4], 1)
    assert run(engine, drop=[1, 3]).rows == []


def test_the_next_plan_is_launched_before_the_last_is_read(engine: Engine) -> None:
    request = make_request(1)
    steps = [engine.step(StepPlan(0, admit=[request], chunks=[whole(request)]))]
    steps += [engine.step(StepPlan(number, decode=[1])) for number in range(1, 5)]
    steps.append(engine.step(StepPlan(5, drop=[1], admit=[make_request(2, row=1)], chunks=[Chunk(1, 0, 3)])))
    want = greedy([1, 2, 3], 5)
    assert [step.result().ids for step in steps] == [*([token] for token in want), want[:1]]


def test_prompt_scores_are_those_of_the_raw_logits(engine: Engine) -> None:
    detailed = make_request(2, PROMPTS[2], prefill_logprobs=True, temperature=0.5)
    reply = prefill(engine, make_request(1), detailed, make_request(3, [5], prefill_logprobs=True, top_n_tokens=2))
    (scores,) = reply.prompt_scores
    assert (scores.row, scores.first, scores.top_tokens) == (2, 0, [])
    expected = [FakeModel().logits_after(PROMPTS[2][:n]).log_softmax(-1)[PROMPTS[2][n]].item() for n in range(1, 9)]
    assert scores.logprobs == pytest.approx(expected, abs=1e-5)
    assert reply.ids[1] == greedy(PROMPTS[2], 1)[0]


def test_the_scores_of_a_cached_prompt_begin_behind_what_is_cached(engine: Engine) -> None:
    whole_prompt = make_request(1, PROMPTS[2], prefill_logprobs=True)
    (want,) = prefill(engine, whole_prompt).prompt_scores
    again = make_request(2, PROMPTS[2], cached_length=5, slots=whole_prompt.slots, prefill_logprobs=True)
    (scores,) = run(engine, drop=[1], admit=[again], chunks=[whole(again)]).prompt_scores
    assert (scores.row, scores.first) == (2, 5)
    assert scores.logprobs == pytest.approx(want.logprobs[5:], abs=1e-6)


def test_tokens_that_were_generated_are_not_scored(engine: Engine) -> None:
    request = make_request(1, PROMPTS[2], num_generated=4, prefill_logprobs=True)
    run(engine, admit=[request], chunks=[Chunk(1, 0, 2)])
    (scores,) = run(engine, chunks=[Chunk(1, 2, 5)]).prompt_scores
    assert (scores.first, len(scores.logprobs)) == (2, 2)
    assert run(engine, chunks=[Chunk(1, 7, 2)]).prompt_scores == []


@pytest.mark.parametrize("at_once", [1, 2])
def test_nan_logits_fail_their_request_alone_and_once(at_once: int) -> None:
    model = FakeModel()
    engine = make_engine(model)
    victim = make_request(2, [3])
    tokens = greedy([3], 3)
    model.poison = {tokens[1]}
    requests = [make_request(1, [1, 2]), victim, make_request(3, [7], do_sample=True)]
    plans = [StepPlan(0, admit=requests, chunks=[whole(r) for r in requests])]
    plans += [StepPlan(number, decode=[1, 2, 3]) for number in range(1, 5)]
    steps = [engine.step(plan) for plan in plans] if at_once == 2 else []
    replies = [step.result() for step in steps] or [engine.step(plan).result() for plan in plans]
    assert [reply.rows for reply in replies] == [[1, 2, 3], [1, 2, 3], [1, 3], [1, 3], [1, 3]]
    assert [reply.ids[1] for reply in replies[:2]] == tokens[:2]
    failures = [[(f.request_id, f.row, f.reason) for f in reply.failures] for reply in replies]
    assert failures == [[], [], [(2, 2, "numerical_error")], [], []]
    assert [reply.ids[0] for reply in replies] == greedy([1, 2], 5, model)
    # The row may be given away without being dropped.
    assert run(engine, admit=[make_request(4, [8], row=2)], chunks=[Chunk(2, 0, 1)]).ids == greedy([8], 1)


BAD_REQUESTS = {
    "no ids": (make_request(1, []), "`input_ids` must hold at least one"),
    "id too high": (make_request(1, [64]), "below the vocabulary size 64"),
    "slot outside": (make_request(1, slots=[SlotRange(510, 4)]), "outside the pool of 512"),
    "too long": (make_request(1, [1] * 64, slots=[SlotRange(0, 64)]), "--max-input-tokens 63"),
    "no room": (make_request(1, [1] * 64, num_generated=8), "--max-total-tokens 64"),
    "all generated": (make_request(1, num_generated=3), "`num_generated` 3"),
    "all cached": (make_request(1, cached_length=3), "`cached_length` 3"),
    "cached without slots": (make_request(1, cached_length=2, slots=[SlotRange(0, 1)]), "`slots` covers 1 positions"),
    "temperature": (make_request(1, temperature=0.0), "`temperature`"),
    "temperature nan": (make_request(1, temperature=math.nan), "`temperature`"),
    "repetition": (make_request(1, repetition_penalty=math.inf), "`repetition_penalty`"),
    "top_p": (make_request(1, top_p=1.5), "`top_p`"),
    "typical_p": (make_request(1, typical_p=0.0), "`typical_p`"),
    "frequency": (make_request(1, frequency_penalty=math.nan), "`frequency_penalty`"),
    "top_n": (make_request(1, top_n_tokens=21), "`top_n_tokens`"),
}


@pytest.mark.parametrize("name", BAD_REQUESTS)
def test_a_bad_request_fails_alone_and_what_was_sent_ahead_is_skipped(engine: Engine, name: str) -> None:
    bad, message = BAD_REQUESTS[name]
    good = make_request(2)
    reply = run(engine, admit=[bad, good], chunks=[Chunk(1, 0, 3), whole(good)])
    (failure,) = reply.failures
    assert (failure.request_id, failure.row, failure.reason) == (1, 1, "invalid_request")
    assert message in failure.message
    assert (reply.rows, reply.ids) == ([2], greedy([1, 2, 3], 1))
    reply = run(engine, grants=[Grant(1, (SlotRange(100, 1),))], decode=[1, 2])
    assert (reply.rows, reply.ids, reply.failures) == ([2], greedy([1, 2, 3], 2)[1:], [])
    reply = run(engine, admit=[make_request(3, row=1)], chunks=[Chunk(1, 0, 3)])
    assert reply.ids == greedy([1, 2, 3], 1)


def test_bad_requests_alone_cost_no_forward_pass() -> None:
    model = FakeModel()
    engine = make_engine(model)
    forwards = model.forwards
    reply = run(engine, admit=[make_request(1, [64])], chunks=[Chunk(1, 0, 1)])
    assert (len(reply.failures), model.forwards) == (1, forwards)


RUNNING, STARTED, REFUSED = 1, 2, 3
"""Rows: one that decodes, one with 2 of 9 positions computed and 6 slots, one whose request failed."""
BAD_PLANS: dict[str, tuple[dict[str, Any], type[EngineError], str]] = {
    "decode of nobody": ({"decode": [4]}, InvalidRequest, "`decode` names row 4, which no request owns"),
    "decode twice": ({"decode": [RUNNING, RUNNING]}, InvalidRequest, "`decode` names a row twice"),
    "decode too early": ({"decode": [STARTED]}, InvalidRequest, "row 2, whose last position is not computed"),
    "decode of a row that does not exist": ({"decode": [8]}, InvalidRequest, "`decode` names row 8"),
    "decode of what is dropped": ({"drop": [RUNNING], "decode": [RUNNING]}, InvalidRequest, "which no request owns"),
    "decode and chunk": (
        {"decode": [STARTED], "chunks": [Chunk(STARTED, 2, 1)]},
        InvalidRequest,
        "in `chunks` and in `decode`",
    ),
    "chunk of nobody": ({"chunks": [Chunk(5, 0, 1)]}, InvalidRequest, "`chunks` names row 5"),
    "chunk twice": ({"chunks": [Chunk(STARTED, 2, 1), Chunk(STARTED, 3, 1)]}, InvalidRequest, "names a row twice"),
    "chunk that starts elsewhere": ({"chunks": [Chunk(STARTED, 3, 1)]}, InvalidRequest, "positions 3 to 3"),
    "chunk past the end": ({"chunks": [Chunk(STARTED, 2, 8)]}, InvalidRequest, "of its 9 input tokens 2 are computed"),
    "empty chunk": ({"chunks": [Chunk(STARTED, 2, 0)]}, InvalidRequest, "the chunk of row 2"),
    "chunk of a running request": ({"chunks": [Chunk(RUNNING, 3, 1)]}, InvalidRequest, "the chunk of row 1"),
    "chunk without slots": ({"chunks": [Chunk(STARTED, 2, 6)]}, OutOfSlots, "position 7 of row 2 has no slot"),
    "grant to nobody": ({"grants": [Grant(6, ())]}, InvalidRequest, "`grants` names row 6"),
    "grant outside": ({"grants": [Grant(1, (SlotRange(511, 2),))]}, InvalidRequest, "outside the pool of 512"),
    "row that does not exist": ({"admit": [make_request(8, slots=())]}, InvalidRequest, "`admit` names row 8"),
    "row that is owned": ({"admit": [make_request(9, row=1)]}, InvalidRequest, "but 1 owns it"),
    "row twice": ({"admit": [make_request(5, row=7), make_request(6, row=7)]}, InvalidRequest, "but 5 owns it"),
    "request twice": ({"admit": [make_request(1, row=7)]}, InvalidRequest, "request 1, which is running already"),
    "drop of what does not exist": ({"drop": [8]}, InvalidRequest, "`drop` names row 8"),
}


@pytest.mark.parametrize("name", BAD_PLANS)
def test_a_bad_plan_changes_nothing(engine: Engine, name: str) -> None:
    plan, kind, message = BAD_PLANS[name]
    started = make_request(2, PROMPTS[2], slots=[SlotRange(100, 6)])
    run(engine, admit=[make_request(1), started, make_request(3, [64])], chunks=[Chunk(1, 0, 3), Chunk(2, 0, 2)])
    # Something good beside it, which must not be done either.
    with pytest.raises(kind) as error:
        engine.step(StepPlan(0, **{"admit": [make_request(4, [9], row=0)], **plan}))
    assert message in str(error.value)
    reply = run(
        engine,
        admit=[make_request(4, [9], row=0)],
        grants=[Grant(2, (SlotRange(200, 3),))],
        chunks=[Chunk(2, 2, 7), Chunk(0, 0, 1)],
        decode=[1],
    )
    assert reply.ids == [greedy([1, 2, 3], 2)[1], greedy(PROMPTS[2], 1)[0], greedy([9], 1)[0]]


def test_a_decode_without_a_slot_is_refused_and_goes_on_once_it_has_one(engine: Engine) -> None:
    prefill(engine, make_request(1, slots=[SlotRange(0, 3)]))
    with pytest.raises(OutOfSlots, match="position 3 of row 1 has no slot: it holds 3"):
        engine.step(StepPlan(1, decode=[1]))
    assert run(engine, grants=[Grant(1, (SlotRange(9, 1),))], decode=[1]).ids == greedy([1, 2, 3], 2)[1:]


def test_more_prompt_tokens_than_a_step_may_have() -> None:
    engine = make_engine(limits=WarmupLimits(max_batch_prefill_tokens=5, max_batch_size=4, max_batch_total_tokens=512))
    first, second = make_request(1), make_request(2)
    with pytest.raises(InvalidRequest, match="--max-batch-prefill-tokens 5"):
        engine.step(StepPlan(0, admit=[first, second], chunks=[whole(first), whole(second)]))
    assert run(engine, admit=[first, second], chunks=[whole(first), Chunk(2, 0, 2)]).ids == greedy([1, 2, 3], 1)


def test_filter_and_clear(engine: Engine) -> None:
    prefill(engine, *(make_request(i) for i in range(1, 5)))
    assert engine.filter_batch([4, 9, 2, 3]) == [4, 2, 3]
    engine.clear_cache(2)
    engine.clear_cache(77)
    with pytest.raises(InvalidRequest, match="row 2"):
        engine.step(StepPlan(1, decode=[2, 3]))
    assert run(engine, decode=[3, 4]).rows == [3, 4]
    engine.clear_cache(None)
    assert engine.filter_batch([3, 4]) == []
    with pytest.raises(InvalidRequest, match="row 3"):
        engine.step(StepPlan(1, decode=[3]))


def test_calls_before_and_after_warmup() -> None:
    engine = make_engine(limits=None)
    with pytest.raises(NotReady, match="Warmup"):
        engine.step(StepPlan(0))
    engine.clear_cache(None)
    limits = WarmupLimits(max_batch_prefill_tokens=8, max_batch_size=1, max_batch_total_tokens=64)
    engine.warmup(limits)
    with pytest.raises(NotReady, match="already"):
        engine.warmup(limits)


def test_running_out_of_memory_ends_the_step_and_the_engine_goes_on_once_cleared() -> None:
    model = FakeModel()
    engine = make_engine(model)
    prefill(engine, make_request(1))
    model.error = torch.OutOfMemoryError("CUDA out of memory")
    with pytest.raises(OutOfMemory, match="--max-batch-prefill-tokens"):
        engine.step(StepPlan(1, decode=[1]))
    engine.clear_cache(None)
    assert prefill(engine, make_request(1)).ids == greedy([1, 2, 3], 1)


def test_out_of_memory_on_one_rank_of_several_is_the_end_of_the_group() -> None:
    model = FakeModel()
    engine = make_engine(model, world_size=2)
    model.error = torch.OutOfMemoryError("CUDA out of memory")
    with pytest.raises(EngineFailed):
        prefill(engine, make_request(1))


def test_a_step_without_another_rank_has_no_result_and_is_the_end_of_the_group() -> None:
    engine = make_engine(world_size=2)
    prefill(engine, make_request(1))
    step = engine.step(StepPlan(1, decode=[1]))
    engine._group.lost = True  # type: ignore[attr-defined]
    with pytest.raises(EngineFailed, match="timed out waiting"):
        step.result()


def test_ranks_agree_on_tokens_and_failures_and_the_first_one_has_the_details() -> None:
    requests = [make_request(i, PROMPTS[i], top_n_tokens=2, prefill_logprobs=True) for i in range(5)]
    requests.append(make_request(6, [64]))
    first, second = (prefill(make_engine(rank=rank, world_size=2), *requests) for rank in range(2))
    assert (first.rows, first.ids, first.failures) == (second.rows, second.ids, second.failures)
    assert first.rows == [0, 1, 2, 3, 4]
    assert [top.index for top in first.top_tokens] == [0, 1, 2, 3, 4]
    assert [scores.row for scores in first.prompt_scores] == [1, 2, 3, 4]
    assert (second.logprobs, second.top_tokens, second.prompt_scores) == ([], [], [])


def test_a_runner_that_is_given_up_is_gone_at_once() -> None:
    """Warm-up measures free memory once its probe is over, so no memory may wait for the garbage collector."""
    engine = make_engine()
    prefill(engine, make_request(1, prefill_logprobs=True))
    runner = weakref.ref(engine._runner)  # type: ignore[arg-type]
    gc.disable()
    try:
        engine._runner = None
        assert runner() is None
    finally:
        gc.enable()
