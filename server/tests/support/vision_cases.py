"""Tiny random models for images of every family of vision towers, and what transformers makes of views of them."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from support.families import SIZES, Case, made, write
from support.recurrent_cases import DELTA

View = tuple[int, int]
"""Height and width."""
Features = Callable[[PreTrainedModel, Sequence[Tensor]], Tensor]
"""From the model and the normalised views [3, height, width] of an item to [rows, levels, hidden]."""

MEAN, STD = (0.48, 0.46, 0.41), (0.27, 0.26, 0.28)
PROCESSOR = {"rescale_factor": 1 / 255, "image_mean": MEAN, "image_std": STD}
TOKEN = 90


@dataclass(frozen=True)
class VisionCase:
    """A model, and items that it reads."""

    case: Case
    items: Sequence[Sequence[View]]
    refused: Sequence[View]
    features: Features
    values: dict[str, Any] = field(default_factory=dict[str, Any])
    """What the encoder says of itself."""

    def write(self, folder: Path) -> PreTrainedModel:
        """Saves it as the hub has it."""
        model = made(self.case)
        write(self.case, model, folder)
        (folder / "preprocessor_config.json").write_text(json.dumps(PROCESSOR))
        return model


def views_of(sizes: Sequence[View], seed: int = 0) -> list[Tensor]:
    """Random pixels, uint8 [height, width, 3]."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(256, (*size, 3), dtype=torch.uint8, generator=generator) for size in sizes]


@torch.inference_mode()
def expected(case: VisionCase, model: PreTrainedModel, views: Sequence[Tensor]) -> Tensor:
    """[rows, levels, hidden]"""
    mean, std = (torch.tensor(each)[:, None, None] for each in (MEAN, STD))
    return case.features(model, [(view.permute(2, 0, 1) / 255 - mean) / std for view in views])


def _same_size(model: PreTrainedModel, views: Sequence[Tensor]) -> Tensor:
    return torch.cat(list(model.get_image_features(torch.stack(list(views))).pooler_output))[:, None]


def _with_sizes(model: PreTrainedModel, views: Sequence[Tensor]) -> Tensor:
    sizes = torch.tensor([view.shape[1:] for view in views])
    features = model.get_image_features(torch.stack(list(views)), image_sizes=sizes).pooler_output
    return torch.cat(list(features))[:, None]


def _tiles(model: PreTrainedModel, views: Sequence[Tensor]) -> Tensor:
    return torch.cat(list(model.get_image_features(torch.stack(list(views))[None]).pooler_output))[:, None]


def _qwen(model: PreTrainedModel, views: Sequence[Tensor]) -> Tensor:
    patch, merge, frames = model.config.vision_config.patch_size, 2, 2
    patches, grids = [], []
    for view in views:
        down, across = view.shape[1] // patch, view.shape[2] // patch
        blocks = view.expand(frames, *view.shape).reshape(
            frames, 3, down // merge, merge, patch, across // merge, merge, patch
        )
        patches.append(blocks.permute(2, 5, 3, 6, 1, 0, 4, 7).reshape(down * across, -1))
        grids.append([1, down, across])
    out = model.get_image_features(torch.cat(patches), torch.tensor(grids))
    levels = [out.pooler_output, *(getattr(out, "deepstack_features", None) or [])]
    return torch.stack([torch.cat(list(level)) for level in levels], dim=1)


def _case(model_type: str, text: dict[str, Any], vision: dict[str, Any], **whole: Any) -> Case:
    values = {"text_config": {**SIZES, **text}, "vision_config": vision, **whole}
    return Case("", model_type, values, sizes={})


TOWER: dict[str, Any] = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "image_size": 16,
    "patch_size": 4,
}
CLIP, SIGLIP, PIXTRAL = (
    {**TOWER, "model_type": kind} for kind in ("clip_vision_model", "siglip_vision_model", "pixtral")
)
LLAMA = {"model_type": "llama"}
ROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [1, 1, 2]}}
QWEN: dict[str, Any] = {
    "depth": 4,
    "hidden_size": 16,
    "out_hidden_size": 32,
    "intermediate_size": 24,
    "num_heads": 2,
    "patch_size": 4,
}
ONE = ([(16, 16)], [(16, 16)] * 3)
ANY = ([(16, 24)], [(8, 16)], [(40, 16)], [(16, 16)] * 2)
OF_QWEN = ([(16, 24)], [(8, 8)], [(40, 56)], [(8, 40)], [(24, 32), (16, 16), (8, 8)])


