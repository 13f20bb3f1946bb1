"""Sampling through the engine: what is reported, and that a request's tokens depend on nothing but the request."""

import math
from typing import Any

import pytest
import torch
from support.engine_driver import SERVING, directly, make_engine, make_request, stream
from support.fake_model import FakeModel
from support.router import Router, Stream

from text_generation_server.engine.engine import Engine
from text_generation_server.engine.requests import Chunk, Request, StepPlan, StepReply

EVERYTHING: dict[str, Any] = {
    "do_sample": True,
    "temperature": 0.8,
    "top_k": 30,
    "top_p": 0.95,
    "typical_p": 0.97,
    "repetition_penalty": 1.1,
    "frequency_penalty": 0.2,
    "watermark": True,
}


@pytest.fixture(scope="module")
def served() -> Engine:
    return make_engine()


def driver(engine: Engine, **options: Any) -> Router:
    engine.clear_cache(None)
    return Router(directly(engine), SERVING, **options)


def variety() -> list[Stream]:
    """Requests with different prompts, lengths and parameters."""
    return [
        stream(0, [5], do_sample=True, seed=1),
        stream(1, [1, 2, 3], seed=2**64 - 1, **EVERYTHING),
        stream(2, [9] * 9),
        stream(3, [4, 4], repetition_penalty=1.5),
        stream(4, [1, 2, 3], do_sample=True, seed=7, top_p=0.5, top_n_tokens=3),
        stream(5, [60, 61], do_sample=True, seed=7, temperature=2.0, top_k=3),
        stream(6, [60, 61], do_sample=True, seed=8, temperature=2.0, typical_p=0.3),
    ]


def said(streams: list[Stream]) -> dict[int, tuple[list[int], list[float]]]:
    return {each.id: (each.tokens, each.logprobs) for each in streams}


def alone(engine: Engine) -> dict[int, tuple[list[int], list[float]]]:
    streams = variety()
    for each in streams:
        driver(engine).run(each)
    return said(streams)


def test_tokens_are_the_same_alone_in_a_batch_and_in_any_order(served: Engine) -> None:
    expected = alone(served)
    assert len({tuple(tokens) for tokens, _ in expected.values()}) == len(expected)
    for seed, turn in enumerate((0, 3, 5)):
        streams = variety()
        driver(served, depth=2, chunk=2, seed=seed).run(*streams[turn:], *streams[:turn])
        assert said(streams) == expected


def test_tokens_are_the_same_after_pauses(served: Engine) -> None:
    expected = alone(served)
    streams = variety()
    driver(served, depth=2, chunk=3, pause=0.2).run(*streams)
    assert sum(each.pauses for each in streams) > 5
    assert said(streams) == expected


def test_seeds_choose_the_text(served: Engine) -> None:
    streams = [stream(i, [1, 2, 3], do_sample=True, seed=seed) for i, seed in enumerate((2**63 + 5, 6, 6))]
    first, second, third = driver(served).run(*streams)
    assert first != second
    assert second == third


def first(request: Request, model: FakeModel | None = None) -> StepReply:
    chunk = Chunk(request.row, 0, len(request.input_ids))
    return make_engine(model).step(StepPlan(0, admit=[request], chunks=[chunk])).result()


class TiedModel(FakeModel):
    """Every logit is the same."""

    def logits_after(self, tokens: list[int]) -> torch.Tensor:
        return torch.zeros(self.vocab_size)


class HugeModel(FakeModel):
    """Logits that overflow under a strong repetition penalty below one."""

    def logits_after(self, tokens: list[int]) -> torch.Tensor:
        return torch.full((self.vocab_size,), 1e38)


def test_greedy_ties_go_to_the_lowest_id() -> None:
    reply = first(make_request(1), TiedModel())
    assert reply.ids == [0]
    assert reply.logprobs[0] == pytest.approx(-math.log(64))


def test_reported_logprobs_are_those_of_the_processed_scores() -> None:
    logits = FakeModel().logits_after([1, 2, 3])
    plain = first(make_request(1))
    assert plain.logprobs[0] == pytest.approx(logits.log_softmax(-1).max().item(), abs=1e-5)
    cold = first(make_request(1, temperature=0.5))
    assert cold.logprobs[0] == pytest.approx((logits / 0.5).log_softmax(-1).max().item(), abs=1e-5)
    lone = first(make_request(1, do_sample=True, top_k=1))
    assert lone.ids == plain.ids
    assert lone.logprobs == [0.0]


def test_top_tokens_are_sorted_and_hold_ties_up_to_32() -> None:
    logits = FakeModel().logits_after([1, 2, 3])
    (top,) = first(make_request(1, top_n_tokens=4)).top_tokens
    expected = logits.log_softmax(-1).sort(descending=True, stable=True)
    assert top.ids == expected.indices[:4].tolist()
    assert top.logprobs == pytest.approx(expected.values[:4].tolist(), abs=1e-5)
    (ties,) = first(make_request(1, top_n_tokens=2), TiedModel()).top_tokens
    assert ties.ids == list(range(32))
    assert first(make_request(1)).top_tokens == []


def test_top_tokens_after_a_filter_hold_survivors_only() -> None:
    (top,) = first(make_request(1, top_n_tokens=5, top_k=2)).top_tokens
    assert len(top.ids) == 2


def test_scores_that_overflow_fail_their_request() -> None:
    requests = [make_request(1, repetition_penalty=1e-3), make_request(2)]
    plan = StepPlan(0, admit=requests, chunks=[Chunk(1, 0, 3), Chunk(2, 0, 3)])
    reply = make_engine(HugeModel()).step(plan).result()
    assert [(f.request_id, f.row, f.reason) for f in reply.failures] == [(1, 1, "numerical_error")]
    assert (reply.rows, len(reply.ids), len(reply.logprobs)) == ([2], 1, 1)


def test_repetition_penalty_sees_prompt_and_output(served: Engine) -> None:
    """With a penalty that outweighs every difference, greedy decoding repeats nothing until all ids are used."""
    (tokens,) = driver(served, pause=0.1).run(stream(1, [3, 4], 40, repetition_penalty=1e6))
    assert len({3, 4, *tokens}) == 42


def test_frequency_penalty_sees_every_occurrence() -> None:
    (tokens,) = driver(make_engine(TiedModel())).run(stream(1, [0, 0, 1], 40, frequency_penalty=2.0))
    # All logits are equal, so the next token is always the lowest of those seen least.
    assert tokens[:3] == [2, 3, 4]
    assert len(set(tokens)) == 40


def test_without_a_token_that_ends_texts_a_minimum_changes_nothing(served: Engine) -> None:
    assert served.info.eos_token_ids == ()
    (plain,) = driver(served).run(stream(1, [3, 4], 5))
    assert driver(served).run(stream(1, [3, 4], 5, min_new_tokens=5)) == [plain]
    assert len(plain) == 5
