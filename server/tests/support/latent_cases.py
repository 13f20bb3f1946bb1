"""Families with latent attention, as variants that their configurations can have."""

from typing import Any

from support.deepseek_v4 import DEEPSEEK_V4_CASES
from support.families import Case, Raw, State
from support.moe_cases import with_corrections
from support.relayouts import renamed

LATENT: dict[str, Any] = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 12,
    "q_lora_rank": 10,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 6,
    "v_head_dim": 8,
}
EXPERTS: dict[str, Any] = {
    **LATENT,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 16,
    "n_shared_experts": 2,
    "routed_scaling_factor": 1.5,
    "first_k_dense_replace": 1,
}
INDEXER: dict[str, Any] = {"index_topk": 5, "index_head_dim": 16, "index_n_heads": 8}
"""Longer prompts attend to some positions alone. Few heads would often have scores of 0, which are equal."""
# Transformers 5 refuses a rope without its base.
YARN = {
    "rope_type": "yarn",
    "rope_theta": 1e4,
    "factor": 4.0,
    "original_max_position_embeddings": 16,
    "beta_fast": 32,
    "beta_slow": 1,
}
YARN_OF_V3 = {**YARN, "mscale": 1.0, "mscale_all_dim": 1.0}
YARN_OF_SARVAM = {key: value for key, value in YARN_OF_V3.items() if key != "rope_type"} | {"type": "deepseek_yarn"}
GROWING = {**YARN_OF_V3, "factor": 16.0, "original_max_position_embeddings": 4}
GROWING["llama_4_scaling_beta"] = 0.5
"""Queries grow with their position from the fifth on."""
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "factor": 1.0,
    "short_factor": [1.0, 1.5],
    "long_factor": [2.0, 4.0],
    "original_max_position_embeddings": 64,
}


LONGCAT: dict[str, Any] = {
    **LATENT,
    "expert_ffn_hidden_size": 16,
    "ffn_hidden_size": 48,
    "head_dim": 4,
    "intermediate_size": ...,
    "kv_lora_rank": 12,
    "moe_topk": 3,
    "n_routed_experts": 5,
    "num_hidden_layers": ...,
    "num_layers": 2,
    "zero_expert_num": 4,
}


def _longcat(state: State, raw: Raw) -> tuple[State, Raw]:
    """Without matrices of experts that change nothing, and with the authors' keys."""
    first = raw["n_routed_experts"]
    extra = tuple(f".mlp.experts.{first + index}." for index in range(raw["zero_expert_num"]))
    kept = {name: tensor for name, tensor in state.items() if not any(each in name for each in extra)}
    own = {"attention_method": "MLA", "mla_scale_kv_lora": True, "mla_scale_q_lora": True}
    return kept, {**raw, **own, "zero_expert_type": "identity"}


def _large3(state: State, raw: Raw) -> tuple[State, Raw]:
    """Matrices of each expert, and the keys of files made from `params.json`."""
    gate_up, down = "mlp.experts.gate_up_proj", "mlp.experts.down_proj"
    each = {name: tensor for name, tensor in state.items() if gate_up not in name and down not in name}
    for name in (name for name in state if gate_up in name):
        before = name.removesuffix(gate_up)
        for expert, (both, last) in enumerate(zip(state[name], state[f"{before}{down}"], strict=True)):
            gate, up = both.chunk(2)
            for end, matrix in (("gate_proj", gate), ("up_proj", up), ("down_proj", last)):
                each[f"{before}mlp.experts.{expert}.{end}.weight"] = matrix
    rope = {key: value for key, value in raw["rope_parameters"].items() if key != "llama_4_scaling_beta"}
    growth = {"beta": 0.5, "original_max_position_embeddings": 4}
    given = {"architectures": ["MistralLarge3ForCausalLM"], "rope_parameters": rope, "llama_4_scaling": growth}
    return each, {**raw, **given, "model_type": "deepseek_v3", "scoring_func": "softmax"}


