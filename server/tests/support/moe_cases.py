"""Families of mixtures of experts, as variants that their configurations can have."""

from typing import Any

import torch

from support.families import SIZES, Case, Raw, Relayout, State
from support.relayouts import fused_blocks, renamed

EXPERTS: dict[str, Any] = {"num_local_experts": 6, "num_experts_per_tok": 2, "intermediate_size": 20}
QWEN: dict[str, Any] = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 20}
GLM: dict[str, Any] = {
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 16,
    "routed_scaling_factor": 1.5,
    "head_dim": 8,
    "num_nextn_predict_layers": 0,
}
LONGROPE = {
    "rope_type": "longrope",
    "short_factor": [1.0, 1.5, 2.0, 2.5],
    "long_factor": [1.0, 1.5, 2.0, 2.5],
    "short_mscale": 1.2,
    "long_mscale": 1.2,
    "original_max_position_embeddings": 32,
    "rope_theta": 1e4,
}
FP4 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])


def with_corrections(module: torch.nn.Module) -> None:
    """Numbers that are no parameters, and so are not random by themselves."""
    generator = torch.Generator().manual_seed(2)
    for name, buffer in module.named_buffers():
        if name.endswith("e_score_correction_bias"):
            buffer.normal_(std=0.5, generator=generator)


def _mxfp4(state: State, raw: Raw) -> tuple[State, Raw]:
    """The same tensors in blocks: the weights were made of numbers that the blocks can hold."""
    packed: State = {}
    for name, tensor in state.items():
        if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            packed[name] = tensor
            continue
        stored = tensor.transpose(1, 2).unflatten(2, (-1, 32)) * 8
        codes = (stored[..., None] == FP4).int().argmax(dim=-1).to(torch.uint8)
        packed[f"{name}_blocks"] = codes[..., 0::2] | codes[..., 1::2] << 4
        packed[f"{name}_scales"] = torch.full(stored.shape[:3], 124, dtype=torch.uint8)
    return packed, {**raw, "quantization_config": {"quant_method": "mxfp4"}}


def fp4_experts(model: torch.nn.Module) -> None:
    """Makes weights of experts multiples of an eighth that four bits can say."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("experts.gate_up_proj", "experts.down_proj")):
                parameter.copy_(FP4[torch.randint(16, parameter.shape, generator=generator)] / 8)


def _bailing(architecture: str, **keys: Any) -> Relayout:
    """Names and keys of Ling and Ring. `keys`: those that transformers does not write."""
    names = (
        (r"model\.embed_tokens", "model.word_embeddings"),
        (r"self_attn\.o_proj", "attention.dense"),
        (r"self_attn\.q_norm", "attention.query_layernorm"),
        (r"self_attn\.k_norm", "attention.key_layernorm"),
        (r"self_attn\.", "attention."),
        (r"gate\.e_score_correction_bias", "gate.expert_bias"),
    )
    gone = dict.fromkeys(
        ("n_routed_experts", "n_shared_experts", "attention_bias", "use_qk_norm", "rope_parameters"), ...
    )

    def relayout(state: State, raw: Raw) -> tuple[State, Raw]:
        state = fused_blocks(state, ("q_proj", "k_proj", "v_proj"), "query_key_value")
        own = {"rope_theta": raw["rope_parameters"]["rope_theta"], "num_experts": raw["n_routed_experts"]}
        return renamed(architecture, *names, **{**gone, **own, "num_shared_experts": raw["n_shared_experts"], **keys})(
            state, raw
        )

    return relayout


def _without_gates(model: torch.nn.Module) -> None:
    """Makes gates of shared networks one half, and columns of the head of length 1."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("shared_expert_gate.weight"):
                parameter.zero_()
            if name == "lm_head.weight":
                parameter.copy_(torch.nn.functional.normalize(parameter, dim=0))


