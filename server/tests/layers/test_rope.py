"""Frequencies against those of transformers."""

from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from text_generation_server.config import ModelConfig
from text_generation_server.config.json_object import JsonObject
from text_generation_server.config.model import parse_model_config
from text_generation_server.config.rotary import RopeSpec
from text_generation_server.layers.rope import cos_sin_table

SCALINGS: list[dict[str, Any]] = [
    {"rope_type": "linear", "factor": 4.0},
    {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
    {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 64},
    {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 64, "truncate": False, "beta_fast": 16},
    {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 64, "attention_factor": 1.5},
    {
        "rope_type": "yarn",
        "factor": 8.0,
        "original_max_position_embeddings": 64,
        "mscale": 1.0,
        "mscale_all_dim": 0.7,
    },
    # 0 is none, of one or of both.
    {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 64, "mscale": 0.7, "mscale_all_dim": 0},
    {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 64, "mscale": 0, "mscale_all_dim": 0.0},
]


def _ours(scaling: dict[str, Any], **values: Any) -> ModelConfig:
    raw = {
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": 100,
        "hidden_size": 128,
        "intermediate_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "max_position_embeddings": 512,
        "rope_theta": 5e4,
        "rope_scaling": scaling,
        **values,
    }
    return parse_model_config(JsonObject(raw, "config.json"), None)


def _rope(config: ModelConfig) -> tuple[RopeSpec, int]:
    (rope,) = config.ropes
    return rope, config.decoder.layers[0].mixer.head_dim


def _theirs(scaling: dict[str, Any], **values: Any) -> LlamaConfig:
    return LlamaConfig(
        hidden_size=128,
        num_attention_heads=4,
        **{"max_position_embeddings": 512, **values},
        rope_parameters={"rope_theta": 5e4, **scaling},
    )


@pytest.mark.parametrize("scaling", SCALINGS, ids=str)
def test_tables_hold_the_frequencies_of_transformers(scaling: dict[str, Any]) -> None:
    table = cos_sin_table(*_rope(_ours(scaling)), _ours(scaling).max_context_length, torch.device("cpu"))
    frequencies, factor = ROPE_INIT_FUNCTIONS[scaling["rope_type"]](_theirs(scaling), torch.device("cpu"))
    angles = torch.arange(table.shape[0])[:, None] * frequencies
    expected = torch.cat((angles.cos(), angles.sin()), dim=-1) * factor
    torch.testing.assert_close(table, expected, atol=2e-4, rtol=0)


def test_a_dynamic_position_turns_with_the_base_for_its_own_length() -> None:
    scaling = {"rope_type": "dynamic", "factor": 3.0}
    ours = _ours(scaling, max_position_embeddings=32)
    assert ours.max_context_length == 96
    table = cos_sin_table(*_rope(ours), 96, torch.device("cpu"))
    assert table.shape == (96, 32)
    assert torch.equal(cos_sin_table(*_rope(ours), 40, torch.device("cpu")), table[:40])
    config = _theirs(scaling, max_position_embeddings=32)
    for position in (0, 20, 31, 32, 50, 95):
        frequencies, _ = ROPE_INIT_FUNCTIONS["dynamic"](config, torch.device("cpu"), seq_len=position + 1)
        angles = position * frequencies
        torch.testing.assert_close(table[position], torch.cat((angles.cos(), angles.sin())), atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    ("scaling", "expected"),
    [
        ({"rope_type": "default"}, 512),
        ({"rope_type": "linear", "factor": 4.0}, 2048),
        ({"rope_type": "dynamic", "factor": 2.0}, 1024),
        ({"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 128}, 1024),
        (SCALINGS[1], 512),
    ],
    ids=str,
)
def test_stretched_context_lengths(scaling: dict[str, Any], expected: int) -> None:
    config = _ours(scaling)
    assert config.max_context_length == expected
