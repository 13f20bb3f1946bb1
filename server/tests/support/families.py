"""Tiny random checkpoints of every family, in the layout of the hub, and what transformers makes of them.

Families whose own code is not in transformers are made from a class that computes the same: its tensors are renamed
and laid out as theirs. No code of a model is run.
"""

import copy
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import (
    CONFIG_MAPPING,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    Mistral4Config,
    Mistral4ForCausalLM,
    PreTrainedModel,
)
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
)

from text_generation_server.config.json_object import JsonObject
from text_generation_server.config.model import ModelConfig, parse_model_config

# Transformers has the class, and lists its model of images beside text alone.
AutoModelForCausalLM.register(Mistral4Config, Mistral4ForCausalLM, exist_ok=True)
UNLISTED = {"mistral4": "Mistral4ForCausalLM"}

State = dict[str, Tensor]
Raw = dict[str, Any]
Relayout = Callable[[State, Raw], tuple[State, Raw]]
"""From transformers' tensors and configuration to those of a family."""

SIZES: dict[str, Any] = {
    "vocab_size": 99,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": None,
}
PROMPTS = [[(17 * i + 5 * n) % 90 + 4 for i in range(n)] for n in (1, 3, 4, 5, 11)]
"""Of lengths around the window of 4."""
NEW_TOKENS = 6


@dataclass(frozen=True)
class Case:
    """A variant of a family, and how to make it."""

    family: str
    """For the table of the documentation."""
    model_type: str
    """The class of transformers that it is compared with."""
    values: Raw = field(default_factory=dict)
    """Keys of its configuration, over `sizes`; a value of `...` leaves one out."""
    relayout: Relayout | None = None
    inputs: Callable[[int], dict[str, Any]] = lambda _: {}
    """What transformers' class is given besides the ids of a sequence of this length."""
    prepare: Callable[[PreTrainedModel], None] = lambda _: None
    """What is changed in transformers' model before it is saved."""
    attention: str = "eager"
    """How transformers computes it."""
    architecture: str = ""
    """Where it is not that of the class."""
    sizes: Raw = field(default_factory=lambda: SIZES)

    @property
    def has_media(self) -> bool:
        """Whether the model is for images beside text."""
        return "vision_config" in self.values

    @property
    def class_name(self) -> str:
        """The class of transformers."""
        classes = MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES if self.has_media else MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
        return UNLISTED.get(self.model_type) or classes[self.model_type]


@cache
def model_of(case_id: str) -> PreTrainedModel:
    """The model of a case, with random weights that are a function of the case."""
    from support.fallback_cases import FALLBACK_CASES
    from support.family_cases import CASES

    return made({**CASES, **FALLBACK_CASES}[case_id])


def larger(case_id: str, vocab_size: int) -> PreTrainedModel:
    """The same with so many ids, whose logits differ clearly, and 512 positions: for engines and servers."""
    model = copy.deepcopy(model_of(case_id))
    model.resize_token_embeddings(vocab_size)
    with torch.no_grad():
        generator = torch.Generator().manual_seed(5)
        for parameter in (model.get_input_embeddings().weight, model.get_output_embeddings().weight):
            parameter.normal_(std=0.3, generator=generator)
    # Experts by token id.
    for module in model.modules():
        if (table := getattr(module, "tid2eid", None)) is not None:
            module.tid2eid = table.repeat(-(-vocab_size // len(table)), 1)[:vocab_size]
    model.config.get_text_config().max_position_embeddings = 512
    return model


def made(case: Case) -> PreTrainedModel:
    """The same for a case without a name."""
    values = {key: value for key, value in {**case.sizes, **case.values}.items() if value is not ...}
    # A copy, as transformers writes into what it is given.
    config = CONFIG_MAPPING[case.model_type](**copy.deepcopy(values))
    config._attn_implementation = case.attention
    torch.manual_seed(0)
    auto = AutoModelForImageTextToText if case.has_media else AutoModelForCausalLM
    model = auto.from_config(config, dtype=torch.float32).eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1:
                is_weight = name.endswith("weight") and not _lacks_one(model, name)
                parameter.normal_(mean=1.0 if is_weight else 0.0, std=0.2, generator=generator)
            else:
                parameter.normal_(std=0.3, generator=generator)
    case.prepare(model)
    return model


def _lacks_one(model: PreTrainedModel, name: str) -> bool:
    """Whether the class adds 1 to the weight of this norm."""
    if model.config.model_type.startswith(("qwen3_next", "qwen3_5")):
        return "linear_attn" not in name
    if model.config.model_type.startswith("minimax_m3"):
        return True
    if model.config.model_type == "step3p7":
        return "vision" not in name
    return model.config.model_type.startswith("gemma") and not model.config.model_type.startswith(("gemma3n", "gemma4"))


def write(case: Case, model: PreTrainedModel, folder: Path) -> None:
    """Saves it under the names that the hub has."""
    model.save_pretrained(folder)
    if case.relayout is None:
        return
    path = folder / "model.safetensors"
    state, raw = case.relayout(load_file(path), json.loads((folder / "config.json").read_text()))
    save_file({name: tensor.contiguous().clone() for name, tensor in state.items()}, path)
    (folder / "config.json").write_text(json.dumps(raw))


def changed(folder: Path, values: dict[str, object]) -> ModelConfig:
    """The configuration of a folder with other values."""
    raw = json.loads((folder / "config.json").read_text())
    return parse_model_config(JsonObject({**raw, **values}, "config.json"), None)


@torch.inference_mode()
def logits_of(case: Case, model: PreTrainedModel, ids: list[int]) -> Tensor:
    """[len(ids), vocabulary]"""
    return model(torch.tensor([ids]), use_cache=False, **case.inputs(len(ids))).logits[0]
