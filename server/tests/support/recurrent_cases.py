"""Families with recurrent layers, as variants that their configurations can have."""

from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.models.falcon_h1.modeling_falcon_h1 import compute_mup_vector

from support.families import Case, Raw, State
from support.glm_next import GLM_NEXT_CASES
from support.ling3 import as_ling3, ling3
from support.ling25 import as_ling25
from support.moe_cases import QWEN, with_corrections

LAYERS = ["linear_attention", "full_attention", "linear_attention"]
DELTA: dict[str, Any] = {
    "head_dim": 16,
    "layer_types": LAYERS,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 12,
}
EXPERTS = {**QWEN, "shared_expert_intermediate_size": 20}


def stacked_experts(state: State, raw: Raw) -> tuple[State, Raw]:
    """The published files of Qwen 3.5, which have the experts of a layer in two tensors."""
    stacked = {name: tensor for name, tensor in state.items() if ".mlp.experts." not in name}
    for name in state:
        if name.endswith(".mlp.experts.0.gate_proj.weight"):
            layer = name.removesuffix("0.gate_proj.weight")
            gate, up, down = (
                torch.stack([state[f"{layer}{expert}.{part}_proj.weight"] for expert in range(QWEN["num_experts"])])
                for part in ("gate", "up", "down")
            )
            stacked |= {f"{layer}gate_up_proj": torch.cat((gate, up), dim=1), f"{layer}down_proj": down}
    return stacked, raw


def _by_interval(state: State, raw: Raw) -> tuple[State, Raw]:
    """Layers as files say that do not list them."""
    del raw["layer_types"]
    return state, {**raw, "full_attention_interval": 2}


def _pattern(state: State, raw: Raw) -> tuple[State, Raw]:
    """Layers as letters, as in the first files."""
    letters = {"linear_attention": "M", "full_attention": "*", "mlp": "-", "moe": "E"}
    pattern = "".join(letters[each] for each in raw.pop("layers_block_type"))
    return state, {**raw, "hybrid_override_pattern": pattern}


def _without_types(state: State, raw: Raw) -> tuple[State, Raw]:
    """Layers with attention by number, as in the first files."""
    del raw["layer_types"]
    return state, raw


KIMI_LINEAR: dict[str, Any] = {
    "kv_lora_rank": 16,
    "linear_attn_config": {
        "full_attn_layers": [2],
        "head_dim": 8,
        "kda_layers": [1, 3],
        "num_heads": 4,
        "short_conv_kernel_size": 3,
    },
    "moe_intermediate_size": 20,
    "num_expert_group": 2,
    "num_experts": 8,
    "num_experts_per_token": 2,
    "num_key_value_heads": 4,
    "qk_nope_head_dim": 6,
    "qk_rope_head_dim": 4,
    "topk_group": 1,
    "v_head_dim": 12,
}


LING_3 = {**KIMI_LINEAR, "linear_attn_config": {**KIMI_LINEAR["linear_attn_config"], "full_attn_layers": [2, 3]}}
LING_3["linear_attn_config"]["kda_layers"] = [1]


LING_25 = {**KIMI_LINEAR, "linear_attn_config": {**KIMI_LINEAR["linear_attn_config"], "full_attn_layers": [3]}}
LING_25["linear_attn_config"]["kda_layers"] = [1, 2]
LING_25_KEYS: dict[str, Any] = {
    "architectures": ["BailingMoeV2_5ForCausalLM"],
    "first_k_dense_replace": 1,
    "group_norm_size": 2,
    "layer_group_size": 3,
    "partial_rotary_factor": 0.5,
}


MINIMAX_01: dict[str, Any] = {
    **{f"{part}_alpha_factor": 3.5 for part in ("full_attn", "linear_attn", "mlp")},
    **{f"{part}_beta_factor": 1.25 for part in ("full_attn", "linear_attn", "mlp")},
    "block_size": 4,
    "head_dim": 8,
    "layer_types": LAYERS,
    "num_local_experts": 6,
}


