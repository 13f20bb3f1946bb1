"""Qwen-VL (2023) as a reference: transformers has its model of text, which is that of Qwen 2 with other names, and
torch the attention of its queries. The rest is written here after what its authors publish, with their names of
tensors.
"""

from collections import OrderedDict
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import (
    CONFIG_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    PreTrainedConfig,
    PreTrainedModel,
)

from support.author_layouts import qwen1
from support.families import Raw, State

HEAD = 128
TABLE = 256
"""Rows of the table of positions."""
PREFIX = "transformer.visual."


class QwenVLConfig(PreTrainedConfig):
    model_type = "qwen_vl_of_2023"

    def __init__(
        self, text_config: Raw | None = None, vision_config: Raw | None = None, image_token: int = 0, **kwargs: Any
    ) -> None:
        text = dict(text_config or {"model_type": "qwen2"})
        self.text_config = CONFIG_MAPPING[text.pop("model_type")](**text)
        self.vision_config = vision_config or {}
        self.image_token = image_token
        super().__init__(**kwargs)


def stretched(table: Tensor, count: int) -> Tensor:
    """A square table of positions as one with `count` rows."""
    side, wanted = (int(each**0.5) for each in (len(table), count))
    square = table.view(1, side, side, -1).permute(0, 3, 1, 2)
    return functional.interpolate(square, (wanted, wanted), mode="bicubic")[0].flatten(1).t()


def places(side: int, size: int) -> Tensor:
    """[side^2, size]: the first half tells the column, the second the row; of each, sines before cosines."""
    rows, columns = np.divmod(np.arange(side**2, dtype=np.float32), side)
    waves = 1 / 10000 ** (np.arange(size // 4) / (size / 4))
    parts = [function(np.outer(each, waves)) for each in (columns, rows) for function in (np.sin, np.cos)]
    return torch.from_numpy(np.concatenate(parts, axis=1)).float()


class Attention(nn.Module):
    def __init__(self, size: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.in_proj, self.out_proj = nn.Linear(size, 3 * size), nn.Linear(size, size)

    def forward(self, x: Tensor) -> Tensor:
        """Each head has its queries, keys and values side by side."""
        of_heads = self.in_proj(x).unflatten(-1, (self.heads, 3, -1)).permute(2, 1, 0, 3)
        q, k, v = of_heads
        scores = (q @ k.transpose(1, 2) / q.shape[-1] ** 0.5).softmax(-1)
        return self.out_proj((scores @ v).transpose(0, 1).flatten(1))


class Block(nn.Module):
    def __init__(self, size: int, heads: int, inner: int) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(size, eps=1e-6), nn.LayerNorm(size, eps=1e-6)
        self.attn = Attention(size, heads)
        layers = {"c_fc": nn.Linear(size, inner), "gelu": nn.GELU(), "c_proj": nn.Linear(inner, size)}
        self.mlp = nn.Sequential(OrderedDict(layers))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class Resampler(nn.Module):
    def __init__(self, queries: int, size: int, of_tower: int) -> None:
        super().__init__()
        self.query, self.pos_embed = nn.Parameter(torch.zeros(queries, size)), nn.Parameter(torch.zeros(queries, size))
        self.kv_proj = nn.Linear(of_tower, size, bias=False)
        self.attn = nn.MultiheadAttention(size, size // HEAD)
        self.ln_q, self.ln_kv = nn.LayerNorm(size, eps=1e-6), nn.LayerNorm(size, eps=1e-6)

    def forward(self, x: Tensor) -> Tensor:
        x = self.ln_kv(self.kv_proj(x))
        asked = self.ln_q(self.query) + self.pos_embed
        out, _ = self.attn(asked, x + stretched(self.pos_embed, len(x)), x)
        return out


class Tower(nn.Module):
    def __init__(self, config: QwenVLConfig) -> None:
        super().__init__()
        vision, size = config.vision_config, config.text_config.hidden_size
        width, patch = vision["width"], vision["patch_size"]
        self.conv1 = nn.Conv2d(3, width, patch, patch, bias=False)
        self.positional_embedding = nn.Parameter(torch.zeros(TABLE, width))
        self.ln_pre = nn.LayerNorm(width, eps=1e-6)
        inner = int(width * vision["mlp_ratio"])
        self.transformer = nn.Module()
        self.transformer.resblocks = nn.ModuleList(
            Block(width, vision["heads"], inner) for _ in range(vision["layers"])
        )
        self.attn_pool = Resampler(vision["n_queries"], size, width)
        self.ln_post = nn.LayerNorm(size, eps=1e-6)
        self.proj = nn.Parameter(torch.zeros(size, size))

    def forward(self, view: Tensor) -> Tensor:
        x = self.conv1(view[None])[0].flatten(1).t()
        x = self.ln_pre(x + stretched(self.positional_embedding, len(x)))
        for block in self.transformer.resblocks:
            x = block(x)
        return self.ln_post(self.attn_pool(x)) @ self.proj


class QwenVL(PreTrainedModel):
    config_class = QwenVLConfig

    def __init__(self, config: QwenVLConfig) -> None:
        super().__init__(config)
        self.visual = Tower(config)
        self.llm = AutoModelForCausalLM.from_config(config.text_config)
        self.post_init()

    def get_image_features(self, pixel_values: Tensor) -> SimpleNamespace:
        return SimpleNamespace(pooler_output=[self.visual(view) for view in pixel_values])

    def forward(self, input_ids: Tensor, pixel_values: Tensor | None = None, use_cache: bool = False) -> Any:
        embedded = self.llm.get_input_embeddings()(input_ids)
        if pixel_values is not None:
            rows = torch.cat(self.get_image_features(pixel_values).pooler_output)
            embedded[input_ids == self.config.image_token] = rows
        return self.llm(inputs_embeds=embedded, use_cache=use_cache)


AutoConfig.register(QwenVLConfig.model_type, QwenVLConfig, exist_ok=True)
AutoModelForImageTextToText.register(QwenVLConfig, QwenVL, exist_ok=True)


def calm(model: PreTrainedModel) -> None:
    """Hidden states are wide: with larger weights nothing but the largest scores would count."""
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1 and name != "llm.lm_head.weight":
            parameter.data *= 0.3
    table = model.visual.attn_pool.pos_embed
    table.data = places(int(len(table) ** 0.5), table.shape[1])


def published(state: State, raw: Raw) -> tuple[State, Raw]:
    """The files of the whole."""
    tower = {f"transformer.{name}": tensor for name, tensor in state.items() if name.startswith("visual.")}
    text = {name.removeprefix("llm."): tensor for name, tensor in state.items() if name.startswith("llm.")}
    text, raw_text = qwen1(text, raw["text_config"])
    visual = {**raw["vision_config"], "image_start_id": raw["image_token"] - 2}
    return {**text, **tower}, {**raw_text, "visual": visual}


def beside_images(state: State, raw: Raw) -> tuple[State, Raw]:
    """The files of the whole, of a model of text."""
    state, raw = qwen1(state, raw)
    return {**state, f"{PREFIX}proj": torch.zeros(2, 2)}, {**raw, "visual": {"width": 1664}}
