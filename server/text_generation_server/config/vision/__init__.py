"""The spec of an encoder of images, as data: a vision tower, and projectors from its hidden states to the decoder's.

A family (`families/vision/`) turns a `config.json` into a `VisionSpec`. The router resizes images; a view is what it
sends: a part of an image, or all of it, of a size that the encoder reads.
"""

from .names import VisionNames
from .projector import LevelSpec, LinearSpec, QuerySpec
from .tower import BlockSpec, PositionSpec, TowerSpec, VisionActivation, VisionRopeSpec
from .whole import MarkSpec, TileSpec, VisionSpec

__all__ = [
    "BlockSpec",
    "LevelSpec",
    "LinearSpec",
    "MarkSpec",
    "PositionSpec",
    "QuerySpec",
    "TileSpec",
    "TowerSpec",
    "VisionActivation",
    "VisionNames",
    "VisionRopeSpec",
    "VisionSpec",
]
