"""Prefill and decode of the engine against the fake model's own arithmetic."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.engine_driver import Driver, Slots, make_engine, make_request
from support.fake_model import FakeModel

from text_generation_server.engine.requests import (
    Batch,
    CachedBatch,
    FinishReason,
    Grant,
    SlotRange,
    WarmupLimits,
)
from text_generation_server.errors import (
    EngineFailed,
    InvalidRequest,
    NotReady,
    OutOfMemory,
    UnknownBatch,
)

PROMPTS = [[5], [1, 2, 3], [9, 8, 7, 6, 5, 4, 3, 2, 1], [11, 12], [60] * 7]


def greedy(prompt: list[int], steps: int, model: FakeModel | None = None) -> list[int]:
    """Oracle: argmax over the model's own arithmetic."""
    model = model or FakeModel()
    tokens = list(prompt)
    for _ in range(steps):
        tokens.append(int(model.logits_after(tokens).argmax()))
    return tokens[len(prompt) :]


def test_a_batch_of_mixed_lengths_gives_each_request_what_it_gets_alone() -> None:
    driver = Driver(make_engine())
    driver.run(driver.prefill(1, *(make_request(i, prompt) for i, prompt in enumerate(PROMPTS))))
    for i, prompt in enumerate(PROMPTS):
        transcript = driver.transcripts[i]
        assert transcript.tokens == greedy(prompt, 8)
        assert transcript.finish is not None
        assert (transcript.finish.reason, transcript.finish.generated_tokens) == (FinishReason.LENGTH, 8)
        expected = [
            FakeModel().logits_after([*prompt, *transcript.tokens[:n]]).log_softmax(-1)[token].item()
            for n, token in enumerate(transcript.tokens)
        ]
        assert transcript.logprobs == pytest.approx(expected, abs=1e-5)


def test_scattered_slots_and_grants_two_steps_ahead() -> None:
    slots, driver = Slots(), Driver(make_engine())
    batch = driver.prefill(1, make_request(3, [4, 5], slots.take(4), max_new_tokens=20))
    while batch is not None:
        batch = driver.decode(batch, grants=[Grant(3, slots.take(1))])
    assert driver.transcripts[3].tokens == greedy([4, 5], 20)


def test_joined_batches_continue_under_the_first_id() -> None:
    driver = Driver(make_engine())
    first = driver.prefill(10, make_request(1, PROMPTS[1]))
    assert first is not None
    first = driver.decode(first)
    second = driver.prefill(20, make_request(2, PROMPTS[2]))
    assert first is not None
    assert second is not None
    joined = driver.decode(first, second)
    assert joined is not None
    assert (joined.id, joined.request_ids) == (10, (1, 2))
    # Tokens with KV: prompt and output without the newest token.
    assert joined.current_tokens == (3 + 3 - 1) + (9 + 2 - 1)
    driver.run(joined)
    assert driver.transcripts[1].tokens == greedy(PROMPTS[1], 8)
    assert driver.transcripts[2].tokens == greedy(PROMPTS[2], 8)
    with pytest.raises(UnknownBatch):
        driver.engine.decode([CachedBatch(20, (2,))], [])


def test_a_request_that_decode_leaves_out_is_dropped_and_its_row_is_free() -> None:
    driver = Driver(make_engine())
    batch = driver.prefill(1, *(make_request(i, PROMPTS[i]) for i in range(4)))
    assert batch is not None
    free = driver.engine.num_free_rows
    batch = driver.decode(CachedBatch(1, (0, 3)))
    assert batch is not None
    assert batch.request_ids == (0, 3)
    assert driver.engine.num_free_rows == free + 2
    driver.run(batch)
    assert driver.transcripts[3].tokens == greedy(PROMPTS[3], 8)
    assert driver.engine.num_free_rows == 8


def test_decode_of_no_request_drops_the_batch() -> None:
    driver = Driver(make_engine())
    driver.prefill(1, make_request(1))
    result = driver.engine.decode([CachedBatch(1, ())], [])
    assert (result.batch, result.generations) == (None, ())
    assert driver.engine.num_free_rows == 8


