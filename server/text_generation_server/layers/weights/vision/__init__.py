"""Weights of vision towers and their projectors, whole on every rank, in the type of the model.

Quantised checkpoints leave the tower as it was: what is stored in fewer bits is refused here.
"""

from collections.abc import Callable

from ....config.vision import VisionNames, VisionSpec
from ....weights import WeightSource
from .projector import ProjectorReader
from .records import (
    Affine,
    BlockWeights,
    Bounds,
    LevelWeights,
    LinearWeights,
    PatchWeights,
    QueryWeights,
    VisionWeights,
)
from .tower import TowerReader


def vision_prefixes(names: VisionNames, has: Callable[[str], bool]) -> tuple[str, str] | None:
    """Returns the prefixes of tower and projector in a checkpoint; None where there is no tower. `has` says whether a
    tensor exists.
    """
    return next((pair for pair in names.prefixes if has(f"{pair[0]}{names.patch}.weight")), None)


def load_vision(source: WeightSource, spec: VisionSpec, prefixes: tuple[str, str]) -> VisionWeights:
    """Reads tower and projectors. Raises ModelFilesError."""
    tower, projector = TowerReader(source, spec.names, *prefixes), ProjectorReader(source, spec.names, *prefixes)
    blocks = tuple(tower.block(index, spec.tower) for index in range(spec.tower.blocks))
    levels = tuple(projector.level(each, spec.tower) for each in spec.levels)
    newline = projector.newline(spec.hidden) if spec.tiles is not None else None
    marks = None if spec.marks is None else projector.marks(spec.marks, spec.hidden)
    return VisionWeights(tower.patches(spec.tower), blocks, levels, newline, marks)


__all__ = [
    "Affine",
    "BlockWeights",
    "Bounds",
    "LevelWeights",
    "LinearWeights",
    "PatchWeights",
    "QueryWeights",
    "VisionWeights",
    "load_vision",
    "vision_prefixes",
]
