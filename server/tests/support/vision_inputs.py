"""What the classes of transformers take of an image, made of the views that the router sends."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.image_utils import OPENAI_CLIP_MEAN, OPENAI_CLIP_STD

View = tuple[int, int]
"""Height and width."""


@dataclass(frozen=True)
class Item:
    """An image, as the router sends it."""

    views: Sequence[View]
    grid: View = (0, 0)
    original: View = (0, 0)


Inputs = dict[str, Any]
MakeInputs = Callable[[PreTrainedModel, Sequence[Tensor], Item], Inputs]
"""From the model and the normalised views [3, height, width] of an item to what transformers' class takes."""

MEAN, STD = (0.48, 0.46, 0.41), (0.27, 0.26, 0.28)
PROCESSOR = {"rescale_factor": 1 / 255, "image_mean": MEAN, "image_std": STD}
TOKEN = 90


def same_size(_: PreTrainedModel, views: Sequence[Tensor], __: Item) -> Inputs:
    return {"pixel_values": torch.stack(list(views))}


def as_list(_: PreTrainedModel, views: Sequence[Tensor], __: Item) -> Inputs:
    return {"pixel_values": list(views)}


def with_sizes(_: PreTrainedModel, views: Sequence[Tensor], __: Item) -> Inputs:
    sizes = torch.tensor([view.shape[1:] for view in views])
    return {"pixel_values": torch.stack(list(views)), "image_sizes": sizes}


def tiles(_: PreTrainedModel, views: Sequence[Tensor], __: Item) -> Inputs:
    return {"pixel_values": torch.stack(list(views))[None]}


def qwen(model: PreTrainedModel, views: Sequence[Tensor], _: Item) -> Inputs:
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


def kimi_patches(model: PreTrainedModel, views: Sequence[Tensor], _: Item) -> Inputs:
    side = model.config.vision_config.patch_size
    patches, grids = [], []
    for view in views:
        down, across = view.shape[1] // side, view.shape[2] // side
        blocks = view.reshape(3, down, side, across, side).permute(1, 3, 0, 2, 4)
        patches.append(blocks.reshape(-1, 3, side, side))
        grids.append([1, down, across])
    return {"pixel_values": torch.cat(patches), "image_grid_thw": torch.tensor(grids)}


def gemma4_patches(model: PreTrainedModel, views: Sequence[Tensor], _: Item) -> Inputs:
    side = model.config.vision_config.patch_size
    patches, places = [], []
    for view in views:
        down, across = view.shape[1] // side, view.shape[2] // side
        blocks = view.reshape(3, down, side, across, side).permute(1, 3, 2, 4, 0)
        patches.append(blocks.reshape(down * across, -1))
        numbers = torch.arange(down * across)
        places.append(torch.stack([numbers % across, numbers // across], dim=1))
    return {"pixel_values": torch.stack(patches), "image_position_ids": torch.stack(places)}


def with_tiles(_: PreTrainedModel, views: Sequence[Tensor], item: Item) -> Inputs:
    side = views[0].shape[1]
    tiles = [tile for row in views[1].split(side, 1) for tile in row.split(side, 2)] if len(views) > 1 else []
    single = {} if tiles else {"batch_num_images": torch.tensor([2])}
    sizes = torch.tensor([item.original])
    return {"pixel_values": torch.stack([views[0], *tiles])[None], "image_sizes": sizes, **single}


def coarse(_: PreTrainedModel, views: Sequence[Tensor], __: Item) -> Inputs:
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


def as_clip(model: PreTrainedModel, views: Sequence[Tensor], item: Item) -> Inputs:
    return same_size(model, _by_clip(views), item)


def next_as_clip(model: PreTrainedModel, views: Sequence[Tensor], item: Item) -> Inputs:
    return with_tiles(model, _by_clip(views), item)


def filled_up(model: PreTrainedModel, views: Sequence[Tensor], _: Item) -> Inputs:
    """As the processor of Aria fills views up to squares, with a mask of what is no filling."""
    side = max(views[0].shape[1:])
    pixels, mask = torch.zeros(len(views), 3, side, side), torch.zeros(len(views), side, side, dtype=torch.bool)
    for index, view in enumerate(views):
        pixels[index, :, : view.shape[1], : view.shape[2]] = view
        mask[index, : view.shape[1], : view.shape[2]] = True
    return {"pixel_values": pixels, "pixel_mask": mask}


def whole_last(_: PreTrainedModel, views: Sequence[Tensor], __: Item) -> Inputs:
    """The tiles of Step 3.7, and the whole image behind them."""
    *tiles, whole = views
    local = {"pixel_values_local": torch.stack(tiles)} if tiles else {}
    return {"pixel_values": whole[None], "num_local_patches": torch.tensor([len(tiles)]), **local}


def cut_into_tiles(_: PreTrainedModel, views: Sequence[Tensor], __: Item) -> Inputs:
    """The first view, and the tiles of the second one."""
    side = views[0].shape[1]
    tiles = [tile for row in views[1].split(side, 1) for tile in row.split(side, 2)] if len(views) > 1 else []
    return {"pixel_values": torch.stack([views[0], *tiles])}


def with_marks(out: Any, item: Item) -> Tensor:
    """The features of Ovis 2 as its processor lays their placeholders out."""
    start, grid, column, row, end = out.visual_indicator_features.split(1)
    base, *tiles = out.pooler_output
    parts = [start, base, grid]
    across = item.views[1][1] // item.views[0][1] if tiles else 1
    for index, tile in enumerate(tiles):
        if index % across:
            parts.append(column)
        elif index:
            parts.append(row)
        parts.append(tile)
    return torch.cat([*parts, end])