def _rotates_half(model: PreTrainedModel) -> None:
    """Rotates as many elements of a head as the authors' files say; they lie apart in transformers' order."""
    frequencies = model.model.rotary_emb.inv_freq
    half = len(frequencies) // 2
    frequencies[:half] = 10_000 ** (-torch.arange(half) / half)
    frequencies[half:] = 0


def _minimax_01(state: State, raw: Raw) -> tuple[State, Raw]:
    """The authors' keys, and their order of the elements of queries and keys."""
    order = torch.tensor([0, 1, 4, 5, 2, 3, 6, 7])
    for name, tensor in state.items():
        if "q_proj" in name or "k_proj" in name:
            state[name] = tensor.unflatten(0, (-1, 8))[:, order].flatten(0, 1)
    older = {"full_attn": "layernorm_full_attention", "linear_attn": "layernorm_linear_attention"}
    for part, name in (*older.items(), ("mlp", "layernorm_mlp")):
        for factor in ("alpha", "beta"):
            raw[f"{name}_{factor}"] = raw.pop(f"{part}_{factor}_factor")
    raw["attn_type_list"] = [int(each == "full_attention") for each in raw.pop("layer_types")]
    raw["rope_theta"] = raw.pop("rope_parameters")["rope_theta"]
    own = {"architectures": ["MiniMaxText01ForCausalLM"], "postnorm": True, "rotary_dim": 4}
    return state, {**raw, **own, "shared_intermediate_size": 0, "shared_moe_mode": "sigmoid"}


def kimi_linear(state: State, raw: Raw) -> tuple[State, Raw]:
    """The dense network of the first layer under its published name."""
    wrong = "layers.0.block_sparse_moe."
    return {name.replace(wrong, "layers.0.mlp."): tensor for name, tensor in state.items()}, raw


STATE_SPACE: dict[str, Any] = {
    "head_dim": 8,
    "layers_block_type": ["linear_attention", "mlp", "full_attention", "mlp", "linear_attention"],
    "mamba_num_heads": 8,
    "mamba_head_dim": 12,
    "n_groups": 4,
    "ssm_state_size": 8,
    "num_hidden_layers": ...,
}

CONVOLUTIONS = ["conv", "full_attention", "conv"]
NEMOTRON_3: dict[str, Any] = {
    **STATE_SPACE,
    "layers_block_type": ["linear_attention", "moe", "full_attention", "moe"],
    "moe_intermediate_size": 16,
    "moe_shared_expert_intermediate_size": 32,
    "n_group": 2,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "routed_scaling_factor": 2.5,
    "topk_group": 1,
}
AMONG_OTHERS: dict[str, Any] = {
    "mamba_n_heads": 8,
    "mamba_d_head": 8,
    "mamba_d_state": 6,
}
GRANITE_4: dict[str, Any] = {
    **AMONG_OTHERS,
    "attention_multiplier": 0.4,
    "embedding_multiplier": 3.0,
    "layer_types": ["mamba", "attention", "mamba"],
    "logits_scaling": 2.0,
    "num_experts_per_tok": 2,
    "num_local_experts": 4,
    "residual_multiplier": 0.5,
    "shared_intermediate_size": 20,
}

FALCON_H1: dict[str, Any] = {
    **AMONG_OTHERS,
    "mamba_d_ssm": 64,
    "mamba_n_groups": 2,
    "attention_in_multiplier": 0.8,
    "attention_out_multiplier": 0.7,
    "embedding_multiplier": 3.0,
    "key_multiplier": 1.5,
    "lm_head_multiplier": 0.4,
    "mlp_multipliers": [1.3, 0.6],
    "ssm_in_multiplier": 1.25,
    "ssm_multipliers": [0.9, 0.7, 1.1, 1.4, 0.8],
    "ssm_out_multiplier": 0.75,
}


def with_multipliers(model: PreTrainedModel) -> None:
    """What a vector of the class multiplies by, which it makes when it loads a file."""
    for layer in model.model.layers:
        layer.mamba.mup_vector.copy_(compute_mup_vector(model.config))


