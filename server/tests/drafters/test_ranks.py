"""Ranks draft the same tokens, and say what one says."""

from functools import partial
from pathlib import Path

import pytest
import torch
from support.checkpoints import tiny_llama
from support.eagle import write_head
from support.engine_driver import LIMITS, make_engine
from support.loading import load
from support.thread_ranks import ThreadGroup, thread_groups, together
from support.windows import Reader, request

from text_generation_server.drafters import DraftStep
from text_generation_server.drafters.eagle import EagleDrafter
from text_generation_server.engine.engine import Engine
from text_generation_server.engine.options import EngineOptions
from text_generation_server.engine.requests import Chunk, Request, StepPlan, StepReply
from text_generation_server.layers.weights import ends

PROMPTS = [[5, 6, 7, 5, 6], [1, 2, 3], [9, 8, 7, 6]]


def asked() -> list[Request]:
    sampled = {"do_sample": True, "temperature": 0.8}
    settings = ({}, {**sampled, "seed": 7, "repetition_penalty": 1.3}, {**sampled, "seed": 8, "top_k": 20})
    return [request(row, PROMPTS[row], **each) for row, each in enumerate(settings)]


def generated(groups: list[ThreadGroup], target: Path, head: Path, width: int) -> Reader:
    def build(group: ThreadGroup) -> Engine:
        options = EngineOptions(speculate=3)
        engine = make_engine(load(target, group=group, drafter=head), None, group=group, options=options)
        engine.warmup(LIMITS)
        return engine

    engines = together([partial(build, group) for group in groups])

    def step(plan: StepPlan) -> StepReply:
        replies = together([lambda engine=engine: engine.step(plan).result() for engine in engines])
        assert all(list(each.ids) == list(replies[0].ids) for each in replies)
        assert all(each.counts == replies[0].counts for each in replies)
        return replies[0]

    found, requests = Reader(), asked()
    chunks = [Chunk(each.row, 0, len(each.input_ids)) for each in requests]
    found.read(step(StepPlan(0, admit=requests, chunks=chunks)))
    number = 0
    while rows := [each.row for each in requests if len(found.ids[each.row]) < each.max_new_tokens]:
        number += 1
        widths = [width] * len(rows) if width > 1 else []
        found.read(step(StepPlan(number, decode=rows, widths=widths)))
    return found


@pytest.mark.parametrize("is_cut", [False, True], ids=["whole embedding", "embedding in shards"])
@pytest.mark.parametrize("width", [1, 4])
def test_ranks_draft_alike(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, is_cut: bool, width: int
) -> None:
    target = tiny_llama(tmp_path_factory, num_hidden_layers=4)
    head = write_head(tmp_path_factory.mktemp("head"), target, (1, 2, 4))
    expected = generated(thread_groups(1), target, head, width)
    monkeypatch.setattr(ends, "cuts_embedding", lambda *_: is_cut)
    drafted: dict[EagleDrafter, list[torch.Tensor]] = {}
    original = EagleDrafter.draft

    def draft(drafter: EagleDrafter, step: DraftStep) -> None:
        original(drafter, step)
        drafted.setdefault(drafter, []).append(step.drafts.ids[step.chosen, : step.width].clone())

    monkeypatch.setattr(EagleDrafter, "draft", draft)
    found = generated(thread_groups(2), target, head, width)
    assert (found.ids, found.steps) == (expected.ids, expected.steps)
    first, second = drafted.values()
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(first, second, strict=True))
