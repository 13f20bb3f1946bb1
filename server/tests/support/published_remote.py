"""More of `support.published`: files of models whose code is not in transformers."""

import dataclasses

from support.families import Case, Raw
from support.family_cases import CASES, EXAONE3, EXAONE3_KEYS
from support.published import LLAMA, LLAMA3, MANY_HEADS, TOKENS, file
from support.relayouts import renamed

CHATGLM = {
    "model_type": "chatglm",
    "add_bias_linear": False,
    "add_qkv_bias": True,
    "apply_query_key_layer_scaling": True,
    "apply_residual_connection_post_layernorm": False,
    "attention_softmax_in_fp32": True,
    "bias_dropout_fusion": True,
    "eos_token_id": 2,
    "ffn_hidden_size": 48,
    "fp32_residual_connection": False,
    "hidden_size": 32,
    "kv_channels": 8,
    "layernorm_epsilon": 1e-05,
    "multi_query_attention": True,
    "multi_query_group_num": 2,
    "num_attention_heads": 4,
    "num_layers": 3,
    "original_rope": True,
    "pad_token_id": 0,
    "padded_vocab_size": 99,
    "post_layer_norm": True,
    "rmsnorm": True,
    "seq_length": 8192,
    "tie_word_embeddings": False,
    "torch_dtype": "float16",
}


def chatglm(rope: Raw, **values: object) -> Case:
    """A file of ChatGLM or GLM-4, beside GLM with this rotary embedding."""
    values = {**CHATGLM, **values}
    case = CASES["chatglm"]
    own = {
        "rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5, **rope},
        "rms_norm_eps": values["layernorm_epsilon"],
    }
    return file(dataclasses.replace(case, values={**case.values, **own}), values)


OF_REMOTE_CODE: dict[str, Case] = {
    "InternLM 2.5": file(
        CASES["internlm2"], {**LLAMA, "bias": False, "rope_scaling": {"type": "dynamic", "factor": 2.0}}
    ),
    "InternLM": file(CASES["internlm"], {**LLAMA, "bias": True, "rotary": {"base": 10000, "type": "dynamic"}}),
    "Baichuan 2 13B": file(
        CASES["baichuan alibi"],
        {**MANY_HEADS, "num_attention_heads": 6, "hidden_size": 48, "model_max_length": 4096, "z_loss_weight": 0},
    ),
    "ChatGLM 3 6B": chatglm({}, _name_or_path="THUDM/chatglm3-6b"),
    "ChatGLM 3 6B 32k": chatglm({"rope_theta": 5e5}, _name_or_path="THUDM/chatglm3-6b-32k", rope_ratio=50),
    "ChatGLM 2 6B 32k": chatglm(
        {"rope_type": "linear", "factor": 4.0}, _name_or_path="THUDM/chatglm2-6b-32k", rope_ratio=4, seq_length=32768
    ),
    "GLM-4 9B chat": chatglm(
        {"rope_theta": 5e6}, rope_ratio=500, seq_length=131072, layernorm_epsilon=1.5625e-07, eos_token_id=[7, 8, 9]
    ),
    "EXAONE 3.5": file(
        Case(
            "",
            "llama",
            {"rope_parameters": {**LLAMA3, "rope_theta": 1e4}, "tie_word_embeddings": True},
            renamed("ExaoneForCausalLM", *EXAONE3),
        ),
        {
            **{key: value for key, value in LLAMA.items() if key != "num_hidden_layers"},
            **{key: value for key, value in EXAONE3_KEYS.items() if value is not ...},
            "head_dim": 8,
            "rope_scaling": LLAMA3,
            "embed_dropout": 0.0,
            "rope_theta": 10000,
        },
    ),
    "Falcon 40B": file(
        CASES["falcon 40b"],
        {
            **TOKENS,
            "architectures": ["RWForCausalLM"],
            "model_type": "RefinedWeb",
            "hidden_size": 32,
            "ffn_hidden_size": 48,
            "n_head": 4,
            "n_head_kv": 2,
            "n_layer": 3,
            "parallel_attn": True,
            "multi_query": True,
        },
    ),
}
