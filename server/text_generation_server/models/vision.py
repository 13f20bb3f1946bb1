"""The one encoder of images, put together from a `VisionSpec`."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import isqrt
from typing import cast

import torch
from torch import Tensor
from torch.nn import functional

from ..config.model import ModelConfig
from ..config.vision import QuerySpec, VisionSpec
from ..errors import InvalidRequest, ModelFilesError
from ..layers.infer.vision import (
    MarkedTiles,
    Patches,
    Projector,
    Segments,
    Tiles,
    ViewOrder,
    VisionBlock,
    angles,
    order_of,
)
from ..layers.weights.vision import VisionWeights, load_vision, vision_prefixes
from ..weights import WeightSource
from .encoder import Encoder, EncoderState

logger = logging.getLogger(__name__)


@dataclass
class VisionState:
    """One item on its way through the tower."""

    views: list[ViewOrder]
    x: Tensor
    """[S, hidden]: the residual stream of all views, one after the other."""
    whole: Segments
    windows: Segments | None
    rope: tuple[Tensor, Tensor] | None
    cut: tuple[int, int] | None
    """The size of the view that was cut into tiles."""
    grid: tuple[int, int]
    kept: dict[int, Tensor] = field(default_factory=dict[int, Tensor])
    """The hidden states that projectors read, by their numbers."""


class VisionEncoder(Encoder):
    """A vision tower with its projectors, whole on every rank."""

    ignored: tuple[str, ...]
    """Patterns of names of tensors that its files hold though nothing needs them."""

    def __init__(self, spec: VisionSpec, weights: VisionWeights, prefix: str) -> None:
        """`prefix` is that of the tower's tensors."""
        self.ignored = (*spec.names.ignored, *(f"{prefix}{each}" for each in spec.unread))
        self.layers = spec.tower.blocks
        self.levels = len(spec.levels)
        self.hidden = spec.hidden
        self.token_id = spec.token_id
        self.whole_spans = spec.whole_spans
        self.own_matrices = spec.own_matrices
        self.axes = spec.axes
        self.packs = spec.tiles is None and weights.marks is None
        self._spec = spec.tower
        self._scale = spec.scale
        self._queries = spec.levels[0].queries
        self._keeps_class = spec.levels[0].keeps_class
        self._read = {number for level in spec.levels for number in level.reads}
        self._patches = Patches(spec.tower, spec.pixels, weights.patches)
        self._blocks = [VisionBlock(spec.tower.block, each) for each in weights.blocks]
        self._tiles: Tiles | MarkedTiles | None = None
        if weights.marks is not None:
            side = spec.tower.image // spec.tower.patch // spec.tower.merge
            self._tiles = MarkedTiles(spec.tower.image, side, weights.marks)
        if spec.tiles is not None and weights.newline is not None:
            self._tiles = Tiles(spec.tiles, spec.tower.image, spec.tower.image // spec.tower.patch, weights.newline)
        both = zip(spec.levels, weights.levels, strict=True)
        self._projectors = [Projector(spec.tower, level, each) for level, each in both]

    def rows(self, views: Sequence[tuple[int, int]], grid: tuple[int, int] = (0, 0)) -> int:
        """See `Encoder`."""
        if not views:
            raise InvalidRequest("`views` is empty: an item has at least one")
        if self._tiles is not None:
            return self._tiles.rows(views, grid)
        step = self._spec.patch * self._spec.merge
        if self._queries is not None:
            return sum(self._asked(self._queries, index, *view) for index, view in enumerate(views))
        total = sum(self._rows(index, *view) for index, view in enumerate(views))
        if self.axes and grid != (0, 0) and [grid] != [(height // step, width // step) for height, width in views]:
            raise InvalidRequest(
                f"`grid_height` x `grid_width` is {grid[0]} x {grid[1]}: it must be the positions of the one view"
            )
        return total

    def _check_fixed(self, index: int, height: int, width: int) -> None:
        if (image := self._spec.image) and (height, width) != (image, image):
            raise InvalidRequest(f"`views[{index}]` is {height} x {width}, but the encoder reads {image} x {image}")

    def _rows(self, index: int, height: int, width: int) -> int:
        tower, keeps_class = self._spec, 1 if self._keeps_class else 0
        self._check_fixed(index, height, width)
        # Towers of one size leave out a rest of the view that is no patch.
        step = tower.merge if tower.drops_rest else tower.merge * tower.patch
        sides = [side // tower.patch if tower.drops_rest else side for side in (height, width)]
        if min(sides) < step or any(side % step for side in sides):
            raise InvalidRequest(
                f"`views[{index}]` is {height} x {width}: height and width must be multiples of "
                f"{tower.merge * tower.patch}, the side of one position"
            )
        if (positions := tower.positions) is not None and positions.kind == "axes":
            most = positions.side * tower.patch
            if max(height, width) > most:
                raise InvalidRequest(f"`views[{index}]` is {height} x {width}, and a side has at most {most} pixels")
        return sides[0] // step * (sides[1] // step) + keeps_class

    def _asked(self, queries: QuerySpec, index: int, height: int, width: int) -> int:
        patch = self._spec.patch
        self._check_fixed(index, height, width)
        if queries.of_any_size and (min(height, width) < patch or height % patch or width % patch):
            raise InvalidRequest(
                f"`views[{index}]` is {height} x {width}: height and width must be multiples of {patch}, the side of a "
                "patch"
            )
        sides = height // patch, width // patch
        if min(sides) < 1 or (count := queries.count(max(sides))) is None:
            known = " or ".join(str(patch * side) for side in sorted(queries.counts))
            raise InvalidRequest(f"`views[{index}]` is {height} x {width}: the longer side must have {known} pixels")
        return count

    def sample(self, pixels: int) -> Sequence[tuple[int, int]]:
        """See `Encoder`."""
        if self._tiles is not None:
            return self._tiles.sample(pixels)
        tower, step = self._spec, self._spec.patch * self._spec.merge
        side = tower.image
        if self._queries is not None:
            known = sorted(tower.patch * each for each in self._queries.counts)
            side = next((each for each in reversed(known) if each**2 <= pixels), known[0])
        if not side and tower.positions is not None and tower.positions.kind in ("buckets", "bilinear corners"):
            side = tower.positions.side * tower.patch // step * step
        if side:
            return [(side, side)] * max(1, pixels // side**2)
        if tower.positions is not None and tower.positions.kind == "axes":
            pixels = min(pixels, (tower.positions.side * tower.patch) ** 2)
        side = max(1, isqrt(pixels) // step) * step
        return [(side, side)]

    @torch.inference_mode()
    def begin(self, views: Sequence[Tensor], grid: tuple[int, int] = (0, 0)) -> EncoderState:
        """See `Encoder`."""
        tower, cut = self._spec, None
        if self._tiles is not None:
            cut = (views[1].shape[0], views[1].shape[1]) if len(views) > 1 else None
            views = self._tiles.cut(views)
        sizes = [(view.shape[0] // tower.patch, view.shape[1] // tower.patch) for view in views]
        orders = [order_of(*size, tower.merge, tower.window) for size in sizes]
        x = torch.cat([self._patches.forward(view, order) for view, order in zip(views, orders, strict=True)])
        before = 1 if tower.class_token else 0
        whole = Segments([order.count + before for order in orders])
        windows = None
        if tower.window:
            windows = Segments([length for order in orders for length in order.windows])
        state = VisionState(orders, x, whole, windows, self._rope(orders, x.device), cut, grid)
        self._keep(state, 0)
        return state

    def _rope(self, views: Sequence[ViewOrder], device: torch.device) -> tuple[Tensor, Tensor] | None:
        rope = self._spec.rope
        if rope is None:
            return None
        of_views = [angles(rope, self._spec.block.head_dim, view) for view in views]
        if self._spec.class_token:
            # It is nowhere, so nothing rotates it.
            of_views = [functional.pad(each, (0, 0, 1, 0)) for each in of_views]
        of_pairs = torch.cat(of_views).to(device)
        return of_pairs.cos(), of_pairs.sin()

    @torch.inference_mode()
    def run(self, state: EncoderState, first: int, count: int) -> None:
        """See `Encoder`."""
        item = cast("VisionState", state)
        for index in range(first, first + count):
            is_whole = item.windows is None or index in self._spec.whole
            segments = item.whole if is_whole or item.windows is None else item.windows
            item.x = self._blocks[index].forward(item.x, segments, item.rope)
            self._keep(item, index + 1)

    def _keep(self, state: VisionState, number: int) -> None:
        if number in self._read:
            state.kept[number] = state.x

    @torch.inference_mode()
    def finish(self, state: EncoderState) -> Tensor:
        """See `Encoder`."""
        item = cast("VisionState", state)
        levels = [each.forward(item.kept, item.views) for each in self._projectors]
        if self._tiles is not None:
            levels = [self._tiles.pack(level, item.cut, item.grid) for level in levels]
        rows = torch.stack(levels, dim=1)
        return rows if self._scale == 1.0 else rows * self._scale


def load_encoder(config: ModelConfig, source: WeightSource) -> VisionEncoder | None:
    """Reads the encoder of a model. None where images are refused; the log says why. Text is served all the same: files
    may have no tower, or one that somebody has quantised.
    """
    if config.vision is None:
        # It is empty where nobody asked for images: a model that drafts reads text.
        if config.text_alone:
            logger.warning("images are refused: %s", config.text_alone)
        return None
    prefixes = vision_prefixes(config.vision.names, source.has)
    if prefixes is None:
        origin = (
            config.vision.origin and f"; it is {config.vision.origin}, which a converted copy of the model may have"
        )
        logger.warning("images are refused: the files of the model hold no vision tower%s", origin)
        return None
    try:
        return VisionEncoder(config.vision, load_vision(source, config.vision, prefixes), prefixes[0])
    except ModelFilesError as error:
        logger.warning("images are refused, as the vision tower cannot be read: %s", error)
        return None
