"""Shapes of models of 2025 and 2026, for `make.py`; of those for images beside text, the model of text."""

from typing import Any

YARN: dict[str, Any] = {
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "llama_4_scaling_beta": 0.1,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "rope_type": "yarn",
}
NEWER_SHAPES: dict[str, dict[str, Any]] = {
    "Ministral-3-8B": {
        "architectures": ["Ministral3ForCausalLM"],
        "model_type": "ministral3",
        "bos_token_id": 1,
        "eos_token_id": 2,
        "head_dim": 128,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "max_position_embeddings": 262144,
        "num_attention_heads": 32,
        "num_hidden_layers": 34,
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-05,
        "rope_parameters": YARN | {"factor": 16.0, "original_max_position_embeddings": 16384, "rope_theta": 1000000.0},
        "sliding_window": None,
        "tie_word_embeddings": False,
        "vocab_size": 131072,
    },
}
