"""Files of models for images in the layouts of their authors, made of those that Transformers writes."""

import torch

from support.families import Raw, State
from support.relayouts import fused_blocks, fused_groups, renamed

KIMI_CLASS = "KimiK25ForConditionalGeneration"


def internlm2(state: State, raw: Raw) -> tuple[State, Raw]:
    """The files of InternLM 2."""
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


def qwen1(state: State, raw: Raw) -> tuple[State, Raw]:
    """The files of Qwen 1."""
    state = fused_blocks(state, ("q_proj", "k_proj", "v_proj"), "c_attn")
    names = (
        (r"model\.embed_tokens", "transformer.wte"),
        (r"model\.norm", "transformer.ln_f"),
        (r"model\.layers", "transformer.h"),
        (r"input_layernorm", "ln_1"),
        (r"post_attention_layernorm", "ln_2"),
        (r"self_attn\.o_proj", "attn.c_proj"),
        (r"self_attn", "attn"),
        (r"mlp\.gate_proj", "mlp.w2"),
        (r"mlp\.up_proj", "mlp.w1"),
        (r"mlp\.down_proj", "mlp.c_proj"),
    )
    keys = {
        "intermediate_size": 2 * raw["intermediate_size"],
        "layer_norm_epsilon": raw["rms_norm_eps"],
        "rotary_emb_base": 10000,
        "seq_length": 64,
        "no_bias": True,
        **dict.fromkeys(("rms_norm_eps", "rope_parameters", "layer_types", "num_key_value_heads"), ...),
    }
    return renamed("QWenLMHeadModel", *names, **keys)(state, raw)


def internvl_chat(state: State, raw: Raw) -> tuple[State, Raw]:
    """The files of InternVL's authors, with their names and keys."""
    names = {
        "multi_modal_projector.layer_norm": "mlp1.0",
        "multi_modal_projector.linear_1": "mlp1.1",
        "multi_modal_projector.linear_2": "mlp1.3",
        "vision_tower.encoder.layer.": "vision_model.encoder.layers.",
        "vision_tower.": "vision_model.",
        "embeddings.cls_token": "embeddings.class_embedding",
        "patch_embeddings.projection": "patch_embedding",
        "position_embeddings": "position_embedding",
        "attention.projection_layer": "attn.proj",
        "attention.q_norm": "attn.q_norm",
        "attention.k_norm": "attn.k_norm",
        "layernorm_before": "norm1",
        "layernorm_after": "norm2",
        "lambda_1": "ls1",
        "lambda_2": "ls2",
    }
    out: State = {}
    for name, tensor in state.items():
        if ".attention.q_proj." in name and name.startswith("vision_tower"):
            tensor = torch.cat([state[name.replace("q_proj", f"{each}_proj")] for each in "qkv"])
            name = name.replace("attention.q_proj", "attn.qkv")
        if name.startswith("vision_tower") and ".attention." in name and ("k_proj" in name or "v_proj" in name):
            continue
        if not name.startswith("language_model."):
            for old, new in names.items():
                name = name.replace(old, new)
        out[name] = tensor
    vision = raw["vision_config"]
    config = {
        "architectures": ["InternVLChatModel"],
        "model_type": "internvl_chat",
        "llm_config": raw["text_config"],
        "vision_config": {
            **{key: vision[key] for key in ("hidden_size", "intermediate_size", "num_hidden_layers", "norm_type")},
            "num_attention_heads": vision["num_attention_heads"],
            "image_size": vision["image_size"][0],
            "patch_size": vision["patch_size"][0],
            "qkv_bias": vision["attention_bias"],
            "qk_normalization": vision["use_qk_norm"],
        },
        "select_layer": raw["vision_feature_layer"],
        "ps_version": "v2",
        **{key: raw[key] for key in ("downsample_ratio", "eos_token_id", "tie_word_embeddings") if key in raw},
    }
    return {name: each for name, each in out.items() if not name.startswith("vision_model.layernorm.")}, config


