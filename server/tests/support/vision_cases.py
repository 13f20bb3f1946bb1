"""Tiny random models for images of every family of vision towers, and what transformers makes of views of them."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.image_processing_utils import select_best_resolution
from transformers.image_utils import OPENAI_CLIP_MEAN, OPENAI_CLIP_STD
from transformers.models.llava_next.modeling_llava_next import unpad_image

from support.families import SIZES, Case, Raw, Relayout, State, made, write
from support.gemma_cases import GEMMA_4_EXPERTS, GEMMA_4_SMALL, with_scalars
from support.media_cases import (
    GLM_EXPERTS,
    GLM_ROPE,
    KIMI,
    KIMI_CLASS,
    QWEN_EXPERTS,
    internvl_chat,
    kimi,
    kimi_vl,
    original_llava,
)
from support.moe_cases import LLAMA_4, with_corrections
from support.recurrent_cases import DELTA, EXPERTS

View = tuple[int, int]
"""Height and width."""


@dataclass(frozen=True)
class Item:
    """An image, as the router sends it."""

    views: Sequence[View]
    grid: View = (0, 0)
    original: View = (0, 0)


Inputs = dict[str, Tensor]
MakeInputs = Callable[[PreTrainedModel, Sequence[Tensor], Item], Inputs]
"""From the model and the normalised views [3, height, width] of an item to what transformers' class takes."""

MEAN, STD = (0.48, 0.46, 0.41), (0.27, 0.26, 0.28)
PROCESSOR = {"rescale_factor": 1 / 255, "image_mean": MEAN, "image_std": STD}
TOKEN = 90


@dataclass(frozen=True)
class VisionCase:
    """A model, and items that it reads."""

    case: Case
    items: Sequence[Item]
    refused: Sequence[View]
    make_inputs: MakeInputs
    values: dict[str, Any] = field(default_factory=dict[str, Any])
    """What the encoder says of itself."""
    scale: float = 1.0
    """By which the class multiplies all that its decoder begins with."""
    token_types: str = ""
    """The argument of the class that says which tokens are of images."""
    project: Callable[[PreTrainedModel, Tensor], Tensor] = lambda _, pooled: pooled
    """What the class does with the features of views besides."""
    spliced: bool = False
    """Whether the class cannot compute all of it by itself: transformers 5.24 misses a field of its own results."""
    placeholder: str = ""
    """The name of the placeholder, where the tokenizer's files alone tell its id."""
    rounding: float = 0.05
    """How much of the rows may differ in bfloat16, in which the class differs from itself by about as much."""

    def write(self, folder: Path) -> PreTrainedModel:
        """Saves it as the hub has it."""
        model = made(self.case)
        write(self.case, model, folder)
        if self.placeholder:
            (folder / "added_tokens.json").write_text(json.dumps({self.placeholder: TOKEN}))
        (folder / "preprocessor_config.json").write_text(json.dumps(PROCESSOR))
        return model


