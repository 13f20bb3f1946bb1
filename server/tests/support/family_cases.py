"""Every family that is implemented, as variants that its configurations can have."""

import re
from typing import Any

import torch
from support.families import SIZES, Case, Raw, State
from support.moe_cases import MOE_CASES

W = {"sliding_window": 4}
LONGROPE = {"short_factor": [1.0, 1.5, 2.0, 2.5], "long_factor": [2.0, 4.0, 6.0, 8.0], "rope_type": "longrope"}


def renamed(architecture: str, *rules: tuple[str, str], **keys: Any):  # noqa: ANN201
    """Re-layout by regular expressions over names, and other keys of the configuration; `...` removes one."""

    def relayout(state: State, raw: Raw) -> tuple[State, Raw]:
        for pattern, target in rules:
            state = {re.sub(pattern, target, name): tensor for name, tensor in state.items()}
        raw = {**raw, "architectures": [architecture], **keys}
        return state, {key: value for key, value in raw.items() if value is not ...}

    return relayout


def fused_blocks(state: State, parts: tuple[str, ...], target: str) -> State:
    """Stacks matrices of each layer, whose names end with `parts`, into one."""
    fused = dict(state)
    for name in state:
        if parts[0] in name:
            fused[name.replace(parts[0], target)] = torch.cat(
                [fused.pop(name.replace(parts[0], part)) for part in parts]
            )
    return fused


def fused_groups(state: State, target: str, heads: int = 4, kv_heads: int = 2) -> State:
    """Q, K and V in the layout `[kv_heads, heads / kv_heads + 2, head_dim]`."""
    fused = dict(state)
    for name in state:
        if "q_proj" in name:
            q, k, v = (fused.pop(name.replace("q_proj", part)) for part in ("q_proj", "k_proj", "v_proj"))
            size = q.shape[0] // heads
            grouped = [part.view(kv_heads, -1, size, *q.shape[1:]) for part in (q, k, v)]
            fused[name.replace("self_attn.q_proj", target)] = torch.cat(grouped, dim=1).view(-1, *q.shape[1:])
    return fused


def _internlm2(state: State, raw: Raw) -> tuple[State, Raw]:
    names = (
        (r"embed_tokens", "tok_embeddings"),
        (r"lm_head", "output"),
        (r"input_layernorm", "attention_norm"),
        (r"post_attention_layernorm", "ffn_norm"),
        (r"self_attn\.o_proj", "attention.wo"),
        (r"mlp\.gate_proj", "feed_forward.w1"),
        (r"mlp\.up_proj", "feed_forward.w3"),
        (r"mlp\.down_proj", "feed_forward.w2"),
    )
    return renamed("InternLM2ForCausalLM", *names, bias=False)(fused_groups(state, "attention.wqkv"), raw)


def _baichuan(state: State, raw: Raw) -> tuple[State, Raw]:
    state = fused_blocks(state, ("q_proj", "k_proj", "v_proj"), "W_pack")
    return renamed("BaichuanForCausalLM")(state, raw)


def _baichuan_alibi(state: State, raw: Raw) -> tuple[State, Raw]:
    state, raw = _baichuan(state, raw)
    del raw["max_position_embeddings"], raw["rope_parameters"]
    return state, {**raw, "model_max_length": 64}


def alibi_inputs(length: int) -> dict[str, Any]:
    """No rotation, and a bias of 6 heads with the slopes of the paper."""
    slopes = torch.tensor([2**-2, 2**-4, 2**-6, 2**-8, 2**-1, 2**-3])
    distances = torch.arange(length) - torch.arange(length)[:, None]
    bias = torch.where(distances > 0, float("-inf"), slopes[:, None, None] * distances)
    return {"attention_mask": bias[None], "position_ids": torch.zeros(1, length, dtype=torch.int64)}


EXAONE3 = (
    (r"model\.embed_tokens", "transformer.wte"),
    (r"model\.norm", "transformer.ln_f"),
    (r"model\.layers", "transformer.h"),
    (r"input_layernorm", "ln_1"),
    (r"post_attention_layernorm", "ln_2"),
    (r"self_attn\.o_proj", "attn.attention.out_proj"),
    (r"self_attn", "attn.attention"),
    (r"mlp\.gate_proj", "mlp.c_fc_0"),
    (r"mlp\.up_proj", "mlp.c_fc_1"),
    (r"mlp\.down_proj", "mlp.c_proj"),
)
EXAONE3_KEYS = {
    "num_layers": 3,
    "num_hidden_layers": ...,
    "activation_function": "silu",
    "hidden_act": ...,
    "layer_norm_epsilon": 1e-6,
    "rms_norm_eps": ...,
}
MINICPM_KEYS = {
    "scale_emb": 6.0,
    "dim_model_base": 8,
    "scale_depth": 1.4,
    **dict.fromkeys(("embedding_multiplier", "residual_multiplier", "attention_multiplier", "logits_scaling"), ...),
}
MINICPM = {"embedding_multiplier": 6.0, "residual_multiplier": 1.4 / 3**0.5, "logits_scaling": 4.0}