OLMO_HYBRID: dict[str, Any] = {**{key: DELTA[key] for key in DELTA if key != "head_dim"}, "pad_token_id": 0}


def _published_olmo(state: State, raw: Raw) -> tuple[State, Raw]:
    """Convolutions as long as queries, keys and values, which transformers cuts into equal parts, and norms of layers
    with attention under the names of OLMo 3.
    """
    made: State = {}
    for name, tensor in state.items():
        if name.endswith("q_conv1d.weight"):
            names = [name.replace("q_conv", f"{part}_conv") for part in "qkv"]
            parts = torch.cat([state[each] for each in names]).split((16, 16, 48))
            made |= dict(zip(names, parts, strict=True))
        elif "_conv1d" not in name:
            is_full = name.startswith("model.layers.1.")
            made[name.replace("feedforward_layer_norm", "post_attention_layernorm") if is_full else name] = tensor
    return made, raw


def _names_of_class(state: State, raw: Raw) -> tuple[State, Raw]:
    """Names of the modules of its class, which has one convolution."""
    state, raw = _published_olmo(state, raw)
    made: State = {}
    for name, tensor in state.items():
        if name.endswith("q_conv1d.weight"):
            convs = [state[name.replace("q_conv", f"{part}_conv")] for part in "qkv"]
            made[name.replace("q_conv", "conv")] = torch.cat(convs)
        elif "_conv1d" not in name:
            plain = name.replace("attention_layer_norm", "input_layernorm")
            made[plain.replace("feedforward_layer_norm", "post_attention_layernorm")] = tensor
    return made, raw


ZAMBA_2: dict[str, Any] = {
    "adapter_rank": 5,
    "layers_block_type": ["hybrid", "mamba", "hybrid", "hybrid"],
    "mamba_d_state": 6,
    "mamba_ngroups": 2,
    "n_mamba_heads": 8,
    "num_hidden_layers": 4,
    "num_key_value_heads": 4,
    "num_mem_blocks": 2,
    "use_mem_rope": True,
    "use_shared_attention_adapter": True,
}


def softened(model: PreTrainedModel) -> None:
    """Smaller scores and gates, which a rounding of wide inputs does not decide."""
    for name, parameter in model.named_parameters():
        if name.endswith(("q_proj.weight", "in_proj.weight")) or "linear_q_adapter" in name:
            parameter.data.mul_(0.3)


