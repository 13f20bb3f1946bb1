"""Adapters of every variant of PEFT."""

from support.adapters import AdapterCase

ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
ATTENTION = ALL[:4]
EXPERTS = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
CASES: dict[str, AdapterCase] = {
    "plain": AdapterCase("llama", {"target_modules": ALL}),
    "rslora": AdapterCase("llama", {"target_modules": ALL, "use_rslora": True}),
    "patterns": AdapterCase(
        "llama",
        {
            "target_modules": ALL,
            "rank_pattern": {"q_proj": 2, r"layers\.1\..*\.o_proj": 6},
            "alpha_pattern": {"v_proj": 3, r".*\.0\.mlp\.up_proj": 9, "q_proj": 5},
        },
    ),
    "patterns rslora": AdapterCase(
        "llama", {"target_modules": ALL, "use_rslora": True, "rank_pattern": {"q_proj": 2, "down_proj": 7}}
    ),
    "some layers": AdapterCase("llama", {"target_modules": ["q_proj", "down_proj"], "layers_to_transform": [1]}),
    "regex": AdapterCase("llama", {"target_modules": r".*\.0\.(self_attn|mlp)\.(q|up)_proj"}),
    "all-linear": AdapterCase("llama", {"target_modules": "all-linear"}),
    "orthogonal": AdapterCase("llama", {"target_modules": ALL, "init_lora_weights": "orthogonal"}),
    "dora": AdapterCase("llama", {"target_modules": ALL, "use_dora": True}),
    "dora rslora": AdapterCase("biased", {"target_modules": ALL, "use_dora": True, "use_rslora": True}),
    "lora bias": AdapterCase("biased", {"target_modules": ALL, "lora_bias": True}),
    "bias all": AdapterCase("biased", {"target_modules": ["q_proj", "down_proj"], "bias": "all"}),
    "bias lora_only": AdapterCase("biased", {"target_modules": ["q_proj", "down_proj"], "bias": "lora_only"}),
    "lora bias and bias": AdapterCase(
        "biased", {"target_modules": ["k_proj", "up_proj"], "bias": "lora_only", "lora_bias": True}
    ),
    "modules to save": AdapterCase(
        "llama",
        {"target_modules": ["q_proj"], "modules_to_save": ["lm_head", "embed_tokens", "input_layernorm", "norm"]},
    ),
    "embedding": AdapterCase("llama", {"target_modules": ["q_proj", "embed_tokens"]}),
    "embedding dora": AdapterCase("llama", {"target_modules": ["embed_tokens"], "use_dora": True}),
    "head": AdapterCase("llama", {"target_modules": ["q_proj", "lm_head"]}),
    "head dora": AdapterCase("llama", {"target_modules": ["lm_head"], "use_dora": True}),
    "tied": AdapterCase("tied", {"target_modules": ALL}),
    "tied head": AdapterCase("tied", {"target_modules": ["q_proj", "lm_head"]}),
    "tied embedding": AdapterCase("tied", {"target_modules": ["q_proj", "embed_tokens"]}),
    "tied both": AdapterCase("tied", {"target_modules": ["embed_tokens"], "ensure_weight_tying": True}),
    "tied whole": AdapterCase("tied", {"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens"]}),
    "tied whole both": AdapterCase(
        "tied", {"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens"], "ensure_weight_tying": True}
    ),
    "tokens": AdapterCase("llama", {"target_modules": ["q_proj"], "trainable_token_indices": [21, 4, 95]}),
    "tokens of both": AdapterCase(
        "llama", {"target_modules": ["q_proj"], "trainable_token_indices": {"embed_tokens": [21, 9], "lm_head": [5]}}
    ),
    "tokens tied": AdapterCase("tied", {"target_modules": ["q_proj"], "trainable_token_indices": [21, 4]}),
    "gpt2": AdapterCase("gpt2", {"target_modules": ["c_attn", "c_proj", "c_fc"], "fan_in_fan_out": True}),
    "gpt2 dora": AdapterCase(
        "gpt2", {"target_modules": ["c_attn", "c_proj", "c_fc"], "fan_in_fan_out": True, "use_dora": True}
    ),
    "gpt2 bias": AdapterCase("gpt2", {"target_modules": ["c_attn"], "bias": "all", "fan_in_fan_out": True}),
    "gpt2 norms": AdapterCase(
        "gpt2", {"target_modules": ["c_attn"], "modules_to_save": ["ln_2", "ln_f"], "fan_in_fan_out": True}
    ),
    "gpt2 table": AdapterCase("gpt2", {"target_modules": ["wte", "c_fc"], "fan_in_fan_out": True}),
    "experts": AdapterCase("qwen3 moe", {"target_modules": ATTENTION, "target_parameters": EXPERTS}),
    "experts second": AdapterCase("qwen3 moe", {"target_modules": ["q_proj"], "target_parameters": EXPERTS[1:]}),
    "experts by old names": AdapterCase("qwen3 moe", {"target_modules": ALL}),
    "experts all-linear": AdapterCase("qwen3 moe", {"target_modules": "all-linear", "use_rslora": True}),
    "experts high rank": AdapterCase(
        "qwen3 moe",
        {"target_modules": ["q_proj"], "target_parameters": EXPERTS, "r": 5, "rank_pattern": {"gate_up_proj": 18}},
    ),
    "router": AdapterCase("qwen3 moe", {"target_modules": ["q_proj"], "target_parameters": ["mlp.gate.weight"]}),
    "mixtral": AdapterCase("mixtral", {"target_modules": ["q_proj", "w1", "w2", "w3", "gate"]}),
    "gpt-oss": AdapterCase(
        "gpt-oss", {"target_modules": ATTENTION, "target_parameters": [*EXPERTS, "mlp.router.weight"]}
    ),
    "gpt-oss bias": AdapterCase("gpt-oss", {"target_modules": ["q_proj"], "bias": "all"}),
    "llama4": AdapterCase(
        "llama4",
        {
            "target_modules": ATTENTION,
            "target_parameters": ["feed_forward.experts.gate_up_proj", "feed_forward.experts.down_proj"],
        },
    ),
    "gated queries": AdapterCase("gated queries", {"target_modules": ALL}),
    "interleaved rope": AdapterCase("interleaved rope", {"target_modules": ALL}),
}