def _ling(state: State, raw: Raw) -> tuple[State, Raw]:
    """The gates are in what they multiply, and the head has columns of any length."""
    kept: State = {}
    for name, tensor in state.items():
        if "shared_expert_gate" in name:
            continue
        tensor = tensor / 2 if "shared_expert.down_proj" in name else tensor
        tensor = tensor * torch.linspace(0.5, 2.0, 32) if name == "lm_head.weight" else tensor
        kept[name.replace("shared_expert.", "shared_experts.")] = tensor
    raw = {**raw, "n_routed_experts": raw["num_experts"], "n_shared_experts": 2, "first_k_dense_replace": 1}
    gone = dict.fromkeys(("mlp_only_layers", "decoder_sparse_step", "shared_expert_intermediate_size"), ...)
    return _bailing("BailingMoeForCausalLM", norm_head=True, use_qkv_bias=True, use_bias=False, **gone)(kept, raw)


def _deepseek(state: State, raw: Raw) -> tuple[State, Raw]:
    """DeepSeek's names of a shared network without a gate."""
    kept: State = {}
    for name, tensor in state.items():
        if "shared_expert_gate" not in name:
            tensor = tensor / 2 if "shared_expert.down_proj" in name else tensor
            kept[name.replace("shared_expert.", "shared_experts.")] = tensor
    own = {"n_routed_experts": raw["num_experts"], "n_shared_experts": 2, "first_k_dense_replace": 1}
    gone = ("mlp_only_layers", "decoder_sparse_step", "num_experts", "shared_expert_intermediate_size", "qkv_bias")
    raw = {key: value for key, value in raw.items() if key not in gone}
    return kept, {**raw, **own, "architectures": ["DeepseekForCausalLM"], "scoring_func": "softmax"}


LAGUNA: dict[str, Any] = {
    "head_dim": 8,
    "layer_types": ["full_attention", "sliding_attention", "full_attention"],
    "moe_intermediate_size": 20,
    "moe_routed_scaling_factor": 1.5,
    "num_attention_heads_per_layer": [4, 8, 4],
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "shared_expert_intermediate_size": 24,
    "sliding_window": 4,
}
"""Two key heads, which layers with a window read with more query heads."""

LLAMA_4: dict[str, Any] = {
    "attention_chunk_size": 4,
    "floor_scale": 3,
    "head_dim": 8,
    "intermediate_size": 20,
    "intermediate_size_mlp": 48,
    "no_rope_layer_interval": 2,
    "num_local_experts": 6,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
}
MIMO_V2: dict[str, Any] = {
    "attention_value_scale": 0.6,
    "head_dim": 12,
    "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
    "moe_intermediate_size": 20,
    "n_group": 2,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "routed_scaling_factor": 1.5,
    "sliding_window": 4,
    "topk_group": 1,
    "v_head_dim": 8,
}
MINIMAX_M3: dict[str, Any] = {
    **EXPERTS,
    "dense_intermediate_size": 24,
    "shared_intermediate_size": 20,
    "head_dim": 8,
    "rotary_dim": 4,
    "rope_parameters": {"rope_theta": 5e6, "rope_type": "default", "partial_rotary_factor": 0.5},
    "mlp_layer_types": ["dense", "sparse", "sparse"],
    "layer_types": ["full_attention", "minimax_m3_sparse", "minimax_m3_sparse"],
    "index_n_heads": 2,
    "index_head_dim": 12,
    "index_block_size": 4,
    "index_topk_blocks": 2,
}
"""Prompts of more than eight tokens attend to some blocks alone."""


ARIA = {"model_type": "aria_text", "intermediate_size": 20, "moe_num_experts": 6, "moe_topk": 2}
"""Two shared experts."""