def test_filter_and_clear() -> None:
    driver = Driver(make_engine())
    driver.prefill(1, make_request(1), make_request(2))
    driver.prefill(2, make_request(3))
    kept = driver.engine.filter_batch(1, [2])
    assert kept is not None
    assert kept.request_ids == (2,)
    with pytest.raises(UnknownBatch, match="does not hold request 1"):
        driver.engine.filter_batch(1, [1])
    driver.engine.clear_cache(2)
    assert driver.engine.num_free_rows == 7
    driver.engine.clear_cache(None)
    assert driver.engine.num_free_rows == 8
    with pytest.raises(UnknownBatch, match="batch 1 is not in the cache"):
        driver.engine.filter_batch(1, [2])


def test_eos_ends_a_request_also_as_its_last_permitted_token() -> None:
    tokens = greedy([1, 2, 3], 8)
    eos = tokens[2]
    assert tokens.index(eos) == 2
    driver = Driver(make_engine(eos_token_ids=[eos]))
    driver.run(
        driver.prefill(
            1,
            make_request(1, max_new_tokens=8, do_sample=False),
            make_request(2, max_new_tokens=3),
            make_request(3, max_new_tokens=8, ignore_eos_token=True),
        )
    )
    finishes = [driver.transcripts[i].finish for i in (1, 2, 3)]
    assert [f and (f.reason, f.generated_tokens) for f in finishes] == [
        (FinishReason.EOS_TOKEN, 3),
        (FinishReason.EOS_TOKEN, 3),
        (FinishReason.LENGTH, 8),
    ]
    assert driver.engine.num_free_rows == 8


def test_prefill_logprobs_are_those_of_the_raw_logits() -> None:
    engine = make_engine()
    plain, detailed = make_request(1, PROMPTS[1]), make_request(2, PROMPTS[2], prefill_logprobs=True, temperature=0.5)
    single = make_request(3, PROMPTS[0], prefill_logprobs=True)
    result = engine.prefill(Batch(1, (plain, detailed, single)))
    without, prompt, one = (generation.prefill_tokens for generation in result.generations)
    assert without is None
    assert prompt is not None
    assert prompt.ids == tuple(PROMPTS[2])
    assert one is not None
    assert one.ids == (5,)
    assert math.isnan(one.logprobs[0])
    assert math.isnan(prompt.logprobs[0])
    for n in range(1, len(PROMPTS[2])):
        logits = FakeModel().logits_after(PROMPTS[2][:n])
        assert prompt.logprobs[n] == pytest.approx(logits.log_softmax(-1)[PROMPTS[2][n]].item(), abs=1e-5)
    assert result.generations[1].tokens.ids == (greedy(PROMPTS[2], 1)[0],)


def test_nan_logits_fail_their_request_alone() -> None:
    model = FakeModel()
    model.poison = {42}
    driver = Driver(make_engine(model))
    batch = driver.prefill(1, make_request(1, [1, 2]), make_request(2, [3, 42]), make_request(3, [7], do_sample=True))
    assert batch is not None
    assert batch.request_ids == (1, 3)
    assert driver.failures[2].reason == "numerical_error"
    driver.run(batch)
    assert driver.transcripts[1].tokens == greedy([1, 2], 8, model)
    assert driver.engine.num_free_rows == 8


def test_a_request_without_a_slot_fails_alone() -> None:
    driver = Driver(make_engine())
    batch = driver.prefill(1, make_request(1, slots=[SlotRange(0, 4)]), make_request(2))
    assert batch is not None
    batch = driver.decode(batch)
    assert batch is not None
    batch = driver.decode(batch)
    assert driver.failures[1].reason == "out_of_slots"
    assert batch is not None
    assert batch.request_ids == (2,)
    driver.run(batch)
    assert driver.transcripts[2].tokens == greedy([1, 2, 3], 8)


def test_a_grant_outside_the_pool_fails_its_request_alone() -> None:
    driver = Driver(make_engine())
    batch = driver.prefill(1, make_request(1), make_request(2))
    assert batch is not None
    batch = driver.decode(batch, grants=[Grant(1, (SlotRange(511, 2),))])
    assert driver.failures[1].reason == "invalid_request"
    assert batch is not None
    assert batch.request_ids == (2,)


