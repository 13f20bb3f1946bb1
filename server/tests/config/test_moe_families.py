"""What configurations of mixtures of experts may not say."""

from typing import Any

import pytest

from text_generation_server.config.json_object import JsonObject
from text_generation_server.config.model import parse_model_config
from text_generation_server.config.spec import MoeSpec
from text_generation_server.errors import ConfigurationError, UnsupportedModel

SIZES: dict[str, Any] = {
    "vocab_size": 99,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
GLM = {"n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 16}
DEEPSEEK = {**GLM, "n_group": 1, "topk_group": 1}


def _parse(architecture: str, **values: Any) -> tuple[MoeSpec | None, ...]:
    config = parse_model_config(JsonObject({**SIZES, "architectures": [architecture], **values}, "config.json"), None)
    ffns = (layer.ffn for layer in config.decoder.layers)
    return tuple(ffn if isinstance(ffn, MoeSpec) else None for ffn in ffns)


@pytest.mark.parametrize(
    ("architecture", "values", "message"),
    [
        ("MixtralForCausalLM", {"num_local_experts": 0}, "`num_local_experts` must be an integer of at least 1"),
        ("MixtralForCausalLM", {"num_local_experts": 10**6}, "`num_local_experts` must be an integer of at most 4096"),
        ("MixtralForCausalLM", {"num_experts_per_tok": 9}, "`num_experts_per_tok` must be an integer of at most 8"),
        ("Glm4MoeForCausalLM", {**GLM, "n_group": 3}, "`n_group` must be a divisor of the 8 experts"),
        ("Glm4MoeForCausalLM", {**GLM, "n_group": 4}, "`topk_group` must be such that the groups have 3 experts"),
        ("DeepseekV3ForCausalLM", {**DEEPSEEK, "qk_rope_head_dim": 7}, "`qk_rope_head_dim` must be even"),
        ("DeepseekV3ForCausalLM", {**DEEPSEEK, "kv_lora_rank": 10**6}, "`kv_lora_rank` must be an integer of at most"),
        ("DeepseekV3ForCausalLM", {**DEEPSEEK, "n_group": 3}, "`n_group` must be a divisor of the 8 experts"),
        ("DeepseekV3ForCausalLM", {**DEEPSEEK, "scoring_func": "softmax"}, "`scoring_func` must be 'sigmoid'"),
        ("DeepseekV2ForCausalLM", {**DEEPSEEK, "topk_method": "best"}, "`topk_method` must be one of greedy"),
        ("Glm4MoeLiteForCausalLM", {**DEEPSEEK, "mlp_layer_types": ["dense"]}, "`mlp_layer_types` must be a list of 3"),
        ("DeepseekForCausalLM", {**GLM, "scoring_func": "sigmoid"}, "`scoring_func` must be 'softmax'"),
        ("Ernie4_5_MoeForCausalLM", {"moe_k": 65}, "`moe_k` must be an integer of at most 64"),
        ("Ernie4_5_MoeForCausalLM", {"moe_layer_interval": 0}, "`moe_layer_interval` must be an integer of at least 1"),
        ("GptOssForCausalLM", {"swiglu_limit": 5.0}, "`swiglu_limit` must be 7.0"),
        ("PhiMoEForCausalLM", {"num_experts_per_tok": 3}, "`num_experts_per_tok` must be 2"),
        ("MiniMaxM2ForCausalLM", {"rotary_dim": 7}, "`rotary_dim` must be even"),
        (
            "DbrxForCausalLM",
            {"d_model": 32, "n_heads": 4, "n_layers": 1, "ffn_config": {"moe_normalize_expert_weights": 3}},
            "`moe_normalize_expert_weights` must be 1 or 2, or null",
        ),
    ],
)
def test_wrong_values_are_named(architecture: str, values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        _parse(architecture, **values)


def test_quantised_checkpoints_are_refused_but_for_formats_that_a_family_reads() -> None:
    quantised = {"quantization_config": {"quant_method": "mxfp4"}}
    assert all(_parse("GptOssForCausalLM", **quantised))
    with pytest.raises(UnsupportedModel, match="mxfp4 is read of the experts of gpt-oss only"):
        _parse("MixtralForCausalLM", **quantised)


@pytest.mark.parametrize(
    ("architecture", "values"),
    [
        ("DeepseekForCausalLM", {"kv_lora_rank": 16}),
        ("DeepseekV2ForCausalLM", {"norm_topk_prob": True}),
        ("DeepseekV3ForCausalLM", {"moe_layer_freq": 2}),
        ("DeepseekV3ForCausalLM", {"attention_bias": True}),
        ("Ernie4_5_MoeForCausalLM", {"use_bias": True}),
        ("Ernie4_5_MoeForCausalLM", {"moe_norm_min": 0.1}),
    ],
)
def test_forms_that_are_not_implemented_are_refused(architecture: str, values: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedModel, match=next(iter(values))):
        _parse(architecture, **DEEPSEEK, **values)


def test_layers_without_experts() -> None:
    qwen = {"num_experts": 8, "mlp_only_layers": [2]}
    assert [ffn is not None for ffn in _parse("Qwen3MoeForCausalLM", **qwen)] == [True, True, False]
    assert [ffn is not None for ffn in _parse("Glm4MoeForCausalLM", **GLM)] == [False, True, True]
    assert [ffn is not None for ffn in _parse("Ernie4_5_MoeForCausalLM")] == [False, True, True]
    every_second = {"moe_layer_interval": 2, "moe_layer_start_index": 0}
    assert [ffn is not None for ffn in _parse("Ernie4_5_MoeForCausalLM", **every_second)] == [False, True, False]
