"""The one encoder of images, put together from a `VisionSpec`."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

import torch
from torch import Tensor

from ..config.vision import VisionSpec
from ..errors import InvalidRequest
from ..layers.infer.vision import Patches, Projector, Segments, ViewOrder, VisionBlock, angles, order_of
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
    kept: dict[int, Tensor] = field(default_factory=dict[int, Tensor])
    """The hidden states that projectors read, by their numbers."""


class VisionEncoder(Encoder):
    """A vision tower with its projectors, whole on every rank."""

    def __init__(self, spec: VisionSpec, weights: VisionWeights) -> None:
        self.layers = spec.tower.blocks
        self.levels = len(spec.levels)
        self.hidden = spec.hidden
        self.token_id = spec.token_id
        self.whole_spans = spec.whole_spans
        self.axes = spec.axes
        self._spec = spec.tower
        self._keeps_class = spec.levels[0].keeps_class
        self._read = {number for level in spec.levels for number in level.reads}
        self._patches = Patches(spec.tower, spec.pixels, weights.patches)
        self._blocks = [VisionBlock(spec.tower.block, each) for each in weights.blocks]
        both = zip(spec.levels, weights.levels, strict=True)
        self._projectors = [Projector(spec.tower, level, each) for level, each in both]

    def rows(self, views: Sequence[tuple[int, int]]) -> int:
        """See `Encoder`."""
        if not views:
            raise InvalidRequest("`views` is empty: an item has at least one")
        return sum(self._rows(index, *view) for index, view in enumerate(views))

    def _rows(self, index: int, height: int, width: int) -> int:
        tower = self._spec
        step = tower.patch * tower.merge
        if height < step or width < step or height % step or width % step:
            raise InvalidRequest(
                f"`views[{index}]` is {height} x {width}: height and width must be multiples of {step}, which is what "
                "becomes one position"
            )
        positions = tower.positions
        if positions is not None and positions.kind == "table":
            side = positions.side * tower.patch
            if (height, width) != (side, side):
                raise InvalidRequest(f"`views[{index}]` is {height} x {width}, but the encoder reads {side} x {side}")
        return (height // step) * (width // step) + (1 if self._keeps_class else 0)

    @torch.inference_mode()
    def begin(self, views: Sequence[Tensor]) -> EncoderState:
        """See `Encoder`."""
        tower = self._spec
        sizes = [(view.shape[0] // tower.patch, view.shape[1] // tower.patch) for view in views]
        orders = [order_of(*size, tower.merge, tower.window) for size in sizes]
        x = torch.cat([self._patches.forward(view, order) for view, order in zip(views, orders, strict=True)])
        before = 1 if tower.class_token else 0
        whole = Segments([order.count + before for order in orders], x.device)
        windows = None
        if tower.window:
            windows = Segments([length for order in orders for length in order.windows], x.device)
        state = VisionState(orders, x, whole, windows, self._rope(orders, x.device))
        self._keep(state, 0)
        return state

    def _rope(self, views: Sequence[ViewOrder], device: torch.device) -> tuple[Tensor, Tensor] | None:
        rope = self._spec.rope
        if rope is None:
            return None
        of_pairs = torch.cat([angles(rope, self._spec.block.head_dim, view) for view in views]).to(device)[:, None]
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
        return torch.stack([each.forward(item.kept, item.views) for each in self._projectors], dim=1)


def load_encoder(spec: VisionSpec, source: WeightSource) -> Encoder | None:
    """Reads the encoder of a model; None where its files have none, as those that somebody trained for text alone.

    Raises ModelFilesError.
    """
    prefixes = vision_prefixes(spec.names, source.has)
    return None if prefixes is None else VisionEncoder(spec, load_vision(source, spec, prefixes))
