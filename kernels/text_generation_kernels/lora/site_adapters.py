"""What operators that compute a layer's GEMM and its adapters read of the adapters."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ..runtime.shapes import shapes_error
from .adapter_tiles import TILE_TOKENS
from .lora_expand import lora_expand_torch
from .lora_shrink import empty_shrunk, lora_shrink_torch
from .rank_pages import OUTPUT_BLOCK, RANK_UNITS


@dataclass(frozen=True, slots=True, eq=False)
class SiteAdapters:
    """The pages of a site, and the tables of a step, whose tiles have TILE_TOKENS tokens."""

    a: Tensor
    """[pages, parts, RANK_UNITS, inputs]"""
    b: Tensor
    """[pages, outputs, RANK_UNITS]"""
    scale: Tensor
    """[pages, parts] float32"""
    part_of_block: Tensor | None
    """[blocks of outputs] int32; None: there is one part."""
    run: int
    """Of so many outputs from each multiple of this number on, all belong to one part: a power of two."""
    order: Tensor
    """[tokens] int32"""
    tiles: Tensor
    """[tiles, 4] int32"""
    work: Tensor
    """[items, 2] int32"""
    counts: Tensor
    """[3] int32: the number of the step, 1 to LAST_TURN; tiles and items of work that are not empty."""
    words: Tensor
    """[most] int64, zeros at first, for what thread blocks pass to each other (`shrunk_words.py`)."""
    launch: int
    """The number of the launch within the step, below MOST_LAUNCHES."""

    @property
    def parts(self) -> int:
        """Those of the layer."""
        return self.a.shape[1]

    def check(self, name: str, x: Tensor, outputs: int, splits: int) -> None:
        """Raises ValueError, in the name of an operator, for shapes and layouts that do not fit."""
        blocks = None if self.part_of_block is None else self.part_of_block.numel()
        if (
            self.a.shape[2:] != (RANK_UNITS, x.shape[1])
            or self.b.shape[1:] != (outputs, RANK_UNITS)
            or self.scale.shape != self.a.shape[:2]
            or blocks != (None if self.parts == 1 else -(-outputs // OUTPUT_BLOCK))
            or self.order.shape != x.shape[:1]
            or self.counts.shape != (3,)
        ):
            raise shapes_error(
                name, x=x, a=self.a, b=self.b, scale=self.scale, part_of_block=self.part_of_block, order=self.order
            )
        if (needed := self.words_of(len(self.work), self.parts, splits)) > self.words.numel():
            raise ValueError(f"{name}: words has room for {self.words.numel()}, and must have for {needed}")
        if not all(each[:1].is_contiguous() for each in (self.a, self.b, self.scale)):
            raise ValueError(f"{name}: pages of a, b and scale must be contiguous")

    @staticmethod
    def words_of(items: int, parts: int, splits: int) -> int:
        """The words that so many items of work take."""
        return splits * items * parts * TILE_TOKENS * RANK_UNITS

    def delta(self, x: Tensor) -> Tensor:
        """What adapters add to the outputs of each token, [tokens, outputs] float32, by torch."""
        tables = self.order, self.tiles, self.work
        shrunk = empty_shrunk(x, self.a, self.work)
        lora_shrink_torch(x, self.a, self.scale, *tables, shrunk)
        out = x.new_empty(len(x), self.b.shape[1], dtype=torch.float32)
        lora_expand_torch(shrunk, self.b, self.part_of_block, *tables, out)
        return out
