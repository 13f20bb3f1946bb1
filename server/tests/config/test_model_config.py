"""`config.json` and `generation_config.json` as they are found on the hub, and as they should not be."""

import json
from pathlib import Path
from typing import Any

import pytest

from text_generation_server.config import ModelConfig
from text_generation_server.errors import ConfigurationError, EngineError, ModelFilesError, UnsupportedModel

RAW: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}


def _parse(folder: Path, generation: dict[str, Any] | None = None, **values: Any) -> ModelConfig:
    (folder / "config.json").write_text(json.dumps({**RAW, **values}))
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    return ModelConfig.from_folder(folder)


def test_a_bare_configuration_gets_the_defaults_of_the_family(tmp_path: Path) -> None:
    config = _parse(tmp_path)
    attention, ffn = config.decoder.layers[0].mixer, config.decoder.layers[0].ffn
    assert (attention.num_kv_heads, attention.head_dim, config.max_position_embeddings) == (4, 16, 2048)
    assert (config.decoder.final_norm.eps, ffn.activation, config.ropes[0].theta) == (1e-6, "silu", 1e4)
    assert (attention.qkv_bias, ffn.in_bias, config.decoder.head.tied) == (False, False, False)
    assert (config.dtype, config.bos_token_id, config.eos_token_ids) == (None, None, ())


def test_null_is_absent(tmp_path: Path) -> None:
    config = _parse(tmp_path, head_dim=None, num_key_value_heads=None, rope_scaling=None, eos_token_id=None)
    attention = config.decoder.layers[0].mixer
    assert (attention.head_dim, attention.num_kv_heads, config.ropes[0].rope_type) == (16, 4, "default")


def test_end_of_text_ids_of_both_files_count(tmp_path: Path) -> None:
    config = _parse(tmp_path, {"eos_token_id": [9, 7]}, eos_token_id=2, bos_token_id=[1])
    assert config.eos_token_ids == (2, 7, 9)
    assert config.bos_token_id == 1


@pytest.mark.parametrize("key", ["dtype", "torch_dtype"])
def test_dtype_under_both_names(tmp_path: Path, key: str) -> None:
    assert _parse(tmp_path, **{key: "bfloat16"}).dtype == "bfloat16"


@pytest.mark.parametrize(
    "values",
    [
        {"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2}},
        {"rope_theta": 5e5, "rope_scaling": {"rope_type": "linear", "factor": 2.0}},
        {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 5e5}},
    ],
    ids=str,
)
def test_three_layouts_of_rope_are_one(tmp_path: Path, values: dict[str, Any]) -> None:
    (rope,) = _parse(tmp_path, **values).ropes
    assert (rope.rope_type, rope.factor, rope.theta) == ("linear", 2.0, 5e5)


@pytest.mark.parametrize(
    ("scaling", "named"),
    [
        ({"rope_type": "yarn", "factor": 2.0, "llama_4_scaling_beta": 0.1}, "llama_4_scaling_beta"),
        ({"type": "dynamic", "factor": 2.0, "alpha": 1000.0}, "alpha"),
        ({"type": "yarn", "factor": 2.0, "attn_factor": 0.5}, "attn_factor"),
        ({"full_attention": {"rope_theta": 1e6}, "sliding_attention": {"rope_theta": 1e4}}, "full_attention"),
    ],
)
@pytest.mark.parametrize("key", ["rope_scaling", "rope_parameters"])
def test_a_key_of_rope_that_nobody_reads_is_refused(
    key: str, scaling: dict[str, Any], named: str, tmp_path: Path
) -> None:
    """Other positions would have other angles, without an error."""
    with pytest.raises(UnsupportedModel, match=f"`{key}` in config.json has `{named}`, which is not implemented"):
        _parse(tmp_path, **{key: scaling})


def test_keys_of_rope_that_change_nothing_are_taken(tmp_path: Path) -> None:
    scaling = {"type": "yarn", "factor": 2.0, "finetuned": True, "attn_factor": 1, "extrapolation_factor": 1.0}
    (rope,) = _parse(tmp_path, rope_scaling={**scaling, "mrope_section": None}).ropes
    assert (rope.rope_type, rope.factor) == ("yarn", 2.0)


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"hidden_size": "64"}, "hidden_size"),
        ({"hidden_size": None}, "hidden_size"),
        ({"hidden_size": 0}, "hidden_size"),
        ({"hidden_size": True}, "hidden_size"),
        ({"vocab_size": -1}, "vocab_size"),
        ({"max_position_embeddings": 10**12}, "max_position_embeddings"),
        ({"max_position_embeddings": 1e30}, "max_position_embeddings"),
        ({"max_position_embeddings": 10**400}, "max_position_embeddings"),
        ({"rope_theta": 10**400}, "rope_theta"),
        ({"num_hidden_layers": 1.5}, "num_hidden_layers"),
        ({"num_key_value_heads": 3}, "num_key_value_heads"),
        ({"hidden_size": 65}, "num_attention_heads"),
        ({"head_dim": 7}, "head_dim"),
        ({"rms_norm_eps": 0}, "rms_norm_eps"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps"),
        ({"attention_bias": "yes"}, "attention_bias"),
        ({"hidden_act": "relu6"}, "hidden_act"),
        ({"eos_token_id": "</s>"}, "eos_token_id"),
        ({"architectures": []}, "architectures"),
        ({"architectures": [3]}, "architectures"),
        ({"rope_theta": -1}, "rope_theta"),
        ({"architectures": ["PhiForCausalLM"], "partial_rotary_factor": 1.5}, "partial_rotary_factor"),
        ({"architectures": ["PhiForCausalLM"], "partial_rotary_factor": 0.01}, "partial_rotary_factor"),
        ({"rope_scaling": "linear"}, "rope_scaling"),
        ({"rope_scaling": {"rope_type": "longrope", "short_factor": [1.0], "long_factor": [1.0] * 8}}, "short_factor"),
        ({"rope_scaling": {"rope_type": "linear"}}, "factor"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8}}, "low_freq_factor"),
        (
            {"rope_scaling": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 5, "high_freq_factor": 4}},
            "high_freq_factor",
        ),
    ],
    ids=str,
)
def test_a_wrong_value_is_named(tmp_path: Path, values: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigurationError, match=f"config.json.*`{named}`"):
        _parse(tmp_path, **values)


def test_a_context_stretched_beyond_what_positions_can_name_ends_there(tmp_path: Path) -> None:
    config = _parse(tmp_path, rope_scaling={"rope_type": "linear", "factor": 1e300})
    assert config.max_context_length == 2**31 - 1


@pytest.mark.parametrize(
    "values",
    [
        {"rope_scaling": {"rope_type": "mrope", "factor": 4.0}},
        {"quantization_config": {"quant_method": "exl2"}},
    ],
    ids=str,
)
def test_features_that_are_missing_are_refused_not_ignored(tmp_path: Path, values: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedModel, match=next(iter(values))):
        _parse(tmp_path, **values)


@pytest.mark.parametrize("text", ["", "{", "[1]", "null"])
def test_an_unreadable_file_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ModelFilesError, match=r"config\.json"):
        ModelConfig.from_folder(tmp_path)


def test_a_folder_without_configuration_is_named(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"has no config\.json: --model-id"):
        ModelConfig.from_folder(tmp_path)
