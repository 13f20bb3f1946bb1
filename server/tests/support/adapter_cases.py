"""Adapters of every variant of PEFT."""

import copy
from pathlib import Path

import torch
from peft import PeftModel
from torch import Tensor

from support.adapters import AdapterCase, base_of, peft_logits, rewrite, write_adapter

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


def write_pairs(folder: Path) -> Tensor:
    """Saves an adapter with a pair for each expert of "qwen3 moe", as older files have it, and returns what PEFT makes
    of the last prompt.
    """
    write_adapter(CASES["experts by old names"], folder)
    generator = torch.Generator().manual_seed(7)

    def pairs(_: dict[str, Tensor]) -> dict[str, Tensor]:
        made: dict[str, Tensor] = {}
        for expert in range(4):
            for name, inputs, outputs in (("gate_proj", 32, 20), ("up_proj", 32, 20), ("down_proj", 20, 32)):
                module = f"base_model.model.model.layers.1.mlp.experts.{expert}.{name}"
                made[f"{module}.lora_A.weight"] = torch.randn(4, inputs, generator=generator) * 0.1
                made[f"{module}.lora_B.weight"] = torch.randn(outputs, 4, generator=generator) * 0.1
        return made

    rewrite(folder, pairs, rank_pattern={}, alpha_pattern={}, target_parameters=None, target_modules=ALL)
    return _of_peft("qwen3 moe", folder)


def write_trained_embedding(folder: Path) -> Tensor:
    """Saves an adapter of the embedding of "llama", which was trained below its change too, and returns what PEFT makes
    of the last prompt.
    """
    name = "base_model.model.model.embed_tokens.base_layer.weight"
    write_adapter(CASES["embedding dora"], folder)
    rewrite(folder, lambda all: {**all, name: all[name] * 1.5 + 0.1})
    return _of_peft("llama", folder)


def _of_peft(base: str, folder: Path) -> Tensor:
    peft = PeftModel.from_pretrained(copy.deepcopy(base_of(base)), folder).eval()
    return torch.cat(peft_logits(peft, AdapterCase(base)))[-1:]