BAD_REQUESTS = {
    "no ids": (make_request(1, [], slots=[SlotRange(0, 1)]), "`input_ids` must hold at least one"),
    "id too high": (make_request(1, [64]), "below the vocabulary size 64"),
    "too few slots": (make_request(1, slots=[SlotRange(0, 2)]), "`slots` covers 2 positions"),
    "slot outside": (make_request(1, slots=[SlotRange(510, 4)]), "outside the pool of 512"),
    "no new tokens": (make_request(1, max_new_tokens=0), "`max_new_tokens` must be at least 1"),
    "too long": (make_request(1, max_new_tokens=62), "--max-total-tokens 64"),
    "temperature": (make_request(1, temperature=0.0), "`temperature`"),
    "temperature nan": (make_request(1, temperature=math.nan), "`temperature`"),
    "repetition": (make_request(1, repetition_penalty=math.inf), "`repetition_penalty`"),
    "top_p": (make_request(1, top_p=1.5), "`top_p`"),
    "typical_p": (make_request(1, typical_p=0.0), "`typical_p`"),
    "frequency": (make_request(1, frequency_penalty=math.nan), "`frequency_penalty`"),
    "top_n": (make_request(1, top_n_tokens=21), "`top_n_tokens`"),
}


@pytest.mark.parametrize("name", BAD_REQUESTS)
def test_a_bad_request_fails_alone(name: str) -> None:
    bad, message = BAD_REQUESTS[name]
    driver = Driver(make_engine())
    batch = driver.prefill(1, bad, make_request(2))
    assert batch is not None
    assert batch.request_ids == (2,)
    assert driver.failures[1].reason == "invalid_request"
    assert message in driver.failures[1].message
    driver.run(batch)
    assert driver.transcripts[2].tokens == greedy([1, 2, 3], 8)


def test_a_batch_of_bad_requests_costs_no_forward_pass() -> None:
    model = FakeModel()
    result = make_engine(model).prefill(Batch(1, (make_request(1, [64]),)))
    assert (result.batch, len(result.failures), model.forwards) == (None, 1, 0)


def test_more_requests_than_rows() -> None:
    driver = Driver(make_engine())
    requests = [make_request(i, [i + 1], slots=[SlotRange(10 * i, 9)]) for i in range(10)]
    batch = driver.prefill(1, *requests)
    assert batch is not None
    assert batch.request_ids == tuple(range(8))
    assert "--max-batch-size is 8" in driver.failures[8].message
    driver.run(batch)
    assert driver.engine.num_free_rows == 8


def test_malformed_calls_change_nothing() -> None:
    driver = Driver(make_engine())
    batch = driver.prefill(1, make_request(1), make_request(2))
    assert batch is not None
    engine = driver.engine
    with pytest.raises(InvalidRequest, match="must provide at least one batch"):
        engine.decode([], [])
    with pytest.raises(InvalidRequest, match="lists a batch twice"):
        engine.decode([batch, batch], [])
    with pytest.raises(InvalidRequest, match="lists a request twice"):
        engine.decode([CachedBatch(1, (1, 1))], [])
    with pytest.raises(UnknownBatch, match="does not hold request 9"):
        engine.decode([CachedBatch(1, (1, 9))], [])
    with pytest.raises(UnknownBatch, match="batch 7 is not in the cache"):
        engine.decode([batch, CachedBatch(7, (1,))], [])
    with pytest.raises(InvalidRequest, match="`grants` names request 5"):
        engine.decode([batch], [Grant(5, ())])
    with pytest.raises(InvalidRequest, match="batch 1 is already in the cache"):
        engine.prefill(Batch(1, (make_request(5),)))
    with pytest.raises(InvalidRequest, match="request 2 is already running"):
        engine.prefill(Batch(2, (make_request(2),)))
    with pytest.raises(InvalidRequest, match="request 5 is already running"):
        engine.prefill(Batch(2, (make_request(5), make_request(5))))
    with pytest.raises(InvalidRequest, match="at least one request"):
        engine.prefill(Batch(2, ()))
    driver.run(batch)
    assert driver.transcripts[1].tokens == driver.transcripts[2].tokens == greedy([1, 2, 3], 8)


def test_prompts_above_the_prefill_budget() -> None:
    engine = make_engine(limits=WarmupLimits(max_batch_prefill_tokens=5, max_batch_size=4, max_batch_total_tokens=512))
    with pytest.raises(InvalidRequest, match="--max-batch-prefill-tokens 5"):
        engine.prefill(Batch(1, (make_request(1), make_request(2))))
    assert engine.num_free_rows == 4


