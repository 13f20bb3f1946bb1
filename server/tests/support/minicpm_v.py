"""MiniCPM-V 2.6, 4 and 4.5 as a reference: transformers has their tower (that of Idefics 2) and their models of text,
and torch the attention of their queries. The rest is written here after the description of their authors' files.
"""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import (
    CONFIG_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    Idefics2VisionConfig,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.models.idefics2.modeling_idefics2 import Idefics2VisionTransformer

from support.families import Raw, State

HEAD = 128


class MiniCPMVConfig(PreTrainedConfig):
    model_type = "minicpmv"

    def __init__(
        self,
        text_config: Raw | None = None,
        vision_config: Raw | None = None,
        version: float = 2.6,
        query_num: int = 64,
        image_token: int = 0,
        drop_vision_last_layer: bool = False,
        **kwargs: Any,
    ) -> None:
        text = dict(text_config or {"model_type": "qwen2"})
        self.text_config = CONFIG_MAPPING[text.pop("model_type")](**text)
        self.vision_config = Idefics2VisionConfig(**(vision_config or {}))
        self.version, self.query_num, self.image_token = version, query_num, image_token
        self.drop_vision_last_layer = drop_vision_last_layer
        super().__init__(**kwargs)


def places(height: int, width: int, size: int) -> Tensor:
    """[height * width, size]: the first half tells the column, the second the row; of each, sines before cosines."""
    told = np.zeros((height, width, size), np.float32)
    for index in range(size // 4):
        wave = 1 / 10000 ** (index / (size / 4))
        for first, at in ((0, np.arange(width)[None, :]), (size // 2, np.arange(height)[:, None])):
            told[:, :, first + index] = np.sin(at * wave)
            told[:, :, first + size // 4 + index] = np.cos(at * wave)
    return torch.from_numpy(told).flatten(0, 1)


class Resampler(nn.Module):
    def __init__(self, config: MiniCPMVConfig) -> None:
        super().__init__()
        size, of_tower = config.text_config.hidden_size, config.vision_config.hidden_size
        self.in_values = config.version == 4.5
        self.query = nn.Parameter(torch.zeros(config.query_num, size))
        self.kv_proj = nn.Linear(of_tower, size, bias=False) if of_tower != size else nn.Identity()
        self.attn = nn.MultiheadAttention(size, size // HEAD, batch_first=True)
        self.ln_q, self.ln_kv, self.ln_post = (nn.LayerNorm(size, eps=1e-6) for _ in range(3))
        self.proj = nn.Parameter(torch.zeros(size, size))

    def forward(self, x: Tensor, height: int, width: int) -> Tensor:
        x = self.ln_kv(self.kv_proj(x))
        placed = x + places(height, width, x.shape[-1])
        keys, values = (x, placed) if self.in_values else (placed, x)
        out, _ = self.attn(self.ln_q(self.query)[None], keys, values)
        return self.ln_post(out)[0] @ self.proj


class MiniCPMV(PreTrainedModel):
    config_class = MiniCPMVConfig

    def __init__(self, config: MiniCPMVConfig) -> None:
        super().__init__(config)
        self.vpm = Idefics2VisionTransformer(config.vision_config)
        if config.drop_vision_last_layer:
            self.vpm.encoder.layers = self.vpm.encoder.layers[:-1]
        self.resampler = Resampler(config)
        self.llm = AutoModelForCausalLM.from_config(config.text_config)
        self.post_init()

    def get_image_features(self, pixel_values: Sequence[Tensor]) -> SimpleNamespace:
        side = self.config.vision_config.patch_size
        rows = []
        for view in pixel_values:
            height, width = view.shape[1] // side, view.shape[2] // side
            mask = torch.ones(1, height, width, dtype=torch.bool)
            states = self.vpm(view[None], patch_attention_mask=mask).last_hidden_state
            rows.append(self.resampler(states, height, width))
        return SimpleNamespace(pooler_output=rows)

    def forward(self, input_ids: Tensor, pixel_values: Sequence[Tensor] = (), use_cache: bool = False) -> Any:
        embedded = self.llm.get_input_embeddings()(input_ids)
        if len(pixel_values):
            embedded[input_ids == self.config.image_token] = torch.cat(
                self.get_image_features(pixel_values).pooler_output
            )
        return self.llm(inputs_embeds=embedded, use_cache=use_cache)


AutoConfig.register("minicpmv", MiniCPMVConfig, exist_ok=True)
AutoModelForImageTextToText.register(MiniCPMVConfig, MiniCPMV, exist_ok=True)


def published(state: State, raw: Raw) -> tuple[State, Raw]:
    """The keys of the authors' files: those of the text stand among those of the whole."""
    text = raw.pop("text_config")
    return state, {**text, **raw, "architectures": ["MiniCPMV"], "model_type": "minicpmv"}


def inside(version: float) -> Any:
    """From a model of text to the files of the whole."""

    def relayout(state: State, raw: Raw) -> tuple[State, Raw]:
        whole = {f"llm.{name}": tensor for name, tensor in state.items()}
        images = {"vpm.post_layernorm.weight": torch.zeros(2), "resampler.query": torch.zeros(2, 2)}
        values = {"architectures": ["MiniCPMV"], "model_type": "minicpmv", "version": version, "vision_config": {}}
        return {**whole, **images}, {**raw, **values}

    return relayout
