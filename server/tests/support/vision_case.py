"""A tiny random model for images, and what transformers makes of views of them."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.image_processing_utils import select_best_resolution
from transformers.models.llava_next.modeling_llava_next import unpad_image

from support.families import SIZES, Case, Relayout, made, write
from support.vision_inputs import MEAN, PROCESSOR, STD, TOKEN, Inputs, Item, MakeInputs, View


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
    pack: Callable[[Any, Item], Tensor] | None = None
    """What stands in the prompt, made of the results of the class, where that is more than features of views."""
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
    if case.pack is not None:
        return case.pack(out, item)[:, None]
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
        if case.pack is not None:
            return model.lm_head(model.model.language_model(inputs_embeds=embedded, use_cache=False)[0])[0]
        return model.language_model(inputs_embeds=embedded, use_cache=False).logits[0]
    types = {case.token_types: (tokens == TOKEN).long()} if case.token_types else {}
    return model(tokens, use_cache=False, **inputs_of(case, model, views, item), **types).logits[0]


def case(
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


def items(*items: Sequence[View]) -> Sequence[Item]:
    return [Item(views) for views in items]


ONE = items([(16, 16)], [(16, 16)] * 3)
ANY = items([(16, 24)], [(8, 16)], [(40, 16)], [(16, 16)] * 2)
OF_QWEN = items([(16, 24)], [(8, 8)], [(40, 56)], [(8, 40)], [(24, 32), (16, 16), (8, 8)])
OF_GEMMA4 = items([(16, 24)], [(8, 8)], [(40, 56)], [(8, 40)], [(24, 32)] * 2)
PINPOINTS = [[16, 32], [32, 16], [32, 32], [16, 48], [48, 16], [48, 64]]


def tiled(*originals: View, pinpoints: list[list[int]] = PINPOINTS, side: int = 16) -> Sequence[Item]:
    """Images of these sizes, cut into tiles of so many pixels along a side, with 4 x 4 patches."""
    items: list[Item] = []
    for size in originals:
        canvas = select_best_resolution(size, pinpoints)
        whole = torch.zeros(1, *(4 * pixels // side for pixels in canvas))
        height, width = unpad_image(whole, size).shape[1:]
        items.append(Item([(side, side), canvas], (height, width), size))
    return items