def test_calls_before_and_after_warmup() -> None:
    engine = make_engine(limits=None)
    with pytest.raises(NotReady, match="Warmup"):
        engine.prefill(Batch(1, (make_request(1),)))
    engine.clear_cache(None)
    engine.warmup(WarmupLimits(max_batch_prefill_tokens=8, max_batch_size=1, max_batch_total_tokens=64))
    with pytest.raises(NotReady, match="already"):
        engine.warmup(WarmupLimits(max_batch_prefill_tokens=8, max_batch_size=1))


def test_running_out_of_memory_ends_the_call_and_frees_its_rows() -> None:
    model = FakeModel()
    driver = Driver(make_engine(model))
    other = driver.prefill(1, make_request(1))
    batch = driver.prefill(2, make_request(2))
    assert batch is not None
    assert other is not None
    model.error = torch.OutOfMemoryError("CUDA out of memory")
    with pytest.raises(OutOfMemory, match="--max-batch-prefill-tokens"):
        driver.engine.decode([batch], [])
    assert driver.engine.num_free_rows == 7
    with pytest.raises(UnknownBatch):
        driver.engine.decode([batch], [])
    driver.run(other)
    assert driver.transcripts[1].tokens == greedy([1, 2, 3], 8, model)


def test_out_of_memory_on_one_rank_of_several_is_the_end_of_the_group() -> None:
    model = FakeModel()
    engine = make_engine(model, world_size=2)
    model.error = torch.OutOfMemoryError("CUDA out of memory")
    with pytest.raises(EngineFailed):
        engine.prefill(Batch(1, (make_request(1),)))


def test_each_rank_reports_its_requests_and_agrees_on_the_rest() -> None:
    requests = tuple(make_request(i, PROMPTS[i], top_n_tokens=2, prefill_logprobs=True) for i in range(5))
    bad = make_request(6, [64])
    results = [make_engine(rank=rank, world_size=2).prefill(Batch(1, (*requests, bad))) for rank in range(2)]
    assert [[g.request_id for g in result.generations] for result in results] == [[0, 2, 4], [1, 3]]
    assert results[0].batch == results[1].batch
    assert results[0].failures == results[1].failures
    timings = results[0].timings
    assert timings.total_ns >= timings.concat_ns + timings.forward_ns > 0


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_any_schedule_leaves_rows_clean_and_results_unchanged(data: st.DataObject) -> None:
    """Random prefills, joins, drops, filters and clears: what survives gets what it gets alone."""
    driver, slots = Driver(make_engine()), Slots()
    prompts: dict[int, list[int]] = {}
    cached: dict[int, CachedBatch] = {}
    next_id = 0

    def keep(batch_id: int, batch: CachedBatch | None) -> None:
        cached.pop(batch_id, None)
        if batch is not None:
            cached[batch.id] = batch

    for _ in range(data.draw(st.integers(1, 12))):
        action = data.draw(st.sampled_from(["prefill", "decode", "decode", "filter", "clear"]))
        if action == "prefill" and driver.engine.num_free_rows > 0:
            next_id += 1
            prompt = data.draw(st.lists(st.integers(0, 63), min_size=1, max_size=6))
            prompts[next_id] = prompt
            request = make_request(next_id, prompt, slots.take(len(prompt) + 5), max_new_tokens=5)
            keep(next_id, driver.prefill(next_id, request))
        elif action == "decode" and cached:
            chosen = data.draw(st.lists(st.sampled_from(sorted(cached)), min_size=1, unique=True))
            parts = [
                CachedBatch(i, tuple(r for r in cached[i].request_ids if data.draw(st.booleans()) or i % 2))
                for i in chosen
            ]
            joined = driver.decode(*parts)
            for i in chosen:
                keep(i, None)
            keep(-1, joined)
        elif action == "filter" and cached:
            i = data.draw(st.sampled_from(sorted(cached)))
            keep(i, driver.engine.filter_batch(i, cached[i].request_ids[1:]))
        elif action == "clear" and cached:
            i = data.draw(st.sampled_from(sorted(cached)))
            driver.engine.clear_cache(i)
            keep(i, None)
    if cached:
        driver.run(driver.decode(*cached.values()))
    assert driver.engine.num_free_rows == 8
    assert not driver.failures
    for request_id, prompt in prompts.items():
        tokens = driver.transcripts[request_id].tokens
        assert tokens == greedy(prompt, len(tokens))