def _mimo_fused(state: State, raw: Raw) -> tuple[State, Raw]:
    """MiMo V2.5: queries, keys and values in one tensor, as two shards wrote it, beside towers."""
    towers = ("visual.patch_embed.proj", "audio_encoder.projection.mlp.0", "speech_embeddings.0")
    fused = {**state, **{f"{name}.weight": torch.zeros(2) for name in towers}}
    for name in state:
        if "q_proj" in name:
            parts = [fused.pop(name.replace("q_proj", part)).chunk(2) for part in ("q_proj", "k_proj", "v_proj")]
            each = [part for shard in zip(*parts, strict=True) for part in shard]
            fused[name.replace("q_proj", "qkv_proj")] = torch.cat(each)
    raw |= {"attention_projection_layout": "fused_qkv", "vision_config": {"depth": 1}}
    return fused, {**raw, "architectures": ["MiMoV2ForCausalLM"]}


STEP: dict[str, Any] = {
    **{key: value for key, value in SIZES.items() if key != "pad_token_id"},
    "num_hidden_layers": 4,
    "pad_token_id": 0,
    "head_dim": 8,
    "layer_types": ["full_attention", "sliding_attention", "sliding_attention", "full_attention"],
    "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"],
    "moe_intermediate_size": 20,
    "moe_router_scaling_factor": 3.0,
    "n_routed_experts": 6,
    "num_experts_per_tok": 2,
    "num_sliding_attention_heads": 8,
    "partial_rotary_factors": [0.5, 1.0, 1.0, 0.5],
    "rope_scaling": {
        "rope_type": "llama3",
        "factor": 2.0,
        "original_max_position_embeddings": 32,
        "low_freq_factor": 1.0,
        "high_freq_factor": 32.0,
    },
    "rope_theta": [5e6, 1e4, 1e4, 5e6],
    "share_expert_dim": 24,
    "sliding_window": 4,
    "swiglu_limits": [0.0, 7.0, 0.0, 7.0],
    "swiglu_limits_shared": [16.0, 0.0, 16.0, 7.0],
}
"""Two key heads. The last layer alone has the same bound for all experts."""
STEP_IMAGES = {"width": 16, "layers": 1, "heads": 2, "image_size": 28, "patch_size": 14}


def beyond_bounds(model: torch.nn.Module) -> None:
    """Makes gates so large that bounds of activations count."""
    with_corrections(model)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("gate_proj.weight", "up_proj.weight", "gate_up_proj")):
                parameter.mul_(6)


def step_alone(state: State, raw: Raw) -> tuple[State, Raw]:
    """The text of Step 3.7, which is Step 3.5."""
    state = {name: tensor for name, tensor in state.items() if not name.startswith("vi")}
    return state, {**raw["text_config"], "architectures": ["Step3p5ForCausalLM"]}


