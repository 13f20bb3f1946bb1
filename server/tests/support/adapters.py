"""Tiny random adapters, made with PEFT, and what PEFT makes of them."""

import copy
import json
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel

from support.families import PROMPTS, SIZES, Case, made, write

_SIZES: dict[str, Any] = {**SIZES, "num_hidden_layers": 2}
_MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 20, "head_dim": 8}
BASES: dict[str, Case] = {
    "llama": Case("Llama", "llama", sizes=_SIZES),
    "biased": Case("Llama", "llama", {"attention_bias": True, "mlp_bias": True}, sizes=_SIZES),
    "tied": Case("Llama", "llama", {"tie_word_embeddings": True}, sizes=_SIZES),
    "gpt2": Case(
        "GPT-2",
        "gpt2",
        {"n_embd": 32, "n_head": 4, "n_layer": 2, "n_positions": 64, "vocab_size": 99},
        sizes={key: _SIZES[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")},
    ),
    "qwen3 moe": Case("Qwen 3 MoE", "qwen3_moe", _MOE, sizes=_SIZES),
    "mixtral": Case("Mixtral", "mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2}, sizes=_SIZES),
    "gpt-oss": Case(
        "gpt-oss",
        "gpt_oss",
        {"head_dim": 8, "num_local_experts": 4, "num_experts_per_tok": 2, "intermediate_size": 32},
        sizes=_SIZES,
    ),
    "llama4": Case(
        "Llama 4",
        "llama4_text",
        {
            "head_dim": 8,
            "intermediate_size": 20,
            "intermediate_size_mlp": 48,
            "no_rope_layer_interval": 2,
            "num_local_experts": 4,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
        },
        sizes=_SIZES,
    ),
    "gated queries": Case(
        "Qwen 3 Next",
        "qwen3_next",
        {
            **_MOE,
            "head_dim": 8,
            "shared_expert_intermediate_size": 20,
            "layer_types": ["full_attention", "full_attention"],
            "mlp_only_layers": [0],
        },
        sizes=_SIZES,
    ),
    "interleaved rope": Case("Cohere", "cohere", sizes=_SIZES),
}


@dataclass(frozen=True)
class AdapterCase:
    """A variant of PEFT on one of the bases."""

    base: str
    options: dict[str, Any] = field(default_factory=dict[str, Any])
    """Of `LoraConfig`."""


@cache
def base_of(name: str) -> PreTrainedModel:
    """The base of this name, with random weights that are a function of the name."""
    return made(BASES[name])


def write_base(name: str, folder: Path) -> Path:
    """Saves a base, and returns the folder."""
    write(BASES[name], base_of(name), folder)
    return folder


def trained(case: AdapterCase) -> PeftModel:
    """An adapter whose every trained number is random."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        options = {"r": 4, "lora_alpha": 6, "task_type": "CAUSAL_LM", **copy.deepcopy(case.options)}
        model = get_peft_model(copy.deepcopy(base_of(case.base)), LoraConfig(**options)).eval()
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter += torch.empty_like(parameter).normal_(std=0.1, generator=generator)
    return model


def write_adapter(case: AdapterCase, folder: Path) -> PeftModel:
    """Saves the adapter of a case as PEFT does, and returns its model."""
    model = trained(case)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.save_pretrained(folder)
    return model


@torch.inference_mode()
def peft_logits(model: PeftModel, case: AdapterCase) -> list[Tensor]:
    """What PEFT makes of every prompt: [tokens, vocabulary] each."""
    inputs = BASES[case.base].inputs
    return [model(torch.tensor([ids]), use_cache=False, **inputs(len(ids))).logits[0] for ids in PROMPTS]


def rewrite(
    folder: Path,
    tensors: Callable[[dict[str, Tensor]], dict[str, Tensor]] = lambda tensors: tensors,
    **config: Any,
) -> Path:
    """Changes the files of an adapter."""
    path = folder / "adapter_model.safetensors"
    save_file({name: each.contiguous() for name, each in tensors(load_file(path)).items()}, path, {"format": "pt"})
    values = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps({**values, **config}))
    return folder