CASES: dict[str, Case] = {
    "llama": Case("Llama 1 to 3, Yi", "llama"),
    "yi": Case("Llama 1 to 3, Yi", "llama", relayout=renamed("YiForCausalLM")),
    "mistral": Case("Mistral", "mistral", W),
    "mistral nemo": Case("Mistral", "mistral", {"sliding_window": None, "head_dim": 12}),
    "ministral": Case(
        "Ministral 8B", "ministral", {**W, "head_dim": 8, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}
    ),
    "qwen2": Case("Qwen 2 and 2.5", "qwen2"),
    "qwen2 window": Case(
        "Qwen 2 and 2.5", "qwen2", {**W, "use_sliding_window": True, "max_window_layers": 1, "tie_word_embeddings": True}
    ),
    "qwen3": Case("Qwen 3", "qwen3", {"head_dim": 16}),
    "phi3": Case("Phi 3, 3.5 and 4", "phi3", W),
    "phi4 mini": Case("Phi 3, 3.5 and 4", "phi3", {"rope_parameters": {"partial_rotary_factor": 0.5, "rope_theta": 1e4}}),
    "phi3 longrope": Case(
        "Phi 3, 3.5 and 4",
        "phi3",
        {"original_max_position_embeddings": 32, "rope_parameters": {**LONGROPE, "rope_theta": 1e4}},
    ),
    "granite": Case(
        "Granite 3",
        "granite",
        {"embedding_multiplier": 3.0, "residual_multiplier": 0.3, "attention_multiplier": 0.2, "logits_scaling": 4.0},
    ),
    "minicpm": Case(
        "MiniCPM",
        "granite",
        {**MINICPM, "attention_multiplier": 8**-0.5, "tie_word_embeddings": True},
        renamed("MiniCPMForCausalLM", **MINICPM_KEYS),
    ),
    "smollm3": Case("SmolLM 3", "smollm3", {"num_hidden_layers": 4}),
    "smollm3 window": Case("SmolLM 3", "smollm3", {**W, "no_rope_layers": [1, 0, 1], "use_sliding_window": True}),
    "seed_oss": Case("Seed-OSS", "seed_oss", {"head_dim": 8}),
    "internlm": Case(
        "InternLM 1, 2, 2.5 and 3", "llama", {"attention_bias": True}, renamed("InternLMForCausalLM", bias=True)
    ),
    "internlm2": Case("InternLM 1, 2, 2.5 and 3", "llama", relayout=_internlm2),
    "internlm3": Case(
        "InternLM 1, 2, 2.5 and 3", "llama", {"head_dim": 12}, renamed("InternLM3ForCausalLM", qkv_bias=False, bias=False)
    ),
    "baichuan": Case("Baichuan 1 and 2", "llama", {"num_key_value_heads": 4}, _baichuan),
    "baichuan alibi": Case(
        "Baichuan 1 and 2",
        "llama",
        {"num_attention_heads": 6, "num_key_value_heads": 6, "hidden_size": 48},
        _baichuan_alibi,
        alibi_inputs,
    ),
    "exaone3": Case("EXAONE 3 and 3.5", "llama", relayout=renamed("ExaoneForCausalLM", *EXAONE3, **EXAONE3_KEYS)),
    "exaone4": Case("EXAONE 4", "exaone4", {**W, "sliding_window_pattern": 2}),
    "exaone4 global": Case(
        "EXAONE 4", "exaone4", {"sliding_window": None, "layer_types": ["full_attention"] * 3}
    ),
    "olmo2": Case("OLMo 2", "olmo2"),
    "olmo3": Case(
        "OLMo 3",
        "olmo3",
        {
            **W,
            "num_hidden_layers": 4,
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
                "full_attention": {
                    "rope_type": "yarn", "rope_theta": 1e4, "factor": 2.0, "original_max_position_embeddings": 32,
                },
            },
        },
    ),
    "hunyuan": Case(
        "Hunyuan (dense)",
        "hunyuan_v1_dense",
        {"head_dim": 8, "rope_parameters": {"rope_type": "dynamic", "alpha": 50.0, "rope_theta": 1e4, "factor": 1.0}},
    ),
    **MOE_CASES,
}  # fmt: skip
__all__ = ["CASES", "SIZES"]