RECURRENT_CASES: dict[str, Case] = {
    "qwen3 next": Case("Qwen 3 Next", "qwen3_next", {**DELTA, **EXPERTS, "mlp_only_layers": [1]}),
    "qwen3.5": Case("Qwen 3.5 and 3.6", "qwen3_5_text", DELTA, _by_interval),
    "qwen3.5 moe": Case("Qwen 3.5 and 3.6 MoE", "qwen3_5_moe_text", {**DELTA, **EXPERTS}),
    "qwen3.5 moe stacked": Case(
        "Qwen 3.5 and 3.6 MoE", "qwen3_5_moe_text", {**DELTA, **EXPERTS, "linear_num_key_heads": 4}, stacked_experts
    ),
    "mamba": Case("Mamba", "mamba", {"state_size": 6}),
    "falcon mamba": Case("Falcon Mamba", "falcon_mamba", {"state_size": 6, "use_bias": True}),
    "mamba 2": Case("Mamba 2", "mamba2", {"num_heads": 8, "head_dim": 8, "n_groups": 4, "state_size": 6}),
    "mamba 2 of one group": Case(
        "Mamba 2",
        "mamba2",
        {
            "num_heads": 4,
            "head_dim": 16,
            "n_groups": 1,
            "state_size": 6,
            "time_step_limit": [0.5, 1.5],
            "use_bias": True,
        },
    ),
    "bamba": Case("Bamba", "bamba", {**AMONG_OTHERS, "attn_layer_indices": [1]}),
    "falcon h1": Case("Falcon H1", "falcon_h1", FALCON_H1, prepare=with_multipliers),
    "falcon h1 of one group": Case(
        "Falcon H1",
        "falcon_h1",
        {**FALCON_H1, "mamba_d_ssm": 48, "mamba_d_head": "auto", "mamba_n_groups": 1, "mamba_rms_norm": True},
        prepare=with_multipliers,
    ),
    "falcon h1 gated first": Case(
        "Falcon H1",
        "falcon_h1",
        {**FALCON_H1, "mamba_rms_norm": True, "mamba_norm_before_gate": False, "tie_word_embeddings": True},
        prepare=with_multipliers,
    ),
    "granite 4": Case("Granite 4", "granitemoehybrid", {**GRANITE_4, "mamba_n_groups": 2}),
    "granite 4 of one group": Case("Granite 4", "granitemoehybrid", {**GRANITE_4, "mamba_n_groups": 1}),
    "granite 4 dense": Case(
        "Granite 4", "granitemoehybrid", {**GRANITE_4, "num_local_experts": 0, "position_embedding_type": "rope"}
    ),
    "granite 4 without states": Case(
        "Granite 4", "granitemoehybrid", {**GRANITE_4, "layer_types": ["attention"] * 3, "num_local_experts": 0}
    ),
    "jamba": Case(
        "Jamba",
        "jamba",
        {"num_experts": 4, "mamba_d_state": 6, "attn_layer_period": 2, "attn_layer_offset": 1, "pad_token_id": 0},
    ),
    "nemotron h": Case("Nemotron-H, Nano 2 and 3", "nemotron_h", STATE_SPACE),
    "nemotron h letters": Case(
        "Nemotron-H, Nano 2 and 3", "nemotron_h", {**STATE_SPACE, "use_bias": True, "mlp_bias": True}, _pattern
    ),
    "nemotron 3": Case("Nemotron-H, Nano 2 and 3", "nemotron_h", NEMOTRON_3),
    "nemotron 3 latent": Case("Nemotron-H, Nano 2 and 3", "nemotron_h", {**NEMOTRON_3, "moe_latent_size": 12}),
    "nemotron 3 large shared": Case(
        "Nemotron-H, Nano 2 and 3", "nemotron_h", {**NEMOTRON_3, "moe_shared_expert_intermediate_size": 20}, _pattern
    ),
    **GLM_NEXT_CASES,
    "kimi linear": Case("Kimi Linear", "kimi_linear", KIMI_LINEAR, kimi_linear, prepare=with_corrections),
    "kimi linear ranks": Case(
        "Kimi Linear",
        "kimi_linear",
        {
            **{key: value for key, value in KIMI_LINEAR.items() if key != "linear_attn_config"},
            "layer_types": ["full_attention", "linear_attention", "linear_attention"],
            "linear_head_dim": 12,
            "linear_num_heads": 8,
            "mlp_layer_types": ["sparse", "sparse", "sparse"],
            "q_lora_rank": 12,
        },
        prepare=with_corrections,
    ),
    "ling 3 of transformers": Case(
        "Ling and Ring 3 (Bailing MoE 3)",
        "bailing_hybrid",
        {
            **{key: KIMI_LINEAR[key] for key in ("kv_lora_rank", "moe_intermediate_size", "num_key_value_heads")},
            **{key: KIMI_LINEAR[key] for key in ("qk_nope_head_dim", "qk_rope_head_dim", "topk_group", "v_head_dim")},
            "first_k_dense_replace": 1,
            "head_dim": 8,
            "layer_group_size": 2,
            "n_group": 2,
            "num_experts_per_tok": 2,
            "num_local_experts": 8,
            "num_mtp_layers": 0,
            "rms_norm_eps": 1e-3,
            "short_conv_kernel_size": 3,
        },
        prepare=with_corrections,
    ),
    "ling 3": Case(
        "Ling and Ring 3 (Bailing MoE 3)",
        "kimi_linear",
        LING_3,
        ling3(
            first_k_dense_replace=1,
            gated_attention_proj_granularity_type="head_wise",
            partial_rotary_factor=0.5,
        ),
        prepare=as_ling3(),
        architecture="BailingMoeV3ForCausalLM",
    ),
    "ling 3 elements": Case(
        "Ling and Ring 3 (Bailing MoE 3)",
        "kimi_linear",
        {**LING_3, "mlp_layer_types": ["sparse"] * 3, "q_lora_rank": 12},
        ling3(gated_attention_proj_granularity_type="element_wise", kda_safe_gate=False),
        prepare=as_ling3("element_wise", None),
        architecture="BailingMoeV3ForCausalLM",
    ),
    "ling 2.5": Case(
        "Ling and Ring 2.5 and 2.6 (Bailing MoE 2.5)",
        "kimi_linear",
        {**LING_25, "q_lora_rank": 12},
        ling3(**LING_25_KEYS),
        prepare=as_ling25(2),
        architecture="BailingMoeV2_5ForCausalLM",
    ),
    "ling 2.5 whole norm": Case(
        "Ling and Ring 2.5 and 2.6 (Bailing MoE 2.5)",
        "kimi_linear",
        LING_3,
        ling3(**{**LING_25_KEYS, "group_norm_size": 1, "layer_group_size": 2}),
        prepare=as_ling25(1),
        architecture="BailingMoeV2_5ForCausalLM",
    ),
    "minimax 01": Case("MiniMax-Text-01, MiniMax-M1", "minimax", MINIMAX_01),
    "minimax text 01": Case(
        "MiniMax-Text-01, MiniMax-M1",
        "minimax",
        {**MINIMAX_01, "rope_parameters": {"rope_type": "default", "rope_theta": 10_000}},
        _minimax_01,
        prepare=_rotates_half,
        architecture="MiniMaxText01ForCausalLM",
    ),
    "olmo hybrid": Case(
        "OLMo Hybrid", "olmo_hybrid", {**OLMO_HYBRID, "rope_parameters": {"rope_theta": None}}, _published_olmo
    ),
    "olmo hybrid with rope": Case(
        "OLMo Hybrid", "olmo_hybrid", {**OLMO_HYBRID, "linear_allow_neg_eigval": False}, _names_of_class
    ),
    "lfm2": Case("LFM 2", "lfm2", {"layer_types": CONVOLUTIONS, "block_multiple_of": 8}),
    "lfm2 with biases": Case(
        "LFM 2",
        "lfm2",
        {
            "block_auto_adjust_ff_dim": False,
            "conv_L_cache": 4,
            "conv_bias": True,
            "full_attn_idxs": [1],
            "layer_types": ...,
        },
        _without_types,
    ),
    "lfm2 moe": Case(
        "LFM 2 MoE",
        "lfm2_moe",
        {
            "layer_types": CONVOLUTIONS,
            "moe_intermediate_size": 16,
            "num_dense_layers": 1,
            "num_experts": 6,
            "num_experts_per_tok": 2,
            "routed_scaling_factor": 1.5,
        },
    ),
    "recurrent gemma": Case(
        "RecurrentGemma",
        "recurrent_gemma",
        {
            "attention_window_size": 6,
            "block_types": ["recurrent", "attention"],
            "intermediate_size": 96,
            "lru_width": 48,
            "partial_rotary_factor": 0.5,
        },
    ),
    "zamba 2": Case("Zamba 2", "zamba2", ZAMBA_2, prepare=softened),
    "zamba 2 of blocks apart": Case("Zamba 2", "zamba2", {**ZAMBA_2, "tie_word_embeddings": False}, prepare=softened),
    "zamba 2 of one block": Case(
        "Zamba 2",
        "zamba2",
        {
            **ZAMBA_2,
            "add_bias_linear": True,
            "layers_block_type": ["mamba", "hybrid", "hybrid"],
            "mamba_ngroups": 1,
            "num_hidden_layers": 3,
            "num_key_value_heads": 2,
            "num_mem_blocks": 1,
            "use_mem_rope": False,
            "use_shared_attention_adapter": False,
        },
        prepare=softened,
    ),
}