def _llava(vision: dict[str, Any], **whole: Any) -> Case:
    return _case("llava", LLAMA, vision, image_token_index=TOKEN, **whole)


TILED = {**TOWER, "image_size": [16, 16], "patch_size": [4, 4]}
GEMMA = {"model_type": "gemma3_text", "head_dim": 16, "sliding_window": 4}
ROPE_3_5 = {"rope_parameters": {**ROPE["rope_parameters"], "mrope_interleaved": True, "partial_rotary_factor": 0.25}}
ROPE_3_5["rope_parameters"]["mrope_section"] = [1, 1, 0]

VISION_CASES: dict[str, VisionCase] = {
    "llava": VisionCase(_llava(CLIP), ONE, [(16, 20), (8, 8), (0, 0)], _same_size),
    "llava full": VisionCase(
        _llava(CLIP, vision_feature_layer=[-2, 1], vision_feature_select_strategy="full", projector_hidden_act="relu"),
        ONE,
        [(32, 32)],
        _same_size,
    ),
    "llava siglip": VisionCase(
        _llava(SIGLIP, vision_feature_layer=-1, vision_feature_select_strategy="full"), ONE, [(12, 16)], _same_size
    ),
    "pixtral": VisionCase(
        _llava(PIXTRAL, vision_feature_layer=-1, vision_feature_select_strategy="full"),
        ANY,
        [(16, 18), (2, 16)],
        _with_sizes,
    ),
    "mistral3": VisionCase(
        _case(
            "mistral3",
            {"model_type": "mistral", "head_dim": 8},
            {**PIXTRAL, "rope_parameters": {"rope_type": "axial", "rope_theta": 500.0}},
            image_token_index=TOKEN,
        ),
        ANY,
        [(16, 20), (4, 16)],
        _with_sizes,
    ),
    "qwen2 vl": VisionCase(
        _case(
            "qwen2_vl",
            ROPE,
            {"depth": 3, "embed_dim": 16, "hidden_size": 32, "num_heads": 2, "patch_size": 4},
            image_token_id=TOKEN,
        ),
        OF_QWEN,
        [(16, 20), (0, 8)],
        _qwen,
        {"axes": True},
    ),
    "qwen2.5 vl": VisionCase(
        _case(
            "qwen2_5_vl",
            ROPE,
            {**QWEN, "window_size": 16, "fullatt_block_indexes": [1, 3]},
            image_token_id=TOKEN,
        ),
        OF_QWEN,
        [(16, 20)],
        _qwen,
        {"axes": True},
    ),
    "qwen3 vl": VisionCase(
        _case(
            "qwen3_vl",
            {"head_dim": 8, **ROPE},
            {**QWEN, "num_position_embeddings": 25, "deepstack_visual_indexes": [0, 2]},
            image_token_id=TOKEN,
        ),
        OF_QWEN,
        [(16, 20)],
        _qwen,
        {"axes": True, "levels": 3},
    ),
    "qwen3.5": VisionCase(
        _case("qwen3_5", {**DELTA, **ROPE_3_5}, {**QWEN, "num_position_embeddings": 25}, image_token_id=TOKEN),
        OF_QWEN,
        [(16, 20)],
        _qwen,
        {"axes": True},
    ),
    "gemma3": VisionCase(
        _case("gemma3", GEMMA, SIGLIP, mm_tokens_per_image=4, image_token_index=TOKEN),
        ONE,
        [(16, 24)],
        _same_size,
        {"whole_spans": True},
    ),
    "internvl": VisionCase(
        _case("internvl", {"model_type": "qwen2"}, TILED, image_token_id=TOKEN), ONE, [(8, 8)], _same_size
    ),
    "internvl qk norm": VisionCase(
        _case(
            "internvl",
            {"model_type": "qwen2"},
            {**TILED, "norm_type": "rms_norm", "use_qk_norm": True, "attention_bias": True, "use_mean_pooling": False},
            image_token_id=TOKEN,
        ),
        ONE,
        [(8, 8)],
        _same_size,
    ),
    "idefics3": VisionCase(_case("idefics3", LLAMA, TOWER, image_token_id=TOKEN), ONE, [(16, 18)], _tiles),
    "smolvlm": VisionCase(
        _case("smolvlm", LLAMA, {**TOWER, "image_size": 52}, scale_factor=2, image_token_id=TOKEN),
        ([(56, 56)], [(24, 24)] * 2),
        [(16, 18)],
        _tiles,
    ),
}
