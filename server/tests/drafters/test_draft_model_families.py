"""Models of all kinds of families draft, and others are refused with a message that names the flag and the reason."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.checkpoints import tiny_llama
from support.engine_driver import make_engine
from support.families import model_of, write
from support.family_cases import CASES
from support.loading import load
from support.windows import NEW_TOKENS, request, run

from text_generation_server.config.draft_model import DraftModelConfig
from text_generation_server.config.drafter import read_drafter_config
from text_generation_server.config.implementation import read_model_config
from text_generation_server.engine.options import EngineOptions
from text_generation_server.errors import ConfigurationError, ModelFilesError

PROMPTS = [[5, 6, 7, 5, 6], [14, 12, 13], [9, 8, 7, 6, 9, 8, 7, 6], [11]]
DRAFT = [
    "qwen3", "gemma3", "gemma3n", "gpt2", "bloom", "opt 350m", "cohere2", "mixtral", "llama4", "deepseek v3", "olmo2",
    "solar", "exaone4", "gemma4 small",
]  # fmt: skip
"""Windows, tables of positions, slopes, experts, latent attention, inputs of layers, several streams."""


def folder_of(name: str, folder: Path) -> Path:
    write(CASES[name], model_of(name), folder)
    return folder


@pytest.mark.parametrize("name", DRAFT)
def test_all_drafts_of_the_model_itself_are_right(name: str, tmp_path: Path) -> None:
    folder = folder_of(name, tmp_path)
    requests = [request(row, prompt, do_sample=True, seed=row, temperature=0.7) for row, prompt in enumerate(PROMPTS)]
    expected = run(make_engine(load(folder)), requests, 1)
    engine = make_engine(load(folder, drafter=folder, kind="draft_model"), options=EngineOptions(speculate=3))
    found = run(engine, requests, 4)
    assert found.ids == expected.ids
    # The prompts' step drafts one token, and each other one three.
    assert found.steps == 2 + -(-(NEW_TOKENS - 3) // 4)


REFUSED = {
    "qwen3.5": "its recurrent layers keep a state, which passes over drafts would change",
    "mamba 2": "its recurrent layers keep a state",
    "deepseek v3.2": "its attention chooses positions by keys of their own",
    "minimax m3": "its attention chooses positions by keys of their own",
}


@pytest.mark.parametrize("name", REFUSED)
def test_families_that_cannot_draft(name: str, tmp_path: Path, target: Path) -> None:
    folder = folder_of(name, tmp_path)
    message = f"config.json: a [A-Za-z0-9_]+ cannot draft: {REFUSED[name]}.*: let `model` of --speculative-config name"
    with pytest.raises(ConfigurationError, match=message):
        load(target, drafter=folder)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory)


def with_tokenizer(target: Path, folder: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    """A copy of the model with another tokenizer."""
    shutil.copytree(target, folder)
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    change(tokenizer)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    return folder


def read(folder: Path, target: Path, kind: Any = None) -> object:
    return read_drafter_config(folder, read_model_config(target), kind, target)


def swap(tokenizer: dict[str, Any]) -> None:
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]


def shorten(tokenizer: dict[str, Any]) -> None:
    vocabulary = tokenizer["model"]["vocab"]
    del vocabulary[max(vocabulary, key=vocabulary.__getitem__)]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (swap, r"tokenizer.json: id \d+ is '[ab]', and of the model '[ab]': `model` of --speculative-config names a"),
        (shorten, r"tokenizer.json: id 383 is nothing, and of the model '.+': .*: name one of the same family"),
    ],
)
def test_another_vocabulary(target: Path, tmp_path: Path, change: Callable[[Any], object], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        read(with_tokenizer(target, tmp_path / "other", change), target)


def test_vocabularies_that_differ_in_nothing_that_counts(target: Path, tmp_path: Path) -> None:
    """A tuned model renames its special tokens, and templates and truncation change no id."""

    def change(tokenizer: dict[str, Any]) -> None:
        tokenizer["added_tokens"][-1]["content"] = "<other>"
        tokenizer["truncation"] = None
        tokenizer["more"] = 1

    assert isinstance(read(with_tokenizer(target, tmp_path / "other", change), target), DraftModelConfig)


def test_without_a_tokenizer_nothing_can_be_compared(target: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(target, tmp_path / "other")
    (folder / "tokenizer.json").unlink()
    with pytest.raises(ConfigurationError, match=r"has no tokenizer.json, so the vocabularies .* cannot be compared"):
        read(folder, target)
    for each in (folder, shutil.copytree(folder, tmp_path / "target")):
        (each / "tokenizer.model").write_text("the same")
    assert isinstance(read(folder, tmp_path / "target"), DraftModelConfig)


@pytest.mark.parametrize("rows", [300, 400], ids=["fewer", "more"])
def test_tables_of_other_lengths_behind_the_last_token(
    target: Path, tmp_path_factory: pytest.TempPathFactory, rows: int
) -> None:
    """Checkpoints of one family pad the same vocabulary to different sizes."""
    other = tiny_llama(tmp_path_factory, vocab_size=rows)
    requests = [request(row, [max(prompt), 350, *prompt]) for row, prompt in enumerate(PROMPTS)]
    engine = make_engine(load(target, drafter=other, kind="draft_model"), options=EngineOptions(speculate=3))
    assert run(engine, requests, 4).ids == run(make_engine(load(target)), requests, 1).ids


def test_methods_that_the_folder_does_not_hold(target: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"is eagle3, and .* names a whole model: set `method` to draft_model"):
        read(target, target, "eagle3")
    head = Path(__file__).parents[3] / "models" / "demo" / "drafter"
    demo = head.parent
    with pytest.raises(
        ConfigurationError, match=r"is draft_model, and .* names an EAGLE-3 head: set `method` to eagle"
    ):
        read(head, demo, "draft_model")
    (tmp_path / "config.json").write_text('{"architectures": ["NobodyForCausalLM"]}')
    with pytest.raises(
        ConfigurationError, match=r"`model` of --speculative-config names the model in .*, which cannot"
    ):
        read(tmp_path, target, "draft_model")


def test_a_table_of_positions_that_ends_early(target: Path, tmp_path: Path) -> None:
    """That of the model ends at 256."""
    with pytest.raises(
        ConfigurationError, match=r"a GPT2LMHeadModel cannot draft: its table of positions ends at 64 t"
    ):
        read_drafter_config(folder_of("gpt2", tmp_path), read_model_config(target))


def test_a_classifier(target: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(target, tmp_path / "other")
    config = json.loads((folder / "config.json").read_text())
    config |= {"architectures": [config["architectures"][0].replace("CausalLM", "SequenceClassification")]}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigurationError, match="cannot draft: it is a classifier and has no head"):
        read_drafter_config(folder, read_model_config(target))


def test_a_folder_without_weights(target: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(target, tmp_path / "other")
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelFilesError, match="safetensors"):
        load(target, drafter=folder)