def views_of(sizes: Sequence[View], seed: int = 0) -> list[Tensor]:
    """Random pixels, uint8 [height, width, 3]."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(256, (*size, 3), dtype=torch.uint8, generator=generator) for size in sizes]


def inputs_of(case: VisionCase, model: PreTrainedModel, views: Sequence[Tensor], item: Item) -> Inputs:
    mean, std = (torch.tensor(each)[:, None, None] for each in (MEAN, STD))
    return case.make_inputs(model, [(view.permute(2, 0, 1) / 255 - mean) / std for view in views], item)


@torch.inference_mode()
def expected(case: VisionCase, model: PreTrainedModel, views: Sequence[Tensor], item: Item) -> Tensor:
    """[rows, levels, hidden]"""
    out = model.get_image_features(**inputs_of(case, model, views, item))
    pooled = case.project(model, out.last_hidden_state) if out.pooler_output is None else out.pooler_output
    levels = [pooled, *(getattr(out, "deepstack_features", None) or [])]
    return torch.stack([torch.cat(list(level)) for level in levels], dim=1) * case.scale


@torch.inference_mode()
def expected_logits(
    case: VisionCase, model: PreTrainedModel, ids: Sequence[int], views: Sequence[Tensor], item: Item
) -> Tensor:
    """[len(ids), vocabulary], of a prompt with one item."""
    tokens = torch.tensor([ids])
    if case.spliced:
        embedded = model.get_input_embeddings()(tokens)
        embedded[tokens == TOKEN] = expected(case, model, views, item)[:, 0]
        return model.language_model(inputs_embeds=embedded, use_cache=False).logits[0]
    types = {case.token_types: (tokens == TOKEN).long()} if case.token_types else {}
    return model(tokens, use_cache=False, **inputs_of(case, model, views, item), **types).logits[0]


def _same_size(_: PreTrainedModel, views: Sequence[Tensor], __: Item) -> Inputs:
    return {"pixel_values": torch.stack(list(views))}


def _with_sizes(_: PreTrainedModel, views: Sequence[Tensor], __: Item) -> Inputs:
    sizes = torch.tensor([view.shape[1:] for view in views])
    return {"pixel_values": torch.stack(list(views)), "image_sizes": sizes}


def _tiles(_: PreTrainedModel, views: Sequence[Tensor], __: Item) -> Inputs:
    return {"pixel_values": torch.stack(list(views))[None]}


def _qwen(model: PreTrainedModel, views: Sequence[Tensor], _: Item) -> Inputs:
    patch, merge, frames = model.config.vision_config.patch_size, 2, 2
    patches, grids = [], []
    for view in views:
        down, across = view.shape[1] // patch, view.shape[2] // patch
        blocks = view.expand(frames, *view.shape).reshape(
            frames, 3, down // merge, merge, patch, across // merge, merge, patch
        )
        patches.append(blocks.permute(2, 5, 3, 6, 1, 0, 4, 7).reshape(down * across, -1))
        grids.append([1, down, across])
    return {"pixel_values": torch.cat(patches), "image_grid_thw": torch.tensor(grids)}


def _kimi(model: PreTrainedModel, views: Sequence[Tensor], _: Item) -> Inputs:
    side = model.config.vision_config.patch_size
    patches, grids = [], []
    for view in views:
        down, across = view.shape[1] // side, view.shape[2] // side
        blocks = view.reshape(3, down, side, across, side).permute(1, 3, 0, 2, 4)
        patches.append(blocks.reshape(-1, 3, side, side))
        grids.append([1, down, across])
    return {"pixel_values": torch.cat(patches), "image_grid_thw": torch.tensor(grids)}


def _gemma4(model: PreTrainedModel, views: Sequence[Tensor], _: Item) -> Inputs:
    side = model.config.vision_config.patch_size
    patches, places = [], []
    for view in views:
        down, across = view.shape[1] // side, view.shape[2] // side
        blocks = view.reshape(3, down, side, across, side).permute(1, 3, 2, 4, 0)
        patches.append(blocks.reshape(down * across, -1))
        numbers = torch.arange(down * across)
        places.append(torch.stack([numbers % across, numbers // across], dim=1))
    return {"pixel_values": torch.stack(patches), "image_position_ids": torch.stack(places)}


def _with_bounds(model: PreTrainedModel) -> None:
    """Bounds of matrices, factors of what is averaged, and scales of layers, which are buffers that files have."""
    with_scalars(model)
    for index, (name, buffer) in enumerate(model.named_buffers()):
        end = name.rpartition(".")[2]
        if end in ("input_min", "output_min", "input_max", "output_max"):
            buffer.fill_((1.0 if end.endswith("max") else -1.0) * (0.7 + index % 7 / 10))
        if end in ("std_bias", "std_scale"):
            generator = torch.Generator().manual_seed(3)
            buffer.normal_(mean=0.5, std=0.2, generator=generator)


def _gemma4_case(text: Raw, **vision: Any) -> Case:
    values = {
        "text_config": {**SIZES, "model_type": "gemma4_text", **text},
        "vision_config": {**GEMMA_TOWER, **vision},
        "image_token_id": TOKEN,
    }
    return Case("", "gemma4", values, sizes={}, prepare=_with_bounds)


def _coarse(_: PreTrainedModel, views: Sequence[Tensor], __: Item) -> Inputs:
    """As the processor of Llama 4 normalises, which rounds each step to bfloat16."""
    mean, std = (torch.tensor(each)[:, None, None] for each in (MEAN, STD))
    pixels = torch.stack([((view * std + mean) * 255).round() for view in views])
    scaled = pixels.bfloat16() * PROCESSOR["rescale_factor"]
    return {"pixel_values": ((scaled - mean.bfloat16()) / std.bfloat16()).float()}


def _by_clip(views: Sequence[Tensor]) -> list[Tensor]:
    """As CLIP normalises."""
    mean, std = (torch.tensor(each)[:, None, None] for each in (MEAN, STD))
    clip_mean, clip_std = (torch.tensor(each)[:, None, None] for each in (OPENAI_CLIP_MEAN, OPENAI_CLIP_STD))
    return [(view * std + mean - clip_mean) / clip_std for view in views]


def _as_clip(model: PreTrainedModel, views: Sequence[Tensor], item: Item) -> Inputs:
    return _same_size(model, _by_clip(views), item)


def _next_as_clip(model: PreTrainedModel, views: Sequence[Tensor], item: Item) -> Inputs:
    return _next(model, _by_clip(views), item)


def _flat_features(model: PreTrainedModel, features: Tensor) -> Tensor:
    return model.multi_modal_projector(features.flatten(0, 1))[None]


def _published_kimi(state: State, raw: Raw) -> tuple[State, Raw]:
    """Transformers writes two names that the authors' files do not have."""
    state, raw = kimi(state, raw)
    names = {
        "vision_tower.encoder.patch_embed.": "vision_tower.patch_embed.",
        "model.mm_projector.pre_norm.": "mm_projector.pre_norm.",
    }
    for old, new in names.items():
        state = {name.replace(old, new): tensor for name, tensor in state.items()}
    return state, raw


