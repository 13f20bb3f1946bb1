"""Sampling through the engine: what is reported, and that a request's tokens depend on nothing but the request."""

import math

import pytest
import torch
from support.engine_driver import Driver, make_engine, make_request
from support.fake_model import FakeModel

from text_generation_server.engine.requests import Batch, CachedBatch, Generation, Request

EVERYTHING = {
    "do_sample": True,
    "temperature": 0.8,
    "top_k": 30,
    "top_p": 0.95,
    "typical_p": 0.97,
    "repetition_penalty": 1.1,
    "frequency_penalty": 0.2,
    "watermark": True,
}


def variety() -> list[Request]:
    """Requests with different prompts, lengths and parameters."""
    return [
        make_request(0, [5], do_sample=True, seed=1),
        make_request(1, [1, 2, 3], seed=2**64 - 1, **EVERYTHING),
        make_request(2, [9] * 9),
        make_request(3, [4, 4], repetition_penalty=1.5),
        make_request(4, [1, 2, 3], do_sample=True, seed=7, top_p=0.5, top_n_tokens=3),
        make_request(5, [60, 61], do_sample=True, seed=7, temperature=2.0, top_k=3),
        make_request(6, [60, 61], do_sample=True, seed=8, temperature=2.0, typical_p=0.3),
    ]


def alone(request: Request) -> tuple[list[int], list[float]]:
    driver = Driver(make_engine())
    driver.run(driver.prefill(1, request))
    return driver.transcripts[request.id].tokens, driver.transcripts[request.id].logprobs


def test_tokens_are_the_same_alone_in_a_batch_and_in_any_order() -> None:
    requests = variety()
    expected = {request.id: alone(request) for request in requests}
    assert len({tuple(tokens) for tokens, _ in expected.values()}) == len(requests)
    for order in (requests, requests[::-1], requests[3:] + requests[:3]):
        driver = Driver(make_engine())
        driver.run(driver.prefill(1, *order))
        got = {i: (transcript.tokens, transcript.logprobs) for i, transcript in driver.transcripts.items()}
        assert got == expected


def test_tokens_are_the_same_after_joins_and_filters() -> None:
    requests = variety()
    expected = {request.id: alone(request)[0] for request in requests}
    driver = Driver(make_engine())
    batch: CachedBatch | None = None
    for request in requests:
        new = driver.prefill(100 + request.id, request)
        assert new is not None
        batch = driver.decode(*([batch, new] if batch else [new]))
        assert batch is not None
        if request.id == 4:
            batch = driver.engine.filter_batch(batch.id, [i for i in batch.request_ids if i != 2])
            assert batch is not None
    driver.run(batch)
    for i, tokens in expected.items():
        got = driver.transcripts[i].tokens
        assert got == (tokens[: len(got)] if i == 2 else tokens)


def test_ranks_choose_the_same_tokens() -> None:
    requests = variety()
    seen: dict[int, list[int]] = {}
    for rank in range(2):
        driver = Driver(make_engine(rank=rank, world_size=2))
        driver.run(driver.prefill(1, *requests))
        seen |= {i: t.tokens for i, t in driver.transcripts.items() if i % 2 == rank}
    assert seen == {request.id: alone(request)[0] for request in requests}


def test_seeds_choose_the_text_and_are_reported_when_sampling() -> None:
    base = make_request(1, [1, 2, 3], do_sample=True, seed=2**63 + 5)
    driver = Driver(make_engine())
    driver.run(driver.prefill(1, base, make_request(2, [1, 2, 3], do_sample=True, seed=6), make_request(3, [1, 2, 3])))
    assert driver.transcripts[1].tokens != driver.transcripts[2].tokens
    seeds = [t.finish.seed for t in driver.transcripts.values() if t.finish]
    assert seeds == [2**63 + 5, 6, None]


def first(request: Request, model: FakeModel | None = None) -> Generation:
    return make_engine(model).prefill(Batch(1, (request,))).generations[0]


class TiedModel(FakeModel):
    """Every logit is the same."""

    def logits_after(self, tokens: list[int]) -> torch.Tensor:
        return torch.zeros(self.vocab_size)


class HugeModel(FakeModel):
    """Logits that overflow under a strong repetition penalty below one."""

    def logits_after(self, tokens: list[int]) -> torch.Tensor:
        return torch.full((self.vocab_size,), 1e38)


def test_greedy_ties_go_to_the_lowest_id() -> None:
    generation = first(make_request(1), TiedModel())
    assert generation.tokens.ids == (0,)
    assert generation.tokens.logprobs[0] == pytest.approx(-math.log(64))


def test_reported_logprobs_are_those_of_the_processed_scores() -> None:
    logits = FakeModel().logits_after([1, 2, 3])
    plain = first(make_request(1))
    assert plain.tokens.logprobs[0] == pytest.approx(logits.log_softmax(-1).max().item(), abs=1e-5)
    cold = first(make_request(1, temperature=0.5))
    assert cold.tokens.logprobs[0] == pytest.approx((logits / 0.5).log_softmax(-1).max().item(), abs=1e-5)
    lone = first(make_request(1, do_sample=True, top_k=1))
    assert lone.tokens.ids == plain.tokens.ids
    assert lone.tokens.logprobs == (0.0,)


def test_top_tokens_are_sorted_and_hold_ties_up_to_32() -> None:
    logits = FakeModel().logits_after([1, 2, 3])
    (top,) = first(make_request(1, top_n_tokens=4)).top_tokens
    expected = logits.log_softmax(-1).sort(descending=True, stable=True)
    assert top.ids == tuple(expected.indices[:4].tolist())
    assert top.logprobs == pytest.approx(expected.values[:4].tolist(), abs=1e-5)
    (ties,) = first(make_request(1, top_n_tokens=2), TiedModel()).top_tokens
    assert ties.ids == tuple(range(32))
    assert first(make_request(1)).top_tokens == ()


def test_top_tokens_after_a_filter_hold_survivors_only() -> None:
    (top,) = first(make_request(1, top_n_tokens=5, top_k=2)).top_tokens
    assert len(top.ids) == 2


def test_scores_that_overflow_fail_their_request() -> None:
    engine = make_engine(HugeModel())
    result = engine.prefill(Batch(1, (make_request(1, repetition_penalty=1e-3), make_request(2))))
    assert [(f.request_id, f.reason) for f in result.failures] == [(1, "numerical_error")]
    assert [g.request_id for g in result.generations] == [2]


def test_repetition_penalty_sees_prompt_and_output() -> None:
    """With a penalty that outweighs every difference, greedy decoding repeats nothing until all ids are used."""
    driver = Driver(make_engine())
    driver.run(driver.prefill(1, make_request(1, [3, 4], max_new_tokens=40, repetition_penalty=1e6)))
    tokens = driver.transcripts[1].tokens
    assert len({3, 4, *tokens}) == 42


def test_frequency_penalty_sees_every_occurrence() -> None:
    driver = Driver(make_engine(TiedModel()))
    driver.run(driver.prefill(1, make_request(1, [0, 0, 1], max_new_tokens=40, frequency_penalty=2.0)))
    # All logits are equal, so the next token is always the lowest of those seen least.
    assert driver.transcripts[1].tokens[:3] == [2, 3, 4]
    assert len(set(driver.transcripts[1].tokens)) == 40
