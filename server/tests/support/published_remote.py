"""More of `support.published`: files of models whose code is not in transformers."""

from support.families import Case
from support.family_cases import CASES, EXAONE3, EXAONE3_KEYS
from support.published import LLAMA, LLAMA3, MANY_HEADS, TOKENS, file
from support.relayouts import renamed

OF_REMOTE_CODE: dict[str, Case] = {
    "InternLM 2.5": file(
        CASES["internlm2"], {**LLAMA, "bias": False, "rope_scaling": {"type": "dynamic", "factor": 2.0}}
    ),
    "InternLM": file(CASES["internlm"], {**LLAMA, "bias": True, "rotary": {"base": 10000, "type": "dynamic"}}),
    "Baichuan 2 13B": file(
        CASES["baichuan alibi"],
        {**MANY_HEADS, "num_attention_heads": 6, "hidden_size": 48, "model_max_length": 4096, "z_loss_weight": 0},
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
