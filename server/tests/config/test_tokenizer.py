"""The token that ends a text by the files of the tokenizer, which know it where those of the model do not."""

import json
from pathlib import Path
from typing import Any

import pytest

from text_generation_server.config.implementation import read_model_config
from text_generation_server.errors import ModelFilesError

END = "<|im_end|>"
NAMED: dict[str, Any] = {"tokenizer_config.json": {"eos_token": END}}
MODEL = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 8, "vocab_size": 100, "eos_token_id": 2}


def ends(
    folder: Path, files: dict[str, Any], architecture: str = "LlamaForCausalLM", eos: object = 2
) -> tuple[int, ...]:
    config = {"architectures": [architecture], "intermediate_size": 128, **MODEL}
    for name, content in {"config.json": config, "generation_config.json": {"eos_token_id": eos}, **files}.items():
        (folder / name).write_text(json.dumps(content))
    return read_model_config(folder).eos_token_ids


@pytest.mark.parametrize(
    "files",
    [
        {"tokenizer_config.json": {"eos_token": END, "added_tokens_decoder": {"7": {"content": END}, "8": {}}}},
        {"tokenizer_config.json": {"eos_token": {"content": END}}, "added_tokens.json": {END: 7}},
        {"special_tokens_map.json": {"eos_token": {"content": END}}, "vocab.json": {"a": 1, END: 7}},
        {**NAMED, "tokenizer.json": {"added_tokens": [{"content": "a", "id": 6}, {"content": END, "id": 7}]}},
        {**NAMED, "tokenizer.json": {"model": {"vocab": {"a": 1, END: 7}}}},
        {**NAMED, "tokenizer.json": {"model": {"vocab": [["a", 0.0]] * 7 + [[END, -1.0]]}}},
    ],
    ids=["decoder", "added tokens", "vocabulary", "tokenizer", "its vocabulary", "its pieces"],
)
@pytest.mark.parametrize("architecture", ["LlamaForCausalLM", "NanoChatForCausalLM"])
def test_a_text_ends_where_the_tokenizer_says(tmp_path: Path, files: dict[str, Any], architecture: str) -> None:
    assert ends(tmp_path, files, architecture) == (2, 7)


def test_a_turn_of_chatglm_3_ends_with_the_next_role(tmp_path: Path) -> None:
    roles = {"5": {"content": "<|user|>"}, "6": {"content": "<|assistant|>"}, "7": {"content": "<|observation|>"}}
    settings = {"eos_token": "</s>", "added_tokens_decoder": roles}
    files = {"tokenizer_config.json": {**settings, "tokenizer_class": "ChatGLMTokenizer"}}
    assert ends(tmp_path, files) == (2, 5, 7)
    assert ends(tmp_path, {"tokenizer_config.json": settings}) == (2,)


def test_a_list_of_the_model_has_the_last_word(tmp_path: Path) -> None:
    files = {**NAMED, "added_tokens.json": {END: 7}}
    assert ends(tmp_path, files, eos=[2, 5]) == (2, 5)
    (tmp_path / "generation_config.json").unlink()
    assert read_model_config(tmp_path).eos_token_ids == (2, 7)


@pytest.mark.parametrize(
    "files",
    [
        {},
        NAMED,
        {"tokenizer_config.json": {"eos_token": None}, "added_tokens.json": {END: 7}},
        {**NAMED, "added_tokens.json": {END: 100}},
        {**NAMED, "added_tokens.json": {END: -1}, "vocab.json": {END: True}},
        {"tokenizer_config.json": {"eos_token": END, "added_tokens_decoder": {"9" * 5000: {"content": END}}}},
        {"tokenizer_config.json": {"eos_token": END, "added_tokens_decoder": [END]}},
        {"special_tokens_map.json": [], "added_tokens.json": [END]},
        {**NAMED, "added_tokens.json": [END], "vocab.json": END},
        {**NAMED, "tokenizer.json": {"added_tokens": [7, {"content": END, "id": "7"}], "model": {"vocab": [END]}}},
    ],
)
def test_what_tells_no_id_of_the_model_changes_nothing(tmp_path: Path, files: dict[str, Any]) -> None:
    assert ends(tmp_path, files) == (2,)


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(ModelFilesError, match=r"tokenizer_config\.json is not valid JSON"):
        ends(tmp_path, {})


def test_a_pointer_of_git_lfs_is_called_one(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    with pytest.raises(ModelFilesError, match=r"tokenizer\.json is only a pointer of Git LFS"):
        ends(tmp_path, {"tokenizer_config.json": {"eos_token": "<x>"}})
