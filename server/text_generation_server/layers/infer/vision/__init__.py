"""What vision towers and projectors compute. Nothing here depends on the other items of a step."""

from .block import VisionBlock
from .marks import MarkedTiles
from .order import ViewOrder, order_of
from .patches import Patches
from .positions import angles
from .projector import Projector
from .segments import Segments
from .tiles import Tiles

__all__ = ["MarkedTiles", "Patches", "Projector", "Segments", "Tiles", "ViewOrder", "VisionBlock", "angles", "order_of"]
