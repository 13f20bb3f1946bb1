"""More of `support.published`: files of models of 2025 and 2026."""

import dataclasses

from support.families import Case
from support.family_cases import CASES
from support.published import LATENT, LLAMA, LLAMA3, LOCAL, file, own

MIXTURE = {**LLAMA, "head_dim": 8, "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 20}
GROWING = {
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "factor": 16.0,
    "llama_4_scaling_beta": 0.1,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "original_max_position_embeddings": 8,
    "rope_theta": 1000000.0,
    "rope_type": "yarn",
    "type": "yarn",
}
"""The original length is 8,192 or 16,384 in published files: so queries grow in short prompts too."""


FULL = "full_attention"
GEMMA_4 = {
    "attention_bias": False,
    "final_logit_softcapping": 30.0,
    "global_head_dim": 16,
    "head_dim": 8,
    "hidden_activation": "gelu_pytorch_tanh",
    "pad_token_id": 0,
    "rms_norm_eps": 1e-06,
    "rope_parameters": {
        "full_attention": {"partial_rotary_factor": 0.25, "rope_theta": 1000000.0, "rope_type": "proportional"},
        "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"},
    },
    "sliding_window": 4,
    "tie_word_embeddings": True,
    "vocab_size_per_layer_input": 99,
}
SHARED_4 = {
    "attention_k_eq_v": False,
    "enable_moe_block": False,
    "hidden_size_per_layer_input": 8,
    "num_experts": None,
    "num_global_key_value_heads": None,
    "num_kv_shared_layers": 1,
    "use_double_wide_mlp": True,
}
LARGE_4 = {
    "attention_k_eq_v": True,
    "hidden_size_per_layer_input": 0,
    "num_global_key_value_heads": 1,
    "num_kv_shared_layers": 0,
    "use_double_wide_mlp": False,
}
EXPERTS_4 = {
    "enable_moe_block": True,
    "layer_types": LOCAL,
    "moe_intermediate_size": 20,
    "num_experts": 6,
    "top_k_experts": 2,
    "use_bidirectional_attention": "vision",
}


def of(name: str, **values: object) -> Case:
    """A file of a case whose class Transformers lacks: it writes none of these keys."""
    case = CASES[name]
    return file(case, {**LLAMA, "architectures": [case.architecture], **values})


