"""A model that cannot be served as asked is refused from its small files alone."""

import json
import shutil
from pathlib import Path

import pytest

from text_generation_server.config.server import Environment
from text_generation_server.config.serving import AskedLimits, check_servable
from text_generation_server.errors import ConfigurationError, ModelFilesError, UnsupportedModel


@pytest.fixture
def folder(llama_folder: Path, tmp_path: Path) -> Path:
    """A model of 256 positions without its weights."""
    return Path(shutil.copytree(llama_folder, tmp_path / "model", ignore=shutil.ignore_patterns("*.safetensors")))


def check(folder: Path, limits: AskedLimits | None = None, **variables: str) -> None:
    check_servable(folder, Environment.read(variables), limits or AskedLimits())


def test_what_can_be_served_passes(folder: Path) -> None:
    check(folder)
    check(folder, AskedLimits(255, 256))


def test_an_architecture_that_is_not_there(folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps({"architectures": ["MambaForCausalLM"], "n_embd": 8}))
    with pytest.raises(UnsupportedModel, match=r"'MambaForCausalLM' is not supported; .*Llama.*docs/models\.md"):
        check(folder)


def test_a_model_without_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    with pytest.raises(ModelFilesError, match=r"has no tokenizer: .* fetch the tokenizer\.json"):
        check(folder)
    (folder / "tokenizer.model").touch()
    check(folder)


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        (AskedLimits(None, 257), "--max-total-tokens 257 is too many for the 256 positions .* at most 256"),
        (AskedLimits(256, None), "--max-input-tokens 256 is too many for the 256 positions .* at most 255"),
    ],
)
def test_limits_beyond_the_context(folder: Path, limits: AskedLimits, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        check(folder, limits)
    check(folder, limits, ROPE_SCALING="linear", ROPE_FACTOR="2")
