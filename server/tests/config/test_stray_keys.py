"""Keys of `config.json` that other families have mean nothing where the class of Transformers does not read them."""

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import torch
from support.families import PROMPTS, Raw, logits_of, model_of, write
from support.family_cases import CASES
from transformers import AutoModelForCausalLM

from text_generation_server.config.json_object import JsonObject
from text_generation_server.config.model import parse_model_config
from text_generation_server.errors import EngineError

OTHERS: dict[str, list[Any]] = {
    "attention_bias": [True],
    "head_dim": [64],
    "hidden_act": ["relu"],
    "layer_norm_eps": [0.1],
    "layer_norm_epsilon": [0.1],
    "mlp_bias": [True],
    "n_head": [6],
    "norm_epsilon": [0.1],
    "num_key_value_heads": [1, 3],
    "partial_rotary_factor": [0.5],
    "rms_norm_eps": [0.1],
    "rope_scaling": [{"type": "linear", "factor": 2.0}],
    "rope_theta": [5e5],
}
"""Values that change what is computed where they are read, or cannot be served."""


@pytest.fixture(scope="module", name="files")
def configurations(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders of the cases that the class of Transformers reads as they are."""
    folders: dict[str, Path] = {}
    for name, case in CASES.items():
        if not case.has_media and case.relayout is None:
            folders[name] = tmp_path_factory.mktemp("model")
            write(case, model_of(name), folders[name])
    return folders


def read(raw: Raw) -> object:
    """Everything that is read of it, or why it is refused."""
    try:
        config = parse_model_config(JsonObject(raw, "config.json"), None)
    except EngineError as error:
        return str(error)
    return config.decoder, config.names


def theirs(name: str, folder: Path, raw: Raw) -> torch.Tensor | None:
    """Logits of the class with this configuration; None where it cannot be loaded with it."""
    before = (folder / "config.json").read_text()
    (folder / "config.json").write_text(json.dumps(raw))
    try:
        how = CASES[name].attention
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation=how)
        return logits_of(CASES[name], model.eval(), PROMPTS[4])
    except Exception:  # whatever the class raises for values that do not fit
        return None
    finally:
        (folder / "config.json").write_text(before)


def test_keys_that_a_class_does_not_read_mean_nothing(files: dict[str, Path]) -> None:
    wrong: dict[str, set[str]] = defaultdict(set)
    for name, folder in files.items():
        raw = json.loads((folder / "config.json").read_text())
        usual, expected = read(raw), None
        strays = [(key, value) for key, values in OTHERS.items() if raw.get(key) is None for value in values]
        for key, value in strays:
            changed = {**raw, key: value}
            if read(changed) == usual:
                continue
            if expected is None:
                expected = theirs(name, folder, raw)
                assert expected is not None, name
            found = theirs(name, folder, changed)
            if found is not None and torch.equal(found, expected):
                wrong[name].add(key)
    assert not wrong


@pytest.mark.parametrize("name", ["gpt neox", "gptj"])
@pytest.mark.parametrize("kv_heads", [1, 2, 3, 32])
def test_models_of_one_kind_of_heads_start_whatever_the_file_says_of_others(
    name: str, kv_heads: int, files: dict[str, Path]
) -> None:
    raw = json.loads((files[name] / "config.json").read_text())
    assert read({**raw, "num_key_value_heads": kv_heads, "head_dim": 16}) == read(raw)
    assert not isinstance(read(raw), str)
