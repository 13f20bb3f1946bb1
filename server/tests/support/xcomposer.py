"""InternLM-XComposer 2 as a reference: transformers has its tower (CLIP) and its model of text (Llama with other
names). What tokens of images pass besides, low-rank matrices beside those of every layer, is written here.
"""

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import (
    CONFIG_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    CLIPVisionConfig,
    CLIPVisionModel,
    PreTrainedConfig,
    PreTrainedModel,
)

from support.author_layouts import internlm2
from support.families import Raw, State

RANK = 256
STORED = {
    "wqkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "wo": ("self_attn.o_proj",),
    "w1": ("mlp.gate_proj",),
    "w3": ("mlp.up_proj",),
    "w2": ("mlp.down_proj",),
}
"""The matrices of the class that each of the authors' has."""
CLASS = "InternLMXComposer2ForCausalLM"


def _b(index: int | str, part: str) -> str:
    """The name of what makes the outputs of a matrix."""
    return f"{index} {part.split('.')[1]} B"


class XComposer2Config(PreTrainedConfig):
    model_type = "xcomposer2_of_tests"

    def __init__(
        self, text_config: Raw | None = None, vision_config: Raw | None = None, image_token: int = 0, **kwargs: Any
    ) -> None:
        text = dict(text_config or {"model_type": "llama"})
        self.text_config = CONFIG_MAPPING[text.pop("model_type")](**text)
        self.vision_config = CLIPVisionConfig(**(vision_config or {}))
        self.image_token = image_token
        super().__init__(**kwargs)


class XComposer2(PreTrainedModel):
    config_class = XComposer2Config

    def __init__(self, config: XComposer2Config) -> None:
        super().__init__(config)
        hidden, of_tower = config.text_config.hidden_size, config.vision_config.hidden_size
        self.vit = nn.Module()
        self.vit.vision_tower = CLIPVisionModel(config.vision_config)
        self.vision_proj = nn.Sequential(nn.Linear(of_tower, hidden), nn.GELU(), nn.Linear(hidden, hidden))
        self.llm = AutoModelForCausalLM.from_config(config.text_config)
        self.factors = nn.ParameterDict()
        self.of_images = torch.zeros(0)
        for index, layer in enumerate(self.llm.model.layers):
            for stored, parts in STORED.items():
                a = nn.Parameter(torch.zeros(RANK, layer.get_submodule(parts[0]).in_features))
                self.factors[f"{index} {stored} A"] = a
                for part in parts:
                    matrix = layer.get_submodule(part)
                    self.factors[_b(index, part)] = nn.Parameter(torch.zeros(matrix.out_features, RANK))
                    matrix.register_forward_hook(self._adding(f"{index} {stored} A", _b(index, part)))
        self.post_init()

    def _adding(self, a: str, b: str) -> Any:
        def added(_: nn.Module, inputs: tuple[Tensor], out: Tensor) -> Tensor:
            low = functional.linear(functional.linear(inputs[0], self.factors[a]), self.factors[b])
            return torch.where(self.of_images, out + low, out)

        return added

    def get_image_features(self, pixel_values: Tensor) -> SimpleNamespace:
        states = self.vit.vision_tower(pixel_values, output_hidden_states=True).hidden_states[-1]
        return SimpleNamespace(pooler_output=list(self.vision_proj(states[:, 1:])))

    def forward(self, input_ids: Tensor, pixel_values: Tensor | None = None, use_cache: bool = False) -> Any:
        self.of_images = (input_ids == self.config.image_token)[..., None]
        embedded = self.llm.get_input_embeddings()(input_ids)
        if pixel_values is not None:
            rows = torch.cat(self.get_image_features(pixel_values).pooler_output)
            embedded[self.of_images[..., 0]] = rows
        return self.llm(inputs_embeds=embedded, use_cache=use_cache)


AutoConfig.register(XComposer2Config.model_type, XComposer2Config, exist_ok=True)
AutoModelForImageTextToText.register(XComposer2Config, XComposer2, exist_ok=True)


def calm(model: PreTrainedModel) -> None:
    """What is added to a matrix is about as large as the matrix."""
    for parameter in model.factors.values():
        parameter.data *= 0.5


def published(state: State, raw: Raw) -> tuple[State, Raw]:
    """The files of the whole."""
    text = {name.removeprefix("llm."): tensor for name, tensor in state.items() if name.startswith("llm.")}
    whole, raw_text = internlm2(text, raw["text_config"])
    tower = ("vit.vision_tower.", "vit.vision_tower.vision_model.")
    whole |= {name.replace(*tower): tensor for name, tensor in state.items() if name.startswith("vi")}
    factors = {name.removeprefix("factors."): each for name, each in state.items() if name.startswith("factors.")}
    for name, tensor in factors.items():
        index, stored, kind = name.split()
        if kind == "A":
            room = "attention" if stored in ("wqkv", "wo") else "feed_forward"
            prefix = f"model.layers.{index}.{room}.{stored}"
            whole[f"{prefix}.Plora_A.weight"] = tensor
            rows = [factors[_b(index, part)] for part in STORED[stored]]
            whole[f"{prefix}.Plora_B.weight"] = rows[0] if len(rows) == 1 else _in_groups(*rows, raw["text_config"])
    vision = raw["vision_config"]
    return whole, {**raw_text, **_KEYS, "img_size": vision["image_size"], "vision_config": vision}


def _in_groups(q: Tensor, k: Tensor, v: Tensor, text: Raw) -> Tensor:
    """The queries of each key head before its key and value."""
    groups = (each.unflatten(0, (text["num_key_value_heads"], -1)) for each in (q, k, v))
    return torch.cat(list(groups), dim=1).flatten(0, 1)


def beside_images(state: State, raw: Raw) -> tuple[State, Raw]:
    """The files of the whole, of a model of text, which sees in tiles."""
    state, raw = internlm2(state, raw)
    beside = {
        "vision_proj.0.weight": torch.zeros(2, 2),
        "model.layers.0.attention.wo.Plora_A.weight": torch.zeros(2, 2),
    }
    return {**state, **beside}, {**raw, **_KEYS, "img_size": 336}


_KEYS = {"architectures": [CLASS], "model_type": "internlmxcomposer2"}