NEWER: dict[str, Case] = {
    "Ministral 3 8B": own("ministral3", LLAMA, head_dim=8, rope_parameters=GROWING, sliding_window=None),
    "Ministral 3 without keys of rope": own("ministral3", LLAMA, head_dim=8),
    "Mistral Small 4": own(
        "mistral4",
        {key: value for key, value in LATENT.items() if key not in ("rope_theta", "moe_layer_freq", "ep_size")},
        rope_parameters={**GROWING, "partial_rotary_factor": 0.4},
        rope_interleave=True,
        norm_topk_prob=True,
        head_dim=10,
        qk_head_dim=10,
        first_k_dense_replace=0,
    ),
    "Mistral Small 4 without keys of rope": own("mistral4", LATENT, head_dim=10),
    "K-EXAONE": own(
        "exaone_moe",
        MIXTURE,
        architectures=["ExaoneMoEForCausalLM"],
        num_hidden_layers=4,
        num_shared_experts=1,
        first_k_dense_replace=1,
        mlp_layer_types=["dense", "sparse", "sparse", "sparse"],
        layer_types=LOCAL,
        sliding_window=4,
        sliding_window_pattern="LLLG",
        n_group=1,
        topk_group=1,
        topk_method="noaux_tc",
        scoring_func="sigmoid",
        norm_topk_prob=True,
        routed_scaling_factor=2.5,
        num_nextn_predict_layers=1,
        rope_parameters={"rope_theta": 1000000, "rope_type": "default"},
    ),
    "Solar Open": own(
        "solar_open",
        {**LLAMA, "head_dim": 8, "moe_intermediate_size": 20, "n_routed_experts": 6, "num_experts_per_tok": 2},
        n_shared_experts=1,
        n_group=1,
        topk_group=1,
        norm_topk_prob=True,
        partial_rotary_factor=1.0,
        routed_scaling_factor=1.0,
        rope_theta=1000000,
        rope_scaling={"factor": 2.0, "original_max_position_embeddings": 32, "rope_type": "yarn", "type": "yarn"},
        max_position_embeddings=64,
    ),
    "Hy3": own(
        "hy_v3",
        MIXTURE,
        enable_attention_fp32_softmax=False,
        enable_lm_head_fp32=True,
        enable_moe_fp32_combine=False,
        expert_hidden_dim=20,
        first_k_dense_replace=1,
        moe_router_enable_expert_bias=True,
        moe_router_use_sigmoid=True,
        num_nextn_predict_layers=1,
        num_shared_experts=1,
        qk_norm=True,
        route_norm=True,
        router_scaling_factor=2.826,
        rope_parameters={"rope_theta": 11158840.0, "rope_type": "default"},
    ),
    "Trinity Mini": own(
        "afmoe",
        MIXTURE,
        num_hidden_layers=4,
        num_dense_layers=2,
        num_shared_experts=1,
        global_attn_every_n_layers=4,
        layer_types=LOCAL,
        sliding_window=4,
        load_balance_coeff=5e-5,
        mup_enabled=True,
        n_group=1,
        topk_group=1,
        num_expert_groups=1,
        num_limited_groups=1,
        rope_theta=10000,
        rope_scaling=None,
        route_norm=True,
        route_scale=2.826,
        score_func="sigmoid",
        use_grouped_mm=True,
    ),
    "Gemma 4 E2B": own("gemma4_text", LLAMA, **GEMMA_4, **SHARED_4, num_hidden_layers=5, layer_types=[*LOCAL, FULL]),
    "Gemma 4 31B": own("gemma4_text", LLAMA, **GEMMA_4, **LARGE_4, num_hidden_layers=6, enable_moe_block=False),
    "Gemma 4 26B-A4B": own("gemma4_text", LLAMA, **GEMMA_4, **LARGE_4, **EXPERTS_4, num_hidden_layers=4),
    "MiMo 7B": file(
        dataclasses.replace(CASES["mimo"], values={"rope_parameters": {"rope_theta": 640000}}),
        {
            **LLAMA,
            "architectures": ["MiMoForCausalLM"],
            "model_type": "mimo",
            "attention_bias": True,
            "head_dim": 8,
            "num_nextn_predict_layers": 1,
            "max_window_layers": 36,
            "sliding_window": 32768,
            "use_sliding_window": False,
            "rope_theta": 640000,
        },
    ),
    "TeleChat 3": of("telechat3", model_type="telechat3", attention_bias=False, mlp_bias=False, rope_theta=10000.0),
    "IQuest-Coder": of(
        "iquest coder",
        model_type="iquestcoder",
        clip_qkv=None,
        head_dim=12,
        rms_norm_eps=1e-5,
        rope_scaling=None,
        rope_theta=10000.0,
        use_sliding_window=False,
        sliding_window=None,
        max_window_layers=0,
    ),
    "Nemotron Super 49B": file(
        dataclasses.replace(
            CASES["decilm"], values={**CASES["decilm"].values, "rope_parameters": {**LLAMA3, "rope_theta": 5e5}}
        ),
        {
            **LLAMA,
            "architectures": ["DeciLMForCausalLM"],
            "model_type": "nemotron-nas",
            "num_hidden_layers": 5,
            "num_key_value_heads": None,
            "intermediate_size": None,
            "block_configs": [
                {
                    "attention": {
                        "n_heads_in_group": group,
                        "no_op": group is None,
                        "num_sink_tokens": None,
                        "replace_with_linear": False,
                        "sparsify": None,
                        "unshifted_sink": False,
                        "use_prefill_window_in_sink_attention": False,
                        "window_length": None,
                    },
                    "ffn": {
                        "ffn_mult": mult,
                        "intermediate_size": inner,
                        "no_op": mult is inner,
                        "replace_with_linear": False,
                        "sparsify": None,
                    },
                }
                for group, mult, inner in (
                    (2, 13.0, None),
                    (None, None, 24),
                    (4, None, None),
                    (None, None, None),
                    (1, 20.0, None),
                )
            ],
            "rope_scaling": LLAMA3,
            "rope_theta": 500000.0,
        },
    ),
    "Ling mini 2.0": file(
        dataclasses.replace(
            CASES["ling 2"],
            values={
                **CASES["ling 2"].values,
                "rope_parameters": {"rope_theta": 6e5, "partial_rotary_factor": 0.5},
                "rms_norm_eps": 1e-6,
            },
        ),
        {
            **LLAMA,
            "architectures": ["BailingMoeV2ForCausalLM"],
            "model_type": "bailing_moe",
            "embedding_dropout": 0.0,
            "first_k_dense_replace": 1,
            "head_dim": 8,
            "moe_intermediate_size": 16,
            "moe_router_enable_expert_bias": True,
            "moe_shared_expert_intermediate_size": 16,
            "n_group": 4,
            "norm_topk_prob": True,
            "num_experts": 8,
            "num_experts_per_tok": 3,
            "num_nextn_predict_layers": 0,
            "num_shared_experts": 1,
            "partial_rotary_factor": 0.5,
            "rms_norm_eps": 1e-06,
            "rope_scaling": None,
            "rope_theta": 600000,
            "rotary_dim": 4,
            "routed_scaling_factor": 1.5,
            "router_dtype": "fp32",
            "score_function": "sigmoid",
            "topk_group": 2,
            "use_bias": False,
            "use_qk_norm": True,
            "use_qkv_bias": False,
            "use_rmsnorm": True,
        },
    ),
}
