"""`config.json` files with the keys that published models have, and tiny sizes.

They differ from what transformers writes today: older names, keys that repeat defaults, null, and keys that mean
nothing. Each is compared with the class of transformers that reads the same file; files of remote code, which it cannot
read, with the class and the values that the model has.
"""

import dataclasses
from typing import Any

from support.families import Case, Raw, State
from support.latent_cases import LATENT as LATENT_SIZES

TOKENS = {"vocab_size": 99, "bos_token_id": 1, "eos_token_id": 2, "initializer_range": 0.02, "use_cache": True}
LLAMA = {
    **TOKENS,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "torch_dtype": "bfloat16",
    "attention_dropout": 0.0,
}
MANY_HEADS = {key: value for key, value in LLAMA.items() if key != "num_key_value_heads"}
LATENT = {
    **LLAMA,
    **LATENT_SIZES,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 16,
    "n_shared_experts": 2,
    "first_k_dense_replace": 1,
    "moe_layer_freq": 1,
    "n_group": 1,
    "topk_group": 1,
    "ep_size": 1,
    "rope_theta": 10000,
    "max_position_embeddings": 163840,
    "num_nextn_predict_layers": 0,
}
LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
    "rope_type": "llama3",
}
NTK_ALPHA = {
    "alpha": 1000.0,
    "beta_fast": 32,
    "beta_slow": 1,
    "factor": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 0.0,
    "type": "dynamic",
}
OF_DEEPSEEK = {"beta_fast": 32, "beta_slow": 1, "factor": 40, "original_max_position_embeddings": 4096, "type": "yarn"}
FACTORS = [1.0, 1.5, 2.0, 2.5]
LOCAL = ["sliding_attention"] * 3 + ["full_attention"]


def file(case: Case, values: Raw) -> Case:
    """The same model beside a file of these values."""
    before = case.relayout or (lambda state, raw: (state, raw))

    def relayout(state: State, raw: Raw) -> tuple[State, Raw]:
        state, raw = before(state, raw)
        return state, {"architectures": raw["architectures"], **values}

    return dataclasses.replace(case, relayout=relayout)


def own(model_type: str, values: Raw, **keys: Any) -> Case:
    """A file that transformers reads too."""
    return file(Case("", model_type, {**values, **keys}, sizes={}), {"model_type": model_type, **values, **keys})


