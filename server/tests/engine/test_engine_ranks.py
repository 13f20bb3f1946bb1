"""Whole engines on several ranks say what one says: sampled and greedy, under masks, in chunks, after pauses, behind
prefixes of others.
"""

from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

import pytest
from support.checkpoints import tiny_llama
from support.engine_driver import stream
from support.families import larger, write
from support.family_cases import CASES
from support.generating import SERVING, warm_ranks
from support.replayed import replays
from support.router import Router, Stream
from support.thread_ranks import ThreadGroup, thread_groups, together

from text_generation_server.engine import context_plan, warmup
from text_generation_server.engine.context_plan import ContextPlan
from text_generation_server.engine.graphs import GraphSizes
from text_generation_server.engine.requests import MaskSource, StepCost, StepPlan, StepReply
from text_generation_server.engine.running import CheckedPlan

VOCAB = 131
SIZES = {"num_attention_heads": 12, "num_key_value_heads": 3, "hidden_size": 96, "vocab_size": VOCAB}
PROMPT = [(31 * place) % 120 + 5 for place in range(11)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """No size but that of the query heads can be divided by the numbers of ranks."""
    return tiny_llama(tmp_path_factory, **SIZES, intermediate_size=95, initializer_range=0.3)


def asked() -> list[Stream]:
    sampled = {"do_sample": True, "temperature": 0.8}
    return [
        stream(0, PROMPT, 9, prefill_logprobs=True, top_n_tokens=3),
        stream(1, PROMPT[:3], 9, **sampled, seed=7, repetition_penalty=1.3, frequency_penalty=0.2),
        stream(2, PROMPT[4:], 9, **sampled, seed=8, top_k=20, top_p=0.9, top_n_tokens=2),
        stream(3, PROMPT[:1], 9, allowed=lambda tokens: range(len(tokens), VOCAB, 7)),
        stream(4, PROMPT[2:7], 9, **sampled, seed=9, typical_p=0.8, allowed=lambda _: range(5, 90)),
        stream(5, PROMPT[:8], 9, **sampled, seed=10, presence_penalty=0.5, logit_bias=((130, 2.0), (0, 1.0))),
        stream(6, PROMPT[:5], 9, watermark=True),
    ]


def generated(folder: Path, groups: list[ThreadGroup], graphs: GraphSizes | None = None) -> list[Stream]:
    """All engines get each plan at the same time, as they do from the router."""
    engines = warm_ranks(folder, groups, graphs)

    def send(plan: StepPlan, masks: MaskSource) -> Callable[[], StepReply]:
        made = masks(plan.number) if plan.constrained else None
        launched = [partial(engine.step, plan, lambda _: made) for engine in engines]  # type: ignore[arg-type]
        replies = together([lambda launch=launch: launch().result() for launch in launched])
        assert all(list(reply.ids) == list(replies[0].ids) for reply in replies)
        return lambda: replies[0]

    router = Router(send, SERVING, chunk=4, pause=0.1, vocab_size=VOCAB)
    streams = asked()
    router.start(*streams)
    while streams[0].planned < len(PROMPT):
        router.step()
    behind = stream(9, [*PROMPT, 17, 18], 6)
    router.start(behind, prefix_of=streams[0], cached=len(PROMPT))
    router.run()
    if graphs is not None:
        runner = engines[0]._runner
        assert runner is not None
        _, forwards, chunks = replays(runner._captured.base)
        assert forwards
        assert chunks
    return [*streams, behind]


@pytest.fixture(scope="module")
def latent_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With the ids of the streams."""
    path = tmp_path_factory.mktemp("latent")
    write(CASES["deepseek v3"], larger("deepseek v3", VOCAB), path)
    return path


@cache
def alone(folder: Path) -> list[Stream]:
    return generated(folder, thread_groups(1))


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_several_ranks_generate_what_one_does(folder: Path, world_size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warmup, "measured_cost", lambda *_: StepCost())
    _check(generated(folder, thread_groups(world_size)), alone(folder))


@pytest.mark.parametrize("graphs", [None, GraphSizes([1, 4, 8], [2, 8], [4, 16])], ids=["no graphs", "graphs"])
@pytest.mark.parametrize("world_size", [2, 4])
def test_ranks_that_have_some_positions_each_generate_what_one_does(
    latent_folder: Path, world_size: int, graphs: GraphSizes | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some chunks are so short behind their contexts that their queries go to every rank, others not. In graphs all
    contexts come that there is room for.
    """
    monkeypatch.setattr(warmup, "measured_cost", lambda *_: StepCost())
    queried: list[tuple[int, ...]] = []
    of = ContextPlan.of

    def watched(plan: CheckedPlan, heads: int) -> ContextPlan:
        made = of(plan, heads)
        queried.append((made.queried, sum(made.gathered)))
        return made

    monkeypatch.setattr(ContextPlan, "of", watched)
    expected = alone(latent_folder)
    assert not queried
    # No graph has room for more than the shortest prompts.
    monkeypatch.setattr(context_plan, "_LEAST_IN_GRAPH", 8)
    _check(generated(latent_folder, thread_groups(world_size, context_parallel=True), graphs), expected)
    assert any(tokens for tokens, _ in queried)
    assert any(contexts for _, contexts in queried)


def _check(streams: list[Stream], of_one: list[Stream]) -> None:
    for found, expected in zip(streams, of_one, strict=True):
        assert expected.tokens
        assert found.tokens == expected.tokens
        assert found.logprobs == pytest.approx(expected.logprobs, abs=1e-4)
        assert [list(top.ids) for top in found.tops] == [list(top.ids) for top in expected.tops]
        assert found.prompt_logprobs == pytest.approx(expected.prompt_logprobs, abs=1e-4)