def _case(
    model_type: str, text: dict[str, Any], vision: dict[str, Any], relayout: Relayout | None = None, **whole: Any
) -> Case:
    values = {"text_config": {**SIZES, **text}, "vision_config": vision, **whole}
    return Case("", model_type, values, relayout, sizes={})


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


def _items(*items: Sequence[View]) -> Sequence[Item]:
    return [Item(views) for views in items]


ONE = _items([(16, 16)], [(16, 16)] * 3)
ANY = _items([(16, 24)], [(8, 16)], [(40, 16)], [(16, 16)] * 2)
OF_QWEN = _items([(16, 24)], [(8, 8)], [(40, 56)], [(8, 40)], [(24, 32), (16, 16), (8, 8)])
OF_GEMMA4 = _items([(16, 24)], [(8, 8)], [(40, 56)], [(8, 40)], [(24, 32)] * 2)
PINPOINTS = [[16, 32], [32, 16], [32, 32], [16, 48], [48, 16], [48, 64]]


def _tiled(*originals: View, pinpoints: list[list[int]] = PINPOINTS, side: int = 16) -> Sequence[Item]:
    """Images of these sizes, cut into tiles of so many pixels along a side, with 4 x 4 patches."""
    items: list[Item] = []
    for size in originals:
        canvas = select_best_resolution(size, pinpoints)
        whole = torch.zeros(1, *(4 * pixels // side for pixels in canvas))
        height, width = unpad_image(whole, size).shape[1:]
        items.append(Item([(side, side), canvas], (height, width), size))
    return items


def _next(_: PreTrainedModel, views: Sequence[Tensor], item: Item) -> Inputs:
    side = views[0].shape[1]
    tiles = [tile for row in views[1].split(side, 1) for tile in row.split(side, 2)] if len(views) > 1 else []
    single = {} if tiles else {"batch_num_images": torch.tensor([2])}
    sizes = torch.tensor([item.original])
    return {"pixel_values": torch.stack([views[0], *tiles])[None], "image_sizes": sizes, **single}


def _llava(vision: dict[str, Any], **whole: Any) -> Case:
    return _case("llava", LLAMA, vision, image_token_index=TOKEN, **whole)


GLM_TOWER = {**QWEN, "image_size": 24}
LLAMA4_TOWER = {
    **TOWER,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "projector_input_dim": 24,
    "projector_output_dim": 24,
    "vision_output_dim": 24,
}
KIMI_TOWER = {
    **{key: TOWER[key] for key in ("hidden_size", "intermediate_size", "num_hidden_layers", "patch_size")},
    "num_attention_heads": 2,
    "pos_emb_height": 5,
    "pos_emb_width": 5,
}
GEMMA_TOWER = {
    **{key: TOWER[key] for key in ("hidden_size", "intermediate_size", "num_hidden_layers", "patch_size")},
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 12,
    "pooling_kernel_size": 2,
    "position_embedding_size": 50,
}
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
        token_types="mm_token_type_ids",
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
        token_types="mm_token_type_ids",
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
        token_types="mm_token_type_ids",
    ),
    "qwen3 vl moe": VisionCase(
        _case(
            "qwen3_vl_moe",
            {"head_dim": 8, **QWEN_EXPERTS, **ROPE},
            {**QWEN, "num_position_embeddings": 25, "deepstack_visual_indexes": [0, 2]},
            image_token_id=TOKEN,
        ),
        OF_QWEN,
        [(16, 20)],
        _qwen,
        {"axes": True, "levels": 3},
        token_types="mm_token_type_ids",
    ),
    "qwen3.5 moe": VisionCase(
        _case(
            "qwen3_5_moe",
            {**DELTA, **EXPERTS, **ROPE_3_5, "moe_intermediate_size": 24},
            {**QWEN, "num_position_embeddings": 25},
            image_token_id=TOKEN,
        ),
        OF_QWEN,
        [(16, 20)],
        _qwen,
        {"axes": True},
        token_types="mm_token_type_ids",
    ),
    "qwen3.5": VisionCase(
        _case("qwen3_5", {**DELTA, **ROPE_3_5}, {**QWEN, "num_position_embeddings": 25}, image_token_id=TOKEN),
        OF_QWEN,
        [(16, 20)],
        _qwen,
        {"axes": True},
        token_types="mm_token_type_ids",
    ),
    "gemma3": VisionCase(
        _case("gemma3", GEMMA, SIGLIP, mm_tokens_per_image=4, image_token_index=TOKEN),
        ONE,
        [(16, 24)],
        _same_size,
        {"whole_spans": True},
        token_types="token_type_ids",
    ),
    "gemma4": VisionCase(
        _gemma4_case({**GEMMA_4_EXPERTS, "use_bidirectional_attention": "vision"}, standardize=True),
        OF_GEMMA4,
        [(16, 20), (208, 8)],
        _gemma4,
        {"whole_spans": True},
        token_types="mm_token_type_ids",
    ),
    "gemma4 small": VisionCase(
        _gemma4_case({**GEMMA_4_SMALL, "pad_token_id": 7}, use_clipped_linears=True), OF_GEMMA4, [(16, 20)], _gemma4
    ),
    "glm4v": VisionCase(
        _case("glm4v", {"rope_parameters": GLM_ROPE}, GLM_TOWER, image_token_id=TOKEN),
        OF_QWEN,
        [(16, 20)],
        _qwen,
        {"axes": True},
        token_types="mm_token_type_ids",
        rounding=0.1,
    ),
    "glm4v moe": VisionCase(
        Case(
            "",
            "glm4v_moe",
            {
                "text_config": {**SIZES, **GLM_EXPERTS},
                "vision_config": {**GLM_TOWER, "attention_bias": True},
                "image_token_id": TOKEN,
            },
            prepare=with_corrections,
            sizes={},
        ),
        OF_QWEN,
        [(16, 20)],
        _qwen,
        {"axes": True},
        token_types="mm_token_type_ids",
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
    "internvl chat": VisionCase(
        _case("internvl", {"model_type": "qwen2"}, TILED, image_token_id=TOKEN, relayout=internvl_chat),
        ONE,
        [(8, 8)],
        _same_size,
        placeholder="<IMG_CONTEXT>",
    ),
    "internvl chat qk norm": VisionCase(
        _case(
            "internvl",
            {"model_type": "qwen3", "head_dim": 8},
            {**TILED, "norm_type": "rms_norm", "use_qk_norm": True, "attention_bias": True},
            image_token_id=TOKEN,
            vision_feature_layer=-2,
            relayout=internvl_chat,
        ),
        ONE,
        [(8, 8)],
        _same_size,
        placeholder="<IMG_CONTEXT>",
    ),
    "llama4": VisionCase(
        _case("llama4", {"model_type": "llama4_text", **LLAMA_4}, LLAMA4_TOWER, image_token_index=TOKEN),
        ONE,
        [(8, 8)],
        _coarse,
        project=_flat_features,
        spliced=True,
    ),
    "llava next": VisionCase(
        _case("llava_next", LLAMA, CLIP, image_token_index=TOKEN, image_grid_pinpoints=PINPOINTS),
        _tiled((30, 60), (16, 16), (100, 11), (45, 60), (7, 90)),
        [(16, 20)],
        _next,
    ),
    "granite vision": VisionCase(
        _case(
            "llava_next",
            {"model_type": "granite", "embedding_multiplier": 3.0},
            {**SIGLIP, "image_size": 17},
            image_token_index=TOKEN,
            image_grid_pinpoints=[[17, 34], [34, 34]],
            vision_feature_layer=[0, 2, -1],
            vision_feature_select_strategy="full",
        ),
        _tiled((30, 60), (40, 40), pinpoints=[[17, 34], [34, 34]], side=17),
        [(17, 20)],
        _next,
        scale=3.0,
    ),
    "llava original": VisionCase(_llava(CLIP, relayout=original_llava), ONE, [(16, 20)], _as_clip, placeholder="<unk>"),
    "llava original tiles": VisionCase(
        _case(
            "llava_next",
            LLAMA,
            CLIP,
            image_token_index=TOKEN,
            image_grid_pinpoints=PINPOINTS,
            relayout=original_llava,
        ),
        _tiled((30, 60), (16, 16), (100, 11), (45, 60), (7, 90)),
        [(16, 20)],
        _next_as_clip,
        placeholder="<unk>",
    ),
    "llava onevision": VisionCase(
        _case(
            "llava_onevision",
            {"model_type": "qwen2"},
            SIGLIP,
            image_token_index=TOKEN,
            image_grid_pinpoints=PINPOINTS,
            vision_aspect_ratio="anyres_max_3",
        ),
        [*_tiled((30, 60), (45, 60), (100, 100)), Item([(16, 16)])],
        [(16, 20)],
        _next,
    ),
    "idefics3": VisionCase(_case("idefics3", LLAMA, TOWER, image_token_id=TOKEN), ONE, [(16, 20)], _tiles),
    "smolvlm with a rest": VisionCase(
        _case("smolvlm", LLAMA, {**TOWER, "image_size": 27}, scale_factor=3, image_token_id=TOKEN),
        _items([(27, 27)], [(26, 25)] * 2),
        [(16, 18)],
        _tiles,
    ),
    "smolvlm": VisionCase(
        _case("smolvlm", LLAMA, {**TOWER, "image_size": 52}, scale_factor=2, image_token_id=TOKEN),
        _items([(56, 56)], [(24, 24)] * 2),
        [(16, 20)],
        _tiles,
    ),
    "kimi k2.5": VisionCase(
        Case(
            "",
            "kimi_k25",
            {
                "text_config": {**SIZES, **KIMI},
                "vision_config": KIMI_TOWER,
                "projection_hidden_size": 16,
                "image_token_id": TOKEN,
            },
            _published_kimi,
            prepare=with_corrections,
            architecture=KIMI_CLASS,
            sizes={},
        ),
        OF_QWEN,
        [(16, 20)],
        _kimi,
    ),
    "kimi vl": VisionCase(
        Case(
            "",
            "kimi_k25",
            {
                "text_config": {**SIZES, **KIMI},
                "vision_config": KIMI_TOWER,
                "projection_hidden_size": 16,
                "image_token_id": TOKEN,
            },
            kimi_vl,
            prepare=with_corrections,
            architecture="KimiVLForConditionalGeneration",
            sizes={},
        ),
        OF_QWEN,
        [(16, 20)],
        _kimi,
    ),
}