def internvl_chat_internlm2(state: State, raw: Raw) -> tuple[State, Raw]:
    """The same beside InternLM 2."""
    state, raw = internvl_chat(state, raw)
    part = "language_model."
    text = {name.removeprefix(part): each for name, each in state.items() if name.startswith(part)}
    text, config = internlm2(text, raw["llm_config"])
    images = {name: each for name, each in state.items() if not name.startswith(part)}
    config = {**config, "model_type": "internlm2"}
    return {**images, **{part + name: each for name, each in text.items()}}, {**raw, "llm_config": config}


def layers(state: State, raw: Raw) -> tuple[State, Raw]:
    """Transformers renames layers of the text when it writes those of images."""
    return {
        name.replace("language_model.model.blocks.", "language_model.model.layers."): state[name] for name in state
    }, raw


def original_llava(state: State, raw: Raw) -> tuple[State, Raw]:
    """The files of LLaVA's authors."""
    names = {
        "language_model.": "",
        "vision_tower.": "model.vision_tower.vision_tower.vision_model.",
        "multi_modal_projector.linear_1.": "model.mm_projector.0.",
        "multi_modal_projector.linear_2.": "model.mm_projector.2.",
        "image_newline": "model.image_newline",
    }
    out: State = {}
    for name, tensor in state.items():
        old = next(each for each in names if name.startswith(each))
        out[names[old] + name.removeprefix(old)] = tensor
    is_next = raw["model_type"] == "llava_next"
    config = {
        **raw["text_config"],
        "architectures": ["LlavaLlamaForCausalLM"],
        "model_type": "llava_llama",
        "mm_vision_tower": "openai/clip-vit-large-patch14-336",
        "mm_projector_type": "mlp2x_gelu",
        "mm_vision_select_layer": raw["vision_feature_layer"],
        "image_aspect_ratio": "anyres" if is_next else "pad",
        **(
            {"mm_patch_merge_type": "spatial_unpad", "image_grid_pinpoints": raw["image_grid_pinpoints"]}
            if is_next
            else {}
        ),
        # Published files have that of the named model.
        "vision_config": {key: value for key, value in raw["vision_config"].items() if key != "model_type"},
    }
    return out, config


def original_mistral(state: State, raw: Raw) -> tuple[State, Raw]:
    """The same beside Mistral."""
    state, raw = original_llava(state, raw)
    return state, {**raw, "architectures": ["LlavaMistralForCausalLM"], "model_type": "llava_mistral"}


def kimi_vl(state: State, raw: Raw) -> tuple[State, Raw]:
    """The files of Kimi VL, whose image is computed as one of K2.5."""
    state, raw = kimi(state, raw)
    names = {
        "vision_tower.encoder.patch_embed.": "vision_tower.patch_embed.",
        "model.mm_projector.": "multi_modal_projector.",
        "mm_projector.": "multi_modal_projector.",
        "multi_modal_projector.proj.0": "multi_modal_projector.linear_1",
        "multi_modal_projector.proj.2": "multi_modal_projector.linear_2",
    }
    for old, new in names.items():
        state = {new + name.removeprefix(old) if name.startswith(old) else name: state[name] for name in state}
    vision = raw["vision_config"]
    sizes = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "patch_size")
    config = {
        "architectures": ["KimiVLForConditionalGeneration"],
        "model_type": "kimi_vl",
        "text_config": {key: value for key, value in raw["text_config"].items() if key != "model_type"},
        "vision_config": {
            **{key: vision[key] for key in sizes},
            **{f"init_{key}": vision[key] for key in ("pos_emb_height", "pos_emb_width")},
        },
        "media_placeholder_token_id": raw["image_token_id"],
        **{key: raw[key] for key in ("tie_word_embeddings", "eos_token_id") if key in raw},
    }
    return state, config


def kimi(state: State, raw: Raw) -> tuple[State, Raw]:
    """The published class, and type of its part."""
    text = {**raw["text_config"], "model_type": "kimi_k2"}
    return layers(state, {**raw, "architectures": [KIMI_CLASS], "text_config": text})
