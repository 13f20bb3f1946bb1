"""Rank 0 says how the tokens of a step spread over ranks that have whole experts each."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from support.engine_driver import make_request
from support.families import made, write
from support.family_cases import CASES
from support.generating import warm_ranks
from support.replayed import replays
from support.thread_ranks import ThreadGroup, thread_groups, together
from transformers import PreTrainedModel

from text_generation_server.engine import warmup
from text_generation_server.engine.engine import Engine
from text_generation_server.engine.graphs import GraphSizes
from text_generation_server.engine.requests import Chunk, SlotRange, StepCost, StepPlan, StepReply

EXPERTS, TOP_K = 5, 2
STARTS = {2: [0, 2], 4: [0, 1, 2, 3]}
"""The first expert of each of so many ranks."""
PROMPTS = [[7, 31, 12, 55, 8], [64, 9, 20]]


def _model(layers: int, every: int, folder: Path) -> PreTrainedModel:
    """Saves a model with a mixture in each of so many layers, and else a dense network."""
    case = CASES["qwen3 moe"]
    values = {"num_experts": EXPERTS, "num_experts_per_tok": TOP_K, "num_hidden_layers": layers}
    model = made(replace(case, values={**case.values, **values, "decoder_sparse_step": every}))
    write(case, model, folder)
    return model


def _engines(folder: Path, groups: Sequence[ThreadGroup], graphs: GraphSizes | None = None) -> list[Engine]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(warmup, "measured_cost", lambda *_: StepCost())
        return warm_ranks(folder, groups, graphs)


def _steps(engines: Sequence[Engine], *plans: StepPlan) -> list[list[StepReply]]:
    """The replies of all ranks to each plan. What is launched is read once all is launched, as the replies thread may
    be late.
    """

    def run(engine: Engine) -> list[StepReply]:
        launched = [engine.step(plan) for plan in plans]
        return [each.result() for each in launched]

    return [list(replies) for replies in zip(*together([partial(run, engine) for engine in engines]), strict=True)]


def _plans() -> tuple[StepPlan, StepPlan]:
    """The prompts in one step, then one token of each."""
    admit = [make_request(index, prompt, slots=[SlotRange(32 * index, 32)]) for index, prompt in enumerate(PROMPTS)]
    chunks = [Chunk(index, 0, len(prompt)) for index, prompt in enumerate(PROMPTS)]
    return StepPlan(0, admit=admit, chunks=chunks), StepPlan(1, decode=[1, 0])


def _expected(model: PreTrainedModel, sequences: Sequence[list[int]], new: slice, ranks: int) -> list[list[int]]:
    """What the routers of transformers choose for the new tokens of each sequence, by mixture and rank."""
    with torch.inference_mode():
        routed = [model(torch.tensor([ids]), output_router_logits=True).router_logits for ids in sequences]
    loads: list[list[int]] = []
    for of_sequences in zip(*routed, strict=True):
        experts = torch.cat([logits[new] for logits in of_sequences]).topk(TOP_K).indices.flatten().tolist()
        owners = [sum(expert >= start for start in STARTS[ranks]) - 1 for expert in experts]
        loads.append([owners.count(rank) for rank in range(ranks)])
    return loads


@pytest.mark.parametrize("graphs", [None, GraphSizes([8], [8], [32])], ids=["no graphs", "padded graphs"])
@pytest.mark.parametrize("ranks", [2, 4])
def test_counts_are_what_the_routers_choose(ranks: int, graphs: GraphSizes | None, tmp_path: Path) -> None:
    """Of all layers but the last, which computes the last token of each prompt alone."""
    model = _model(4, 1, tmp_path)
    engines = _engines(tmp_path, thread_groups(ranks, expert_parallel=True), graphs)
    prefill, decode = _steps(engines, *_plans())
    if graphs is not None:
        runner = engines[0]._runner
        assert runner is not None
        decodes, _, chunks = replays(runner._captured.base)
        assert (decodes, chunks) == ({8}, {32})
    assert prefill[0].expert_loads == _expected(model, PROMPTS, slice(None), ranks)[:-1]
    first = dict(zip(prefill[0].rows, prefill[0].ids, strict=True))
    longer = [[*prompt, first[row]] for row, prompt in enumerate(PROMPTS)]
    assert decode[0].expert_loads == _expected(model, longer, slice(-1, None), ranks)[:-1]
    assert all(not reply.expert_loads for replies in (prefill, decode) for reply in replies[1:])


def test_four_mixtures_spread_over_a_deep_model_are_counted(tmp_path: Path) -> None:
    model = _model(13, 2, tmp_path)
    engines = _engines(tmp_path, thread_groups(2, expert_parallel=True))
    ((prefill, _),) = _steps(engines, _plans()[0])
    expected = _expected(model, PROMPTS, slice(None), 2)
    assert prefill.expert_loads == [expected[mixture] for mixture in (0, 2, 3, 5)]


def test_a_plan_that_computes_nothing_has_no_counts(tmp_path: Path) -> None:
    _model(2, 1, tmp_path)
    engines = _engines(tmp_path, thread_groups(2, expert_parallel=True))
    computed, dropped = _steps(engines, _plans()[0], StepPlan(1, drop=[0, 1]))
    assert computed[0].expert_loads
    assert not dropped[0].expert_loads


@pytest.mark.parametrize("groups", [thread_groups(2), thread_groups(1, expert_parallel=True)], ids=["slices", "one"])
def test_nothing_is_counted_where_ranks_do_not_share_out_experts(groups: list[ThreadGroup], tmp_path: Path) -> None:
    _model(2, 1, tmp_path)
    for replies in _steps(_engines(tmp_path, groups), *_plans()):
        assert all(not reply.expert_loads for reply in replies)
