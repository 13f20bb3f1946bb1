"""Models for images or sound beside text: of which the text part is read, and what it says."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from support.families import SIZES, model_of, write
from support.loading import load
from support.media_cases import MEDIA_CASES
from transformers import CONFIG_MAPPING

from text_generation_server.config import ModelConfig
from text_generation_server.config.fallback import FallbackConfig
from text_generation_server.config.implementation import read_model_config
from text_generation_server.config.spec import AttentionSpec
from text_generation_server.errors import ConfigurationError, UnsupportedModel


def parse(folder: Path, part: dict[str, Any], **whole: Any) -> ModelConfig:
    values = {"architectures": ["LlavaForConditionalGeneration"], "text_config": part, "vision_config": {}, **whole}
    (folder / "config.json").write_text(json.dumps(values))
    return ModelConfig.from_folder(folder)


@pytest.mark.parametrize(
    "kind",
    [
        "deepseek_v3",
        "gemma3_text",
        "glm4v_text",
        "granite",
        "llama",
        "ministral3",
        "mistral",
        "mistral4",
        "qwen2",
        "qwen2_vl_text",
        "qwen2_5_vl_text",
        "qwen3",
        "qwen3_vl_moe_text",
        "qwen3_vl_text",
    ],
)
def test_what_is_absent_means_what_it_means_to_transformers(kind: str, tmp_path: Path) -> None:
    complete = CONFIG_MAPPING[kind]().to_dict()
    bare, full = parse(tmp_path, {"model_type": kind}), parse(tmp_path, complete)
    assert bare.decoder == full.decoder
    assert bare.max_position_embeddings == full.max_position_embeddings


def axes(folder: Path, kind: str, **values: Any) -> list[tuple[int, ...]]:
    """Of each layer with rotary embedding."""
    decoder = parse(folder, {"model_type": kind, **SIZES, "head_dim": 16, **values}).decoder
    return [each.rope.axes for each in decoder.mixers if isinstance(each, AttentionSpec) and each.rope is not None]


@pytest.mark.parametrize("key", ["rope_parameters", "rope_scaling"])
def test_pairs_of_a_head_count_along_axes(key: str, tmp_path: Path) -> None:
    rope = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [4, 1, 3]}
    assert axes(tmp_path, "qwen2_5_vl_text", **{key: rope}) == 3 * [(0, 0, 0, 0, 1, 2, 2, 2)]
    assert axes(tmp_path, "qwen3_vl_text", **{key: rope}) == 3 * [(0, 1, 2, 0, 0, 2, 0, 0)]
    assert axes(tmp_path, "llama", **{key: rope}) == 3 * [()]


def test_without_sections_there_is_one_axis(tmp_path: Path) -> None:
    assert axes(tmp_path, "qwen2_vl_text") == 3 * [()]


def test_sections_are_those_of_a_head(tmp_path: Path) -> None:
    rope = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [4, 1, 2]}
    with pytest.raises(ConfigurationError, match=r"`mrope_section`.* the sum 8, the rotated pairs of a head"):
        axes(tmp_path, "qwen2_vl_text", rope_parameters=rope)


def test_what_the_whole_says_counts_before_its_part(tmp_path: Path) -> None:
    part = {"model_type": "llama", **SIZES, "eos_token_id": 2, "dtype": "float16", "tie_word_embeddings": False}
    alone = parse(tmp_path, part)
    assert (alone.eos_token_ids, alone.dtype, alone.decoder.head.tied) == ((2,), "float16", False)
    whole = parse(tmp_path, part, eos_token_id=[1, 5], dtype="bfloat16", tie_word_embeddings=True)
    assert (whole.eos_token_ids, whole.dtype, whole.decoder.head.tied) == ((1, 5), "bfloat16", True)


def test_a_part_of_another_family_is_refused_with_those_that_run(tmp_path: Path) -> None:
    with pytest.raises(
        UnsupportedModel,
        match=r"LlavaForConditionalGeneration.*'mpt'.*gemma3_text, gemma3n_text, .*granite, internlm2, kimi_k2, llama",
    ):
        parse(tmp_path, {"model_type": "mpt"})
    with pytest.raises(ConfigurationError, match=r"`text_config`.*`model_type` is missing"):
        parse(tmp_path, {})


def test_a_wrong_value_of_the_part_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"config.json, `text_config`: `num_key_value_heads`"):
        parse(tmp_path, {"model_type": "llama", **SIZES, "num_key_value_heads": 3})


@pytest.mark.parametrize("name", list(MEDIA_CASES))
def test_tensors_of_images_are_no_surprise(name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(MEDIA_CASES[name], model_of(name), tmp_path)
    with caplog.at_level(logging.WARNING):
        load(tmp_path)
    assert [each for each in caplog.messages if not each.startswith("images are refused")] == []


def test_a_part_runs_through_its_class(tmp_path: Path) -> None:
    part = {"model_type": "gemma3n_text", **SIZES, "num_kv_shared_layers": 0, "eos_token_id": 7}
    values = {"architectures": ["Gemma3nForConditionalGeneration"], "text_config": part, "eos_token_id": [1, 5]}
    (tmp_path / "config.json").write_text(json.dumps({**values, "dtype": "bfloat16"}))
    config = read_model_config(tmp_path, "transformers")
    assert isinstance(config, FallbackConfig)
    assert (config.architecture, config.has_media) == ("Gemma3nForCausalLM", True)
    assert (config.eos_token_ids, config.dtype) == ((1, 5), "bfloat16")
    assert isinstance(read_model_config(tmp_path, "auto"), ModelConfig)