MOE_CASES: dict[str, Case] = {
    "mixtral": Case("Mixtral", "mixtral", {**EXPERTS, "sliding_window": 4}),
    "minimax m2": Case(
        "MiniMax-M2",
        "minimax_m2",
        # The second says what the first does, for versions of transformers that do not know the first.
        {
            **EXPERTS,
            "head_dim": 8,
            "rotary_dim": 4,
            "rope_parameters": {"rope_theta": 5e6, "partial_rotary_factor": 0.5},
        },
        prepare=with_corrections,
    ),
    "minimax m3": Case("MiniMax M3 (text)", "minimax_m3_vl_text", MINIMAX_M3, prepare=with_corrections),
    "qwen2 moe": Case(
        "Qwen 2 MoE",
        "qwen2_moe",
        {**QWEN, "shared_expert_intermediate_size": 50, "mlp_only_layers": [1], "qkv_bias": True},
    ),
    "qwen2 moe window": Case(
        "Qwen 2 MoE",
        "qwen2_moe",
        {
            **QWEN,
            "shared_expert_intermediate_size": 20,
            "norm_topk_prob": True,
            "use_sliding_window": True,
            "sliding_window": 4,
            "max_window_layers": 2,
        },
    ),
    "qwen3 moe": Case(
        "Qwen 3 MoE", "qwen3_moe", {**QWEN, "norm_topk_prob": True, "decoder_sparse_step": 2, "head_dim": 16}
    ),
    "gpt-oss": Case("gpt-oss", "gpt_oss", {**EXPERTS, "head_dim": 8, "sliding_window": 4}),
    "gpt-oss mxfp4": Case(
        "gpt-oss",
        "gpt_oss",
        {**EXPERTS, "intermediate_size": 64, "head_dim": 8, "sliding_window": 4},
        _mxfp4,
        prepare=fp4_experts,
    ),
    "glm4 moe": Case("GLM 4 MoE", "glm4_moe", {**GLM, "use_qk_norm": True}, prepare=with_corrections),
    "glm4 moe groups": Case(
        "GLM 4 MoE",
        "glm4_moe",
        {**GLM, "n_group": 4, "topk_group": 2, "n_shared_experts": 2, "attention_bias": True, "norm_topk_prob": False},
        prepare=with_corrections,
    ),
    "deepseek": Case(
        "DeepSeek MoE 16B, GigaChat 20B",
        "qwen2_moe",
        {
            **QWEN,
            "mlp_only_layers": [0],
            "norm_topk_prob": False,
            "qkv_bias": False,
            "shared_expert_intermediate_size": 40,
        },
        _deepseek,
        prepare=_without_gates,
        architecture="DeepseekForCausalLM",
    ),
    "ernie moe": Case(
        "ERNIE 4.5 MoE",
        "ernie4_5_moe",
        {
            "moe_intermediate_size": 20,
            "moe_k": 2,
            "moe_layer_end_index": 1,
            "moe_layer_start_index": 0,
            "moe_num_experts": 6,
            "moe_num_shared_experts": 1,
        },
    ),
    "ling": Case(
        "Ling and Ring 1 (Bailing MoE)",
        "qwen2_moe",
        {**QWEN, "norm_topk_prob": True, "mlp_only_layers": [0], "shared_expert_intermediate_size": 40},
        _ling,
        prepare=_without_gates,
        architecture="BailingMoeForCausalLM",
    ),
    "ling 2": Case(
        "Ling and Ring 2 (Bailing MoE 2)",
        "glm4_moe",
        {**GLM, "n_group": 4, "topk_group": 2, "use_qk_norm": True},
        _bailing("BailingMoeV2ForCausalLM", rotary_dim=4, partial_rotary_factor=0.5, score_function="sigmoid"),
        prepare=with_corrections,
        architecture="BailingMoeV2ForCausalLM",
    ),
    "ling 2 shared size": Case(
        "Ling and Ring 2 (Bailing MoE 2)",
        "glm4_moe",
        {**GLM, "n_shared_experts": 2, "first_k_dense_replace": 0},
        _bailing(
            "BailingMoeV2ForCausalLM",
            num_shared_experts=1,
            moe_shared_expert_intermediate_size=32,
            use_qk_norm=False,
            n_group=1,
            topk_group=1,
            first_k_dense_replace=0,
            partial_rotary_factor=0.5,
        ),
        prepare=with_corrections,
        architecture="BailingMoeV2ForCausalLM",
    ),
    "sarvam": Case(
        "Sarvam 30B",
        "glm4_moe",
        {**GLM, "use_qk_norm": True, "rope_parameters": {"rope_theta": 8e6, "partial_rotary_factor": 1.0}},
        _bailing("SarvamMoEForCausalLM", use_qkv_bias=False),
        prepare=with_corrections,
        architecture="SarvamMoEForCausalLM",
    ),
    "solar open": Case("Solar Open", "solar_open", {**GLM, "n_group": 4, "topk_group": 2}, prepare=with_corrections),
    "k-exaone": Case(
        "K-EXAONE",
        "exaone_moe",
        {**QWEN, "head_dim": 8, "sliding_window": 4, "sliding_window_pattern": 2, "n_group": 2, "topk_group": 1},
        renamed("ExaoneMoEForCausalLM"),
        prepare=with_corrections,
        architecture="ExaoneMoEForCausalLM",
    ),
    "k-exaone types": Case(
        "K-EXAONE",
        "exaone_moe",
        {
            **QWEN,
            "sliding_window": 4,
            "sliding_window_pattern": 2,
            "num_shared_experts": 2,
            "mlp_layer_types": ["sparse", "dense", "sparse"],
            "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
        },
        prepare=with_corrections,
    ),
    "llama4": Case("Llama 4 (text)", "llama4_text", LLAMA_4),
    "llama4 maverick": Case(
        "Llama 4 (text)",
        "llama4_text",
        {**LLAMA_4, "interleave_moe_layer_step": 2, "use_qk_norm": False},
    ),
    "mimo v2": Case("MiMo V2", "mimo_v2_flash", MIMO_V2, prepare=with_corrections),
    "mimo v2.5": Case(
        "MiMo V2",
        "mimo_v2_flash",
        MIMO_V2,
        _mimo_fused,
        prepare=with_corrections,
        architecture="MiMoV2ForCausalLM",
    ),
    "hy3": Case("Hy3", "hy_v3", {**QWEN, "head_dim": 8, "num_shared_experts": 2}, prepare=with_corrections),
    "trinity": Case(
        "Trinity (AFMoE)",
        "afmoe",
        {
            **QWEN,
            "num_hidden_layers": 4,
            "head_dim": 8,
            "sliding_window": 4,
            "global_attn_every_n_layers": 2,
            "route_scale": 1.7,
            "mup_enabled": True,
        },
    ),
    "granite moe": Case(
        "Granite MoE",
        "granitemoe",
        {
            **EXPERTS,
            "embedding_multiplier": 3.0,
            "residual_multiplier": 0.3,
            "attention_multiplier": 0.2,
            "logits_scaling": 4.0,
        },
    ),
    "laguna": Case("Laguna", "laguna", LAGUNA, prepare=with_corrections),
    "laguna elements": Case(
        "Laguna",
        "laguna",
        {**LAGUNA, "gating": "per-element", "mlp_layer_types": ["sparse", "dense", "sparse"]},
        prepare=with_corrections,
    ),
    "step": Case(
        "Step 3.5",
        "step3p7",
        {"text_config": STEP, "vision_config": STEP_IMAGES},
        step_alone,
        prepare=beyond_bounds,
        architecture="Step3p5ForCausalLM",
        sizes={},
    ),
    "phi moe": Case("Phi 3.5 MoE", "phimoe", {**EXPERTS, "attention_bias": True, "lm_head_bias": True}),
    "phi moe longrope": Case("Phi 3.5 MoE", "phimoe", {**EXPERTS, "rope_parameters": LONGROPE}),
    "hunyuan moe": Case("Hunyuan MoE", "hunyuan_v1_moe", {"num_experts": 4, "moe_topk": 2, "head_dim": 8}),
    "hunyuan moe lists": Case(
        "Hunyuan MoE", "hunyuan_v1_moe", {"num_experts": 4, "moe_topk": [1, 2, 3], "head_dim": 8}
    ),
    "dbrx": Case(
        "DBRX",
        "dbrx",
        {
            "d_model": 32,
            "n_heads": 4,
            "n_layers": 3,
            "max_seq_len": 64,
            "attn_config": {"kv_n_heads": 2, "clip_qkv": 1.0, "rope_theta": 1e4},
            "ffn_config": {"ffn_hidden_size": 20, "moe_num_experts": 6, "moe_top_k": 2},
            **dict.fromkeys(
                (
                    "hidden_size",
                    "num_hidden_layers",
                    "num_attention_heads",
                    "num_key_value_heads",
                    "max_position_embeddings",
                    "intermediate_size",
                ),
                ...,
            ),
        },
    ),
}