PUBLISHED: dict[str, Case] = {
    "Llama 2": own("llama", MANY_HEADS, rope_scaling=None, pretraining_tp=1, max_sequence_length=2048),
    "Llama 3.1": own("llama", LLAMA, rope_theta=5e5, rope_scaling=LLAMA3, mlp_bias=False, pretraining_tp=1),
    "Llama 3.2": own("llama", LLAMA, head_dim=12, rope_theta=5e5, rope_scaling=LLAMA3, tie_word_embeddings=True),
    "Llama, linear": own("llama", LLAMA, rope_scaling={"type": "linear", "factor": 4.0}),
    "Llama, dynamic": own("llama", LLAMA, rope_scaling={"type": "dynamic", "factor": 4.0}),
    "Llama, transformers 5": own("llama", LLAMA, rope_parameters={**LLAMA3, "rope_theta": 5e5}),
    "Qwen 2.5": own("qwen2", LLAMA, sliding_window=4, use_sliding_window=False, max_window_layers=21, use_mrope=False),
    "Qwen 2.5 with YaRN": own(
        "qwen2",
        LLAMA,
        use_sliding_window=False,
        max_position_embeddings=32,
        rope_scaling={"factor": 4.0, "original_max_position_embeddings": 32, "type": "yarn"},
    ),
    "Qwen 3": own("qwen3", LLAMA, head_dim=16, sliding_window=None, use_sliding_window=False, rope_scaling=None),
    "Qwen 3 Coder": own(
        "qwen3_moe",
        LLAMA,
        head_dim=16,
        num_experts=6,
        num_experts_per_tok=2,
        moe_intermediate_size=20,
        shared_expert_intermediate_size=0,
        norm_topk_prob=True,
        mlp_only_layers=[],
        use_qk_norm=True,
        qkv_bias=False,
    ),
    "Mistral 0.1": own("mistral", LLAMA, sliding_window=4, max_position_embeddings=32768),
    "Mistral 0.3": own("mistral", LLAMA, sliding_window=None, head_dim=None, rope_theta=1e6),
    "Mixtral": own("mixtral", LLAMA, num_local_experts=6, sliding_window=None, router_jitter_noise=0.0),
    "Phi 3 mini 128k": own(
        "phi3",
        LLAMA,
        pad_token_id=0,
        sliding_window=262144,
        original_max_position_embeddings=4096,
        max_position_embeddings=131072,
        rope_scaling={"type": "longrope", "short_factor": FACTORS, "long_factor": FACTORS},
    ),
    "Phi 4 mini": own(
        "phi3",
        LLAMA,
        hidden_size=64,
        pad_token_id=0,
        partial_rotary_factor=0.75,
        original_max_position_embeddings=4096,
        max_position_embeddings=131072,
        rope_scaling={"type": "longrope", "short_factor": [1.0] * 6, "long_factor": [1.0] * 6},
        tie_word_embeddings=True,
        full_attn_mod=1,
    ),
    "Phi 3.5 MoE": own(
        "phimoe",
        LLAMA,
        num_local_experts=6,
        attention_bias=True,
        lm_head_bias=True,
        max_position_embeddings=131072,
        original_max_position_embeddings=4096,
        rope_scaling={
            "type": "longrope",
            "short_factor": FACTORS,
            "long_factor": FACTORS,
            "short_mscale": 1.243163121016122,
            "long_mscale": 1.243163121016122,
            "original_max_position_embeddings": 4096,
        },
    ),
    "SmolLM 3": own(
        "smollm3",
        LLAMA,
        num_hidden_layers=4,
        no_rope_layers=[1, 1, 1, 0],
        layer_types=["full_attention"] * 4,
        sliding_window=None,
        pad_token_id=3,
    ),
    "OLMo 3": own(
        "olmo3",
        LLAMA,
        num_hidden_layers=4,
        layer_types=LOCAL,
        sliding_window=4,
        max_position_embeddings=64,
        pad_token_id=3,
        rope_scaling={
            "attention_factor": 1.2079441541679836,
            "beta_fast": 32,
            "beta_slow": 1,
            "factor": 8.0,
            "original_max_position_embeddings": 8,
            "rope_type": "yarn",
        },
    ),
    "EXAONE 4.0 32B": own(
        "exaone4",
        LLAMA,
        num_hidden_layers=4,
        sliding_window=4,
        sliding_window_pattern="LLLG",
        layer_types=LOCAL,
        rope_scaling=LLAMA3,
    ),
    "EXAONE 4.0 1.2B": own(
        "exaone4",
        LLAMA,
        sliding_window=None,
        sliding_window_pattern=None,
        layer_types=["full_attention"] * 3,
        rope_scaling=LLAMA3,
    ),
    "Hunyuan 7B": own(
        "hunyuan_v1_dense", LLAMA, head_dim=8, attention_head_dim=8, rope_scaling=NTK_ALPHA, use_qk_norm=True
    ),
    "Hunyuan A13B": own(
        "hunyuan_v1_moe",
        LLAMA,
        head_dim=8,
        num_experts=4,
        moe_topk=[2, 2, 2],
        num_shared_expert=[1, 1, 1],
        moe_intermediate_size=[48, 48, 48],
        rope_scaling=NTK_ALPHA,
        use_cla=False,
        use_mixed_mlp_moe=True,
    ),
    "Gemma 1": own("gemma", LLAMA, head_dim=16, hidden_act="gelu", hidden_activation=None),
    "Gemma 3 1B": own(
        "gemma3_text",
        LLAMA,
        num_hidden_layers=6,
        head_dim=16,
        sliding_window=4,
        sliding_window_pattern=6,
        rope_local_base_freq=10000,
        rope_theta=1000000,
        rope_scaling={"factor": 8.0, "rope_type": "linear"},
        attn_logit_softcapping=None,
        final_logit_softcapping=None,
    ),
    "Gemma 3 270M": own(
        "gemma3_text",
        LLAMA,
        num_hidden_layers=4,
        head_dim=16,
        sliding_window=4,
        _sliding_window_pattern=6,
        layer_types=LOCAL,
        rope_local_base_freq=10000.0,
        rope_theta=1000000.0,
        use_bidirectional_attention=False,
    ),
    "Command R7B": own(
        "cohere2",
        LLAMA,
        num_hidden_layers=4,
        head_dim=8,
        sliding_window=4,
        sliding_window_pattern=4,
        logit_scale=0.25,
        pad_token_id=0,
        position_embedding_type="rope_gptj",
        use_parallel_block=True,
    ),
    "gpt-oss": own(
        "gpt_oss",
        LLAMA,
        head_dim=8,
        num_local_experts=6,
        experts_per_token=4,
        initial_context_length=4096,
        layer_types=LOCAL[1:],
        sliding_window=4,
        pad_token_id=3,
        rope_theta=150000,
        rope_scaling={**OF_DEEPSEEK, "factor": 32.0, "rope_type": "yarn", "truncate": False},
        swiglu_limit=7.0,
    ),
    "MiniMax-M2": own(
        "minimax_m2",
        LLAMA,
        head_dim=8,
        rotary_dim=4,
        rope_theta=5000000,
        num_local_experts=6,
        num_experts_per_tok=2,
        attn_type_list=[1, 1, 1],
        use_qk_norm=True,
        scoring_func="sigmoid",
        use_mtp=True,
    ),
    "DeepSeek V2 Lite": own(
        "deepseek_v2",
        LATENT,
        q_lora_rank=None,
        topk_method="greedy",
        norm_topk_prob=False,
        scoring_func="softmax",
        rope_scaling={**OF_DEEPSEEK, "mscale": 0.707, "mscale_all_dim": 0.707},
    ),
    "Kimi K2": own(
        "deepseek_v3",
        LATENT,
        topk_method="noaux_tc",
        scoring_func="sigmoid",
        rope_theta=50000.0,
        rope_scaling={**OF_DEEPSEEK, "factor": 64.0, "beta_fast": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0},
    ),
    "Pythia": own("gpt_neox", MANY_HEADS, rotary_pct=0.5, rotary_emb_base=10000, use_parallel_residual=True),
    "GPT-NeoX 20B": own("gpt_neox", MANY_HEADS, hidden_act="gelu_fast", rotary_pct=0.25, rotary_emb_base=10000),
    "Galactica": own(
        "opt",
        {key: value for key, value in MANY_HEADS.items() if key != "intermediate_size"},
        ffn_dim=48,
        word_embed_proj_dim=32,
        activation_function="gelu",
        enable_bias=False,
        layer_norm_elementwise_affine=False,
        pad_token_id=1,
    ),
    "BLOOM 560M": own(
        "bloom",
        {**TOKENS, "hidden_size": 32, "n_head": 4, "n_layer": 3},
        n_embed=32,
        num_attention_heads=4,
        seq_length=2048,
        offset_alibi=100,
        masked_softmax_fusion=True,
    ),
}
