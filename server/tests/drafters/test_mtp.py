"""Layers of a model's checkpoint that guess further tokens draft what plain torch says, and change no text."""

import json
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.engine_driver import LIMITS, make_engine
from support.loading import load
from support.mtp import CASES, LAYERS, MtpCase
from support.thread_ranks import ThreadGroup, thread_groups, together
from support.windows import request, run
from torch import Tensor

from text_generation_server.config.drafter import read_drafter_config
from text_generation_server.config.implementation import read_model_config
from text_generation_server.config.json_object import JsonObject
from text_generation_server.config.mtp import MtpConfig, is_mtp, read_mtp
from text_generation_server.drafters import DraftStep, MtpDrafter
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


@pytest.fixture(scope="module", params=CASES)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> MtpCase:
    return MtpCase(request.param, tmp_path_factory.mktemp("model"))


def asked() -> list[Request]:
    return [request(row, PROMPTS[row], **each) for row, each in enumerate(SETTINGS)]


@pytest.mark.parametrize("width", [1, 4])
def test_text_and_drafts(case: MtpCase, monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    expected = run(make_engine(load(case.folder)), asked(), 1)
    engine = make_engine(load(case.folder, drafter=case.folder), LIMITS, options=EngineOptions(speculate=3))
    seen: list[tuple[list[int], list[int]]] = []
    original = MtpDrafter.draft

    def draft(drafter: MtpDrafter, step: DraftStep) -> None:
        original(drafter, step)
        for row in step.chosen.tolist() if step.wanted else ():
            # The others sample.
            if row in (0, 2):
                length, limit = int(step.sequences.length[row]), int(step.drafts.limits[row])
                ids = step.drafts.ids[row, : min(int(step.drafts.counts[row]), limit - length)].tolist()
                seen.append((step.drafts.tokens[row, :length].tolist(), ids))

    monkeypatch.setattr(MtpDrafter, "draft", draft)
    assert run(engine, asked(), width).ids == expected.ids
    assert max(len(ids) for _, ids in seen) == min(width, 3)
    for text, ids in seen:
        assert ids == case.drafts(text, len(ids)), text


def test_ranks_draft_alike(case: MtpCase, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has a shard of the layer, whose cache is whole where that of latent attention is not."""
    drafted: dict[MtpDrafter, list[Tensor]] = {}
    said: dict[int, list[list[int]]] = {}
    original = MtpDrafter.draft

    def draft(drafter: MtpDrafter, step: DraftStep) -> None:
        original(drafter, step)
        drafted.setdefault(drafter, []).append(step.drafts.ids[step.chosen, : step.width].clone())

    def build(group: ThreadGroup) -> Engine:
        model = load(case.folder, group=group, drafter=case.folder)
        engine = make_engine(model, None, group=group, options=EngineOptions(speculate=3))
        engine.warmup(LIMITS)
        return engine

    chunks = [Chunk(each.row, 0, len(each.input_ids)) for each in asked()]
    plans = StepPlan(0, admit=asked(), chunks=chunks), StepPlan(1, decode=[2, 0, 1, 3], widths=[4] * 4)
    for ranks, context_parallel in ((1, False), (2, False), (2, True)):
        groups = thread_groups(ranks, context_parallel=context_parallel)
        engines = together([partial(build, group) for group in groups])
        with monkeypatch.context() as patch:
            patch.setattr(MtpDrafter, "draft", draft)
            for plan in plans:
                replies = together([lambda engine=engine, plan=plan: engine.step(plan).result() for engine in engines])
                said.setdefault(plan.number, []).extend(list(reply.ids) for reply in replies)
    assert all(ids == each[0] for each in said.values() for ids in each)
    assert len(drafted) == 5
    for each in zip(*drafted.values(), strict=True):
        assert all(torch.equal(each[0], other) for other in each[1:])


def test_a_model_without_such_layers(case: MtpCase, tmp_path: Path) -> None:
    config = json.loads((case.folder / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, case.key: 0}))
    with pytest.raises(ConfigurationError, match=rf"`{case.key}` is 0( or missing)?, so the model has no lay"):
        load(case.folder, drafter=tmp_path)


def test_files_of_models_with_images_say_it_of_their_text(tmp_path: Path) -> None:
    decoder = SimpleNamespace(layers=[0] * 8)
    target = SimpleNamespace(architecture="Qwen3_5ForConditionalGeneration", decoder=decoder)

    def read(**text: object) -> MtpConfig:
        raw = {"architectures": [target.architecture], "text_config": text}
        (tmp_path / "config.json").write_text(json.dumps(raw))
        config = JsonObject.from_file(tmp_path / "config.json")
        assert is_mtp(config, target)  # type: ignore[arg-type]
        return read_mtp(config, target)  # type: ignore[arg-type]

    found = read(mtp_num_hidden_layers=1, mtp_use_dedicated_embeddings=False)
    assert (found.layer, found.around, found.layers) == ("mtp.layers.0.", "mtp.", (8,))
    with pytest.raises(ConfigurationError, match="`mtp_num_hidden_layers` is 0, so"):
        read(mtp_num_hidden_layers=0)
    with pytest.raises(ConfigurationError, match="`mtp_use_dedicated_embeddings` must be false"):
        read(mtp_use_dedicated_embeddings=True)


def test_layers_of_another_model_are_refused(case: MtpCase, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text((case.folder / "config.json").read_text())
    config = read_model_config(case.folder)
    assert read_drafter_config(case.folder / ".", config, "mtp", case.folder)
    with pytest.raises(ConfigurationError, match=r"is that of another .* name the model itself"):
        read_drafter_config(tmp_path, config, "mtp", case.folder)


def test_a_checkpoint_without_them(case: MtpCase, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text((case.folder / "config.json").read_text())
    tensors = load_file(case.folder / "model.safetensors")
    kept = {name: each for name, each in tensors.items() if "mtp" not in name and f"layers.{LAYERS}." not in name}
    save_file(kept, tmp_path / "model.safetensors")
    with pytest.raises(ModelFilesError, match="hold no layers that guess further tokens"):
        load(tmp_path, drafter=tmp_path)