LATENT_CASES: dict[str, Case] = {
    **DEEPSEEK_V4_CASES,
    "deepseek v2": Case(
        "DeepSeek V2",
        "deepseek_v2",
        {
            **EXPERTS,
            "topk_method": "group_limited_greedy",
            "n_group": 4,
            "topk_group": 2,
            "rope_parameters": {**YARN, "mscale": 0.707, "mscale_all_dim": 1.0},
        },
    ),
    "deepseek v2 lite": Case("DeepSeek V2", "deepseek_v2", {**EXPERTS, "q_lora_rank": None}),
    "deepseek v3": Case(
        "DeepSeek V3 and R1, Kimi K2, Moonlight",
        "deepseek_v3",
        {
            **EXPERTS,
            "n_group": 4,
            "topk_group": 2,
            "num_nextn_predict_layers": 0,
            "rope_parameters": YARN_OF_V3,
        },
        prepare=with_corrections,
    ),
    "kimi k2": Case(
        "DeepSeek V3 and R1, Kimi K2, Moonlight",
        "deepseek_v3",
        {
            **EXPERTS,
            "n_group": 1,
            "topk_group": 1,
            "n_shared_experts": 1,
            "q_lora_rank": None,
            "num_nextn_predict_layers": 0,
            "rope_interleave": False,
        },
        prepare=with_corrections,
    ),
    "mistral 4": Case(
        "Mistral Small 4 and Large 3",
        "mistral4",
        {**EXPERTS, "n_group": 4, "topk_group": 2, "rope_parameters": GROWING},
    ),
    "mistral 4 each": Case(
        "Mistral Small 4 and Large 3",
        "mistral4",
        {**EXPERTS, "n_shared_experts": 1, "first_k_dense_replace": 0, "rope_parameters": GROWING},
        _large3,
        architecture="MistralLarge3ForCausalLM",
    ),
    "sarvam latent": Case(
        "Sarvam 105B",
        "deepseek_v3",
        {**EXPERTS, "n_group": 1, "topk_group": 1, "q_lora_rank": None, "rope_parameters": YARN_OF_V3},
        renamed(
            "SarvamMLAForCausalLM",
            model_type="sarvam_mla",
            num_experts=8,
            num_shared_experts=2,
            rope_scaling=YARN_OF_SARVAM,
            **dict.fromkeys(("n_routed_experts", "n_shared_experts", "n_group", "topk_group", "rope_parameters"), ...),
        ),
        prepare=with_corrections,
        architecture="SarvamMLAForCausalLM",
    ),
    "deepseek v3.2": Case(
        "DeepSeek V3.2",
        "deepseek_v32",
        {**EXPERTS, **INDEXER, "n_group": 4, "topk_group": 2, "rope_parameters": YARN_OF_V3},
        prepare=with_corrections,
    ),
    "glm 5": Case("GLM 5", "glm_moe_dsa", {**EXPERTS, **INDEXER, "rms_norm_eps": 1e-3}, prepare=with_corrections),
    "glm 5.2": Case(
        "GLM 5",
        "glm_moe_dsa",
        {**EXPERTS, **INDEXER, "index_topk_pattern": "FSF"},
        prepare=with_corrections,
    ),
    "longcat": Case("LongCat Flash", "longcat_flash", LONGCAT, _longcat, prepare=with_corrections),
    "longcat without zero experts": Case(
        "LongCat Flash",
        "longcat_flash",
        {
            **LONGCAT,
            "routed_scaling_factor": 2.0,
            "zero_expert_num": 0,
            "rope_parameters": YARN_OF_V3,
        },
        prepare=with_corrections,
    ),
    "glm4 moe lite": Case(
        "GLM 4.7 Flash", "glm4_moe_lite", {**EXPERTS, "num_nextn_predict_layers": 0}, prepare=with_corrections
    ),
    "minicpm3": Case(
        "MiniCPM 3",
        "minicpm3",
        {**LATENT, "scale_emb": 6.0, "dim_model_base": 8, "scale_depth": 1.4, "rope_parameters": LONGROPE},
    ),
    "youtu": Case("Youtu-LLM", "youtu", LATENT),
}
