"""Heads of Medusa draft what plain torch says, and change no text."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.checkpoints import tiny_llama
from support.engine_driver import LIMITS, make_engine
from support.loading import load
from support.thread_ranks import ThreadGroup, thread_groups, together
from support.windows import request, run
from torch import Tensor
from torch.nn import functional
from transformers import LlamaForCausalLM

from text_generation_server.drafters import DraftStep
from text_generation_server.drafters.medusa import MedusaDrafter
from text_generation_server.engine.engine import Engine
from text_generation_server.engine.options import EngineOptions
from text_generation_server.engine.requests import Chunk, Request, StepPlan
from text_generation_server.errors import ConfigurationError, ModelFilesError

PROMPTS = [[5, 6, 7, 5, 6], [1, 2, 3], [9, 8, 7, 6, 9, 8, 7, 6], [11]]
SETTINGS: list[dict[str, Any]] = [
    {},
    {"do_sample": True, "seed": 7, "temperature": 0.7},
    {"repetition_penalty": 1.3, "frequency_penalty": 0.7},
    {"do_sample": True, "seed": 11, "top_p": 0.9, "top_k": 20},
]
HIDDEN, VOCABULARY = 64, 384


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory)


def write_heads(folder: Path, own: bool, heads: int = 3, blocks: int = 2) -> Path:
    """`own`: version 1, whose heads have matrices of the vocabulary."""
    (folder / "config.json").write_text(
        json.dumps({"base_model_name_or_path": "x", "medusa_num_heads": heads, "medusa_num_layers": blocks})
    )
    chance = torch.Generator().manual_seed(3)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=chance) * 0.3

    tensors: dict[str, Tensor] = {}
    for head in range(heads):
        for block in range(blocks):
            tensors[f"{head}.{block}.linear.weight"] = random(HIDDEN, HIDDEN)
            tensors[f"{head}.{block}.linear.bias"] = random(HIDDEN)
        if own:
            tensors[f"{head}.{blocks}.weight"] = random(VOCABULARY, HIDDEN)
    save_file(tensors, folder / "medusa_lm_head.safetensors")
    return folder


@torch.no_grad()
def plain_drafts(folder: Path, target: Path, text: list[int], count: int) -> list[int]:
    """Greedy drafts of what follows a text."""
    tensors, model = load_file(folder / "medusa_lm_head.safetensors"), LlamaForCausalLM.from_pretrained(target)
    # The newest token was chosen behind the one before.
    hidden = model.float().model(input_ids=torch.tensor([text[:-1]])).last_hidden_state[0, -1]
    found: list[int] = []
    for head in range(count):
        x, block = hidden, 0
        while f"{head}.{block}.linear.weight" in tensors:
            weight, bias = (tensors[f"{head}.{block}.linear.{each}"] for each in ("weight", "bias"))
            x, block = x + functional.silu(functional.linear(x, weight, bias)), block + 1
        found.append(int((tensors.get(f"{head}.{block}.weight", model.lm_head.weight) @ x).argmax()))
    return found


def asked() -> list[Request]:
    return [request(row, PROMPTS[row], **each) for row, each in enumerate(SETTINGS)]


@pytest.mark.parametrize("own", [True, False], ids=["version 1", "version 2"])
@pytest.mark.parametrize("width", [1, 2, 4])
def test_text_and_drafts(target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: bool, width: int) -> None:
    folder = write_heads(tmp_path, own)
    expected = run(make_engine(load(target)), asked(), 1)
    engine = make_engine(load(target, drafter=folder), options=EngineOptions(speculate=3))
    seen: list[tuple[list[int], list[int]]] = []
    original = MedusaDrafter.draft

    def draft(drafter: MedusaDrafter, step: DraftStep) -> None:
        original(drafter, step)
        for row in step.chosen.tolist() if step.wanted else ():
            # The others sample.
            if row in (0, 2):
                length, count = int(step.sequences.length[row]), int(step.drafts.counts[row])
                ids = step.drafts.ids[row, :count].tolist()
                seen.append((step.drafts.tokens[row, :length].tolist(), ids))

    monkeypatch.setattr(MedusaDrafter, "draft", draft)
    assert run(engine, asked(), width).ids == expected.ids
    assert max(len(ids) for _, ids in seen) == min(width, 3)
    for text, ids in seen:
        assert ids == plain_drafts(folder, target, text, len(ids))


@pytest.mark.parametrize("own", [True, False], ids=["version 1", "version 2"])
def test_ranks_draft_alike(target: Path, tmp_path: Path, own: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_heads(tmp_path, own)
    drafted: dict[MedusaDrafter, list[Tensor]] = {}
    original = MedusaDrafter.draft

    def draft(drafter: MedusaDrafter, step: DraftStep) -> None:
        original(drafter, step)
        drafted.setdefault(drafter, []).append(step.drafts.ids[step.chosen, : step.width].clone())

    def build(group: ThreadGroup) -> Engine:
        options = EngineOptions(speculate=3)
        engine = make_engine(load(target, group=group, drafter=folder), None, group=group, options=options)
        engine.warmup(LIMITS)
        return engine

    for ranks in (1, 2):
        engines = together([partial(build, group) for group in thread_groups(ranks)])
        with monkeypatch.context() as patch:
            patch.setattr(MedusaDrafter, "draft", draft)
            chunks = [Chunk(each.row, 0, len(each.input_ids)) for each in asked()]
            for plan in (StepPlan(0, admit=asked(), chunks=chunks), StepPlan(1, decode=[2, 0, 1, 3], widths=[4] * 4)):
                together([lambda engine=engine, plan=plan: engine.step(plan).result() for engine in engines])
    alone, first, second = drafted.values()
    for each in zip(alone, first, second, strict=True):
        assert all(torch.equal(each[0], other) for other in each[1:])


def test_heads_that_are_refused(target: Path, tmp_path: Path) -> None:
    folder = write_heads(tmp_path, own=True)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "medusa_num_heads": 2}))
    with pytest.raises(
        ModelFilesError, match=r"what `model` of --speculative-config reads has no `2\.0\.linear\.bias`, "
    ):
        load(target, drafter=folder)
    (folder / "config.json").write_text(json.dumps({**config, "medusa_num_heads": 4}))
    with pytest.raises(ModelFilesError, match=r"no tensor `3\.0\.linear\.weight`, which `model` of"):
        load(target, drafter=folder)
    (folder / "config.json").write_text(json.dumps({**config, "medusa_num_heads": "many"}))
    with pytest.raises(ConfigurationError, match="`medusa_num_heads` must be an integer"):
        load(target, drafter=folder)
