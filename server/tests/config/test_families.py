"""What families make of `config.json`: their defaults are those of transformers, and wrong values are named."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from support.fallback_cases import FALLBACK_CASES
from support.families import UNLISTED
from support.family_cases import CASES
from support.model_table import PAGE, architectures, page
from transformers import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from text_generation_server.config import ModelConfig
from text_generation_server.config.families import FAMILIES, MISSING, WITH_MEDIA
from text_generation_server.config.rotary import QueryGrowth
from text_generation_server.errors import ConfigurationError, UnsupportedModel

OWN_CLASS = sorted({case.model_type for case in CASES.values() if not case.has_media})
SIZES: dict[str, int] = {
    "vocab_size": 200,
    "hidden_size": 256,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 32,
}
# Names that families have for these, beside or instead of the usual ones.
OTHER_NAMES: dict[str, str] = {
    "n_embd": "hidden_size",
    "n_head": "num_attention_heads",
    "n_layer": "num_hidden_layers",
    "d_model": "hidden_size",
    "n_heads": "num_attention_heads",
    "n_layers": "num_hidden_layers",
    "num_layers": "num_hidden_layers",
    "ffn_dim": "intermediate_size",
    "attention_heads": "num_attention_heads",
}


GROWING = {"rope_type": "default", "rope_theta": 1e4, "original_max_position_embeddings": 64}
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
NO_OP = {"no_op": True}
GPT_NEO = {"num_heads": 4, "num_layers": 2, "attention_types": [[["global", "local"], 1]]}
LING_3 = {**EXPERTS, "layer_group_size": 4}
LONGCAT = {"num_layers": 2, "ffn_hidden_size": 48}


def parse(folder: Path, values: dict[str, Any]) -> ModelConfig:
    (folder / "config.json").write_text(json.dumps(values))
    return ModelConfig.from_folder(folder)


def minimal(model_type: str) -> dict[str, Any]:
    """The sizes that every model gives, under the names of its class."""
    defaults = CONFIG_MAPPING[model_type]().to_dict()
    values = {key: size for key, size in SIZES.items() if key in defaults}
    values |= {key: SIZES[usual] for key, usual in OTHER_NAMES.items() if key in defaults}
    # Sizes whose defaults follow from those of a published model.
    values |= {key: 1 for key in ("num_kv_heads",) if key in defaults}
    values |= {key: 1 for key in ("num_kv_shared_layers",) if defaults.get(key)}
    values |= {key: 2 for key in ("num_experts_per_tok",) if defaults.get(key, 0) is None}
    values |= {key: 256 for key in ("word_embed_proj_dim",) if key in defaults}
    values |= {key: 96 for key in ("ffn_hidden_size",) if key in defaults}
    values |= GPT_NEO if model_type == "gpt_neo" else {}
    # 128 heads of these are twice the hidden size.
    values |= {key: 4 for key in ("head_dim",) if model_type == "mamba2"}
    if "layers_block_type" in defaults:
        hybrid = ["linear_attention", "hybrid"] * 2
        values["layers_block_type"] = hybrid if model_type == "zamba2" else ["linear_attention", "mlp"]
    return values | {"rotary_dim": 8} if "rotary_dim" in defaults else values


@pytest.mark.parametrize("model_type", OWN_CLASS)
def test_what_is_absent_means_what_it_means_to_transformers(model_type: str, tmp_path: Path) -> None:
    sizes = minimal(model_type)
    architecture = {"architectures": [{**MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, **UNLISTED}[model_type]]}
    complete = CONFIG_MAPPING[model_type](**sizes).to_dict()
    if model_type in ("ministral", "hunyuan_v1_dense", "mistral"):
        # They give sizes that do not fit, or `null`, which their own models cannot use.
        complete.pop("head_dim")
    bare, full = parse(tmp_path, {**sizes, **architecture}), parse(tmp_path, {**complete, **architecture})
    assert bare.decoder == full.decoder
    assert bare.names == full.names
    assert bare.max_position_embeddings == full.max_position_embeddings


def test_every_family_is_in_the_tests() -> None:
    through_classes = {case.architecture or case.class_name for case in FALLBACK_CASES.values()}
    tested = {name for case in CASES for name in architectures(case)} | (through_classes & WITH_MEDIA.keys())
    assert tested == {*FAMILIES, *WITH_MEDIA}
    assert not MISSING.keys() & tested


def test_the_first_layers_of_deep_gemma_3n_are_sparse_where_the_file_does_not_say(tmp_path: Path) -> None:
    """The cutoff is that of the class, which computes it in float32."""
    values = {"architectures": ["Gemma3nForCausalLM"], **SIZES, "num_hidden_layers": 12, "num_kv_shared_layers": 2}
    expected = torch.distributions.Normal(0, 1).icdf(torch.tensor(0.95)).item()
    cutoffs = [layer.ffn.cutoff for layer in parse(tmp_path, values).decoder.layers]  # type: ignore[union-attr]
    assert cutoffs == [*[pytest.approx(expected, rel=1e-6)] * 10, None, None]


def test_the_page_of_models_has_the_table_of_the_tests() -> None:
    assert PAGE.read_text() == page()


@pytest.mark.parametrize(
    ("architecture", "values", "named"),
    [
        ("Gemma2ForCausalLM", {"layer_types": ["full_attention"]}, "layer_types"),
        ("Gemma2ForCausalLM", {"layer_types": ["full_attention"] * 3 + ["chunked"]}, "layer_types"),
        ("Gemma2ForCausalLM", {"final_logit_softcapping": -1}, "final_logit_softcapping"),
        ("Gemma2ForCausalLM", {"query_pre_attn_scalar": 0}, "query_pre_attn_scalar"),
        ("Gemma3ForCausalLM", {"rope_local_base_freq": "10000"}, "rope_local_base_freq"),
        ("Gemma3ForCausalLM", {"sliding_window_pattern": 0}, "sliding_window_pattern"),
        ("Gemma3nForCausalLM", {"activation_sparsity_pattern": [0.95]}, "activation_sparsity_pattern"),
        (
            "Gemma3nForCausalLM",
            {"activation_sparsity_pattern": [0.95, 1.0, 0.0, 0.0], "num_kv_shared_layers": 0},
            "activation_sparsity_pattern",
        ),
        ("Gemma3nForCausalLM", {"altup_num_inputs": 1}, "altup_num_inputs"),
        ("Gemma3nForCausalLM", {"altup_num_inputs": 10**9}, "altup_num_inputs"),
        ("Gemma3nForCausalLM", {"altup_active_idx": 4}, "altup_active_idx"),
        ("Gemma3nForCausalLM", {"num_kv_shared_layers": 4}, "num_kv_shared_layers"),
        ("MistralForCausalLM", {"sliding_window": 0}, "sliding_window"),
        ("SmolLM3ForCausalLM", {"no_rope_layers": [1, 1]}, "no_rope_layers"),
        ("SmolLM3ForCausalLM", {"no_rope_layers": [1, 1, 2, 0]}, "no_rope_layers"),
        ("GraniteForCausalLM", {"logits_scaling": 0}, "logits_scaling"),
        ("Qwen2ForCausalLM", {"max_window_layers": -1}, "max_window_layers"),
        ("LlamaForCausalLM", {"num_hidden_layers": 10**9}, "num_hidden_layers"),
        ("Gemma3ForCausalLM", {"num_hidden_layers": 10**9}, "num_hidden_layers"),
        ("BloomForCausalLM", {"n_embed": 2**21, "n_head": 2**20, "n_layer": 2}, "n_head"),
        ("MptForCausalLM", {"d_model": 2**21, "n_heads": 2**20, "n_layers": 2}, "n_heads"),
        ("BaichuanForCausalLM", {"hidden_size": 2**21, "num_attention_heads": 2**20}, "num_attention_heads"),
        ("DbrxForCausalLM", {"d_model": 2**21, "n_heads": 2**20, "n_layers": 2}, "n_heads"),
        ("DeepseekV3ForCausalLM", {"num_attention_heads": 2**20}, "num_attention_heads"),
        ("QWenLMHeadModel", {"intermediate_size": 95}, "intermediate_size"),
        ("ChatGLMModel", {"num_layers": 2.5}, "num_layers"),
        ("GPTJForCausalLM", {"n_embd": 256, "n_head": 32, "n_layer": 2, "rotary_dim": 512}, "rotary_dim"),
        ("GPT2LMHeadModel", {"n_embd": 256, "n_head": 0, "n_layer": 2}, "n_head"),
        ("GPT2LMHeadModel", {"n_embd": 256, "n_head": 4, "n_layer": 10**9}, "n_layer"),
        ("CodeGenForCausalLM", {"n_embd": 96, "n_head": 6, "n_layer": 2}, "n_head"),
        ("GPTNeoForCausalLM", {**GPT_NEO, "attention_types": [[["global", "local"], 2]]}, "attention_types"),
        ("GPTNeoForCausalLM", {**GPT_NEO, "attention_types": [[["global"], 10**9]]}, "attention_types"),
        ("GPTNeoForCausalLM", {**GPT_NEO, "attention_types": [["global", 2]]}, "attention_types"),
        ("GPTNeoForCausalLM", {**GPT_NEO, "attention_types": "global"}, "attention_types"),
        ("GPTNeoForCausalLM", {**GPT_NEO, "attention_layers": ["global", "wide"]}, "attention_layers"),
        ("XGLMForCausalLM", {"d_model": 2, "attention_heads": 1, "num_layers": 1}, "d_model"),
        ("FalconForCausalLM", {"new_decoder_architecture": True, "num_kv_heads": 5}, "num_kv_heads"),
        ("FalconForCausalLM", {"num_ln_in_parallel_attn": 3}, "num_ln_in_parallel_attn"),
        ("OPTForCausalLM", {"ffn_dim": 96, "word_embed_proj_dim": 0}, "word_embed_proj_dim"),
        ("OPTForCausalLM", {"activation_function": "mish"}, "activation_function"),
        ("Exaone4ForCausalLM", {"sliding_window_pattern": "LLXG"}, "sliding_window_pattern"),
        ("Exaone4ForCausalLM", {"sliding_window_pattern": ""}, "sliding_window_pattern"),
        ("HunYuanMoEV1ForCausalLM", {"num_experts": 4, "moe_topk": [2, 2]}, "moe_topk"),
        ("HunYuanMoEV1ForCausalLM", {"num_experts": 4, "moe_topk": [2, 2, 2, 5]}, "moe_topk"),
        ("HunYuanMoEV1ForCausalLM", {"num_experts": [4, 4, 4, "4"]}, "num_experts"),
        ("Ministral3ForCausalLM", {"rope_parameters": GROWING | {"llama_4_scaling_beta": -1}}, "llama_4_scaling_beta"),
        ("MistralForCausalLM", {"llama_4_scaling": {"beta": 0.1}}, "original_max_position_embeddings"),
        ("Mistral4ForCausalLM", {"scoring_func": "sigmoid"}, "scoring_func"),
        ("LagunaForCausalLM", {"gating": "per-token"}, "gating"),
        (
            "KimiLinearForCausalLM",
            {"linear_attn_config": {"full_attn_layers": [2], "kda_layers": [1, 3]}},
            "kda_layers",
        ),
        ("MiniMaxText01ForCausalLM", {"attn_type_list": [0, 1]}, "attn_type_list"),
        ("LongcatFlashForCausalLM", LONGCAT | {"q_lora_rank": None}, "q_lora_rank"),
        ("LongcatFlashForCausalLM", LONGCAT | {"zero_expert_num": -1}, "zero_expert_num"),
        ("BailingMoeV2_5ForCausalLM", LING_3 | {"group_norm_size": 3}, "group_norm_size"),
        ("BailingMoeV2_5ForCausalLM", LING_3 | {"rotary_dim": 6}, "rotary_dim"),
        ("BailingMoeV2_5ForCausalLM", LING_3 | {"num_hidden_layers": 1}, "num_hidden_layers"),
        ("BailingMoeV3ForCausalLM", LING_3 | {"kda_lower_bound": 1}, "kda_lower_bound"),
        ("BailingMoeV3ForCausalLM", LING_3 | {"layer_group_size": 0}, "layer_group_size"),
        (
            "BailingMoeV3ForCausalLM",
            LING_3 | {"gated_attention_proj_granularity_type": "row_wise"},
            "gated_attention_proj_granularity_type",
        ),
        ("SolarForCausalLM", {"bskcn_1": [1], "bskcn_3": [0]}, "bskcn_3"),
        ("SolarForCausalLM", {"bskcn_2": [-1]}, "bskcn_2"),
        ("SolarForCausalLM", {"bskcn_tv": [0.9]}, "bskcn_tv"),
        ("SolarForCausalLM", {"bskcn_tv": [0.9, 1.5]}, "bskcn_tv"),
        ("KimiLinearForCausalLM", {"linear_attn_config": {"short_conv_kernel_size": 5}}, "short_conv_kernel_size"),
        ("KimiLinearForCausalLM", {"linear_head_dim": 512}, "linear_head_dim"),
        ("MiMoV2ForCausalLM", {"attention_projection_layout": "fused"}, "attention_projection_layout"),
        (
            "MiMoV2ForCausalLM",
            {"attention_projection_layout": "fused_qkv", "swa_num_key_value_heads": 2},
            "swa_num_key_value_heads",
        ),
        ("MiMoV2ForCausalLM", {"moe_layer_freq": [0, 1]}, "moe_layer_freq"),
        ("Step3p5ForCausalLM", {"layer_types": ["full_attention"] * 3}, "layer_types"),
        ("Step3p5ForCausalLM", {"layer_types": ["full_attention"] * 3 + ["chunked"]}, "layer_types"),
        ("Step3p5ForCausalLM", {"moe_layers_enum": "1;2"}, "moe_layers_enum"),
        ("Step3p5ForCausalLM", {"num_key_value_heads": 3}, "num_key_value_heads"),
        ("Step3p5ForCausalLM", {"partial_rotary_factors": [0.5]}, "partial_rotary_factors"),
        ("Step3p5ForCausalLM", {"rope_theta": [1e4, 0, 1e4, 1e4]}, "rope_theta"),
        ("LagunaForCausalLM", {"num_attention_heads_per_layer": [32]}, "num_attention_heads_per_layer"),
        ("LagunaForCausalLM", {"num_attention_heads_per_layer": [32, 32, 30, 32]}, "num_key_value_heads"),
        ("ExaoneMoEForCausalLM", {"mlp_layer_types": ["dense"] * 5}, "mlp_layer_types"),
        ("BailingMoeV2ForCausalLM", {**EXPERTS, "score_function": "relu"}, "score_function"),
        ("BailingMoeV2ForCausalLM", {**EXPERTS, "rotary_dim": 3}, "rotary_dim"),
        ("Llama4ForCausalLM", {**EXPERTS, "num_experts_per_tok": 1, "attn_scale": 1e300}, "attn_scale"),
        ("DeciLMForCausalLM", {}, "block_configs"),
        ("DeciLMForCausalLM", {"block_configs": [{}] * 3}, "block_configs"),
        ("DeciLMForCausalLM", {"block_configs": [{}] * 3 + [1]}, "block_configs"),
        ("DeciLMForCausalLM", {"block_configs": [{"attention": {"n_heads_in_group": 3}}] * 4}, "n_heads_in_group"),
        ("DeciLMForCausalLM", {"block_configs": [{"attention": NO_OP, "ffn": {"ffn_mult": 1e9}}] * 4}, "ffn_mult"),
    ],
    ids=str,
)
def test_a_wrong_value_is_named(architecture: str, values: dict[str, Any], named: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=f"config.json.*`{named}`"):
        parse(tmp_path, {**SIZES, "num_key_value_heads": 4, "architectures": [architecture], **values})


@pytest.mark.parametrize(
    ("architecture", "values"),
    [
        ("MptForCausalLM", {"attn_config": {"qk_ln": True}}),
        ("MptForCausalLM", {"attn_config": {"attn_type": "grouped_query_attention"}}),
        ("MptForCausalLM", {"norm_type": "rmsnorm"}),
        ("MptForCausalLM", {"logit_scale": "inv_sqrt_d_model"}),
        ("MiniCPMForCausalLM", {"num_experts": 8}),
        ("MiniCPMForCausalLM", {"sparse_config": {}}),
        ("Gemma3ForCausalLM", {"use_bidirectional_attention": True}),
        ("HunYuanDenseV1ForCausalLM", {"use_cla": True}),
        ("HunYuanMoEV1ForCausalLM", {"use_mla": True}),
        ("ChatGLMModel", {"position_encoding_2d": True, "inner_hidden_size": 16384, "num_layers": 2}),
        ("ChatGLMModel", {"apply_residual_connection_post_layernorm": True}),
        ("ChatGLMModel", {"rope_ratio": 50, "num_layers": 2, "padded_vocab_size": 65024}),
        ("PhiForCausalLM", {"qk_layernorm": True}),
        ("XGLMForCausalLM", {"add_cross_attention": True}),
        ("CodeGenForCausalLM", {"auto_map": {"AutoModelForCausalLM": "modeling_codegen.CodeGenForCausalLM"}}),
        ("ChatGLMModel", {"rmsnorm": False, "num_layers": 2, "padded_vocab_size": 10}),
        ("AfmoeForCausalLM", {"attention_bias": True}),
        ("AfmoeForCausalLM", {"route_norm": False}),
        ("HYV3ForCausalLM", {"qk_norm": False}),
        ("LagunaForCausalLM", {"attention_bias": True}),
        ("MiniMaxText01ForCausalLM", {"postnorm": False}),
        ("LongcatFlashForCausalLM", {"zero_expert_type": "zero"} | LONGCAT),
        ("LongcatFlashForCausalLM", {"router_bias": True} | LONGCAT),
        ("LongcatFlashForCausalLM", {"mla_scale_q_lora": False} | LONGCAT),
        ("MiniMaxText01ForCausalLM", {"shared_intermediate_size": 64}),
        ("MiniMaxText01ForCausalLM", {"layernorm_mlp_alpha": 2.0}),
        ("BailingMoeV2_5ForCausalLM", {"linear_silu": True} | LING_3),
        ("BailingMoeV2_5ForCausalLM", {"num_kv_heads_for_linear_attn": 2} | LING_3),
        ("BailingMoeV2_5ForCausalLM", {"use_qkv_bias": True} | LING_3),
        ("BailingMoeV3ForCausalLM", {"expert_swiglu_limit_list": [0, 0, 7.0, 0]} | LING_3),
        ("BailingMoeV3ForCausalLM", {"no_kda_lora": False} | LING_3),
        ("BailingMoeV3ForCausalLM", {"num_kv_heads_for_linear_attn": 2} | LING_3),
        ("BailingMoeV3ForCausalLM", {"use_mla_nope": True} | LING_3),
        ("KimiLinearForCausalLM", {"mla_use_nope": False}),
        ("KimiLinearForCausalLM", {"moe_layer_freq": 2}),
        ("KimiLinearForCausalLM", {"moe_router_activation_func": "softmax"}),
        ("MiMoV2ForCausalLM", {"swa_head_dim": 128}),
        ("MiMoV2ForCausalLM", {"swa_num_attention_heads": 16}),
        ("Step3p5ForCausalLM", {"moe_router_activation": "softmax"}),
        ("Step3p5ForCausalLM", {"yarn_only_types": ["sliding_attention"]}),
        ("Step3p5ForCausalLM", {"swiglu_limits": [0, 10, 0, 0]}),
        ("Step3p5ForCausalLM", {"use_rope_layers": [True, False, True, True]}),
        ("Step3p5ForCausalLM", {"zero_centered": False}),
        ("LagunaForCausalLM", {"moe_apply_router_weight_on_input": True}),
        ("LagunaForCausalLM", {"moe_router_logit_softcapping": 30.0}),
        ("HYV3ForCausalLM", {"mlp_bias": True}),
        ("BailingMoeForCausalLM", {"use_bias": True}),
        ("BailingMoeForCausalLM", {"norm_head": True, "tie_word_embeddings": True}),
        ("IQuestCoderForCausalLM", {"clip_qkv": 8.0}),
        ("DeciLMForCausalLM", {"block_configs": [{"attention": {"replace_with_linear": True}}] * 4}),
    ],
    ids=str,
)
def test_a_form_that_is_not_implemented_is_refused(architecture: str, values: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match=f"`{_last_key(values)}`"):
        parse(tmp_path, {**SIZES, "architectures": [architecture], **values})


def _last_key(values: dict[str, Any]) -> str:
    key, value = next(iter(values.items()))
    value = value[0] if isinstance(value, list) else value
    return _last_key(value) if isinstance(value, dict) and value else key


def test_layers_with_a_window_may_be_spelt(tmp_path: Path) -> None:
    values = {**SIZES, "architectures": ["Exaone4ForCausalLM"], "sliding_window": 7, "sliding_window_pattern": "LG"}
    assert [layer.mixer.window for layer in parse(tmp_path, values).decoder.layers] == [7, 0, 7, 0]


def test_experts_may_differ_from_layer_to_layer(tmp_path: Path) -> None:
    lists = {"num_experts": [4, 4, 8, 8], "moe_topk": [1, 2, 2, 4], "moe_intermediate_size": [16, 16, 16, 32]}
    values = {**SIZES, "architectures": ["HunYuanMoEV1ForCausalLM"], **lists, "num_shared_expert": [1, 1, 1, 2]}
    found = [layer.ffn for layer in parse(tmp_path, values).decoder.layers]
    assert [(ffn.experts, ffn.route.top_k, ffn.inner, ffn.shared_inner) for ffn in found] == [
        (4, 1, 16, 96), (4, 2, 16, 96), (8, 2, 16, 96), (8, 4, 32, 192),
    ]  # fmt: skip


def test_heads_of_hunyuan_are_normalised_unless_the_file_says_no(tmp_path: Path) -> None:
    values = {**SIZES, "architectures": ["HunYuanDenseV1ForCausalLM"]}
    assert parse(tmp_path, values).decoder.layers[0].mixer.qk_norm
    assert not parse(tmp_path, {**values, "use_qk_norm": False}).decoder.layers[0].mixer.qk_norm


def test_the_context_of_command_r_is_the_one_it_was_trained_for(tmp_path: Path) -> None:
    values = {**SIZES, "architectures": ["CohereForCausalLM"], "max_position_embeddings": 8192}
    assert parse(tmp_path, values).max_context_length == 8192
    assert parse(tmp_path, {**values, "model_max_length": 131072}).max_context_length == 131072


def test_null_is_no_window_and_absence_the_default(tmp_path: Path) -> None:
    mistral = {**SIZES, "architectures": ["MistralForCausalLM"]}
    assert parse(tmp_path, mistral).decoder.layers[0].mixer.window == 4096
    assert parse(tmp_path, {**mistral, "sliding_window": None}).decoder.layers[0].mixer.window == 0


def test_half_of_each_head_of_glm_turns_where_the_key_is_absent(tmp_path: Path) -> None:
    values = {**SIZES, "architectures": ["GlmForCausalLM"], "head_dim": 64, "num_key_value_heads": 4}
    for scaling in ({}, {"rope_theta": 5e4}, {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}):
        (rope,) = parse(tmp_path, {**values, **scaling}).ropes
        assert (rope.rotary_dim, rope.interleaved) == (32, True)


def test_baichuan_2_has_rows_of_length_1_in_its_head(tmp_path: Path) -> None:
    values = {**SIZES, "architectures": ["BaichuanForCausalLM"], "max_position_embeddings": 4096}
    assert parse(tmp_path, {**values, "vocab_size": 125696}).decoder.head.unit_rows
    assert not parse(tmp_path, {**values, "vocab_size": 64000}).decoder.head.unit_rows


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"architectures": ["QWenLMHeadModel"], "vocab_size": 151936}, (151643, 151645)),
        ({"architectures": ["GlmForCausalLM"], "head_dim": 8, "vocab_size": 151552}, (151329, 151336, 151338)),
        ({"architectures": ["GlmForCausalLM"], "head_dim": 8, "eos_token_id": 7}, (7,)),
        ({"architectures": ["LlamaForCausalLM"], "eos_token_id": [3, 2]}, (2, 3)),
        ({"architectures": ["LlamaForCausalLM"]}, ()),
    ],
    ids=str,
)
def test_what_ends_a_text_is_in_the_file_or_known_of_the_family(
    values: dict[str, Any], expected: tuple[int, ...], tmp_path: Path
) -> None:
    assert parse(tmp_path, {**SIZES, **values}).eos_token_ids == expected


def test_an_old_file_of_falcon_40b_is_known_by_its_type(tmp_path: Path) -> None:
    values = {**SIZES, "n_head": 32, "n_layer": 4, "n_head_kv": 8, "architectures": ["RWForCausalLM"]}
    attention = parse(tmp_path, {**values, "model_type": "RefinedWeb"}).decoder.layers[0].mixer
    assert attention.num_kv_heads == 8
    attention = parse(tmp_path, {**values, "model_type": "RefinedWebModel"}).decoder.layers[0].mixer
    assert attention.num_kv_heads == 1


def test_queries_grow_with_their_position_however_rope_is_stretched(tmp_path: Path) -> None:
    values = {**SIZES, "architectures": ["MistralForCausalLM"], "head_dim": 8}
    config = parse(tmp_path, {**values, "rope_parameters": {**GROWING, "llama_4_scaling_beta": 0.1}})
    for rope in (*config.ropes, *config.with_rope("linear", 2.0).ropes):
        assert rope.query_growth == QueryGrowth(0.1, 64)
    (rope,) = parse(tmp_path, {**values, "rope_parameters": {**GROWING, "llama_4_scaling_beta": 0}}).ropes
    assert rope.query_growth is None
