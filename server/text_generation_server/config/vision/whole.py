"""The spec of a whole encoder of images: a vision tower with its projectors, and what stands between their results."""

from dataclasses import dataclass

from ..pixels import PixelSpec
from .names import VisionNames
from .projector import LevelSpec
from .tower import TowerSpec


@dataclass(frozen=True)
class TileSpec:
    """How tiles of a large image become positions (LLaVA-NeXT, 2024): the patches of all tiles are put together, those
    of a frame that only fills the tiles are left out, and a learned position stands behind each row.

    The first view is the whole image, made smaller, and its positions come first. The second is the image with its
    frame, before it is cut into tiles.
    """

    tiles: int = 0
    """Where there are more patches than this many tiles have (by more than a tenth in height and width), they are
    resized to as many. 0: never."""


@dataclass(frozen=True)
class MarkSpec:
    """Positions between the tiles of a large image (Ovis 2, 2024), each a learned vector: before and behind the whole
    image, between columns and rows of tiles, and at the end. The first view is the whole image, made smaller; the
    second, where there is one, is the image before it is cut.
    """

    weight: str
    """Whole name, behind the projector's prefix, of the matrix whose last rows they are, in this order."""
    rows: int


@dataclass(frozen=True)
class VisionSpec:
    """A whole encoder of images."""

    tower: TowerSpec
    levels: tuple[LevelSpec, ...]
    """The first takes the place of token embeddings; the others are added behind the first layers of the decoder."""
    names: VisionNames
    pixels: PixelSpec
    token_id: int
    """The placeholder in prompts."""
    whole_spans: bool = False
    """Whether tokens of an image attend to each other in both directions."""
    own_matrices: bool = False
    """Whether tokens of an image pass matrices of their own in the decoder (partial LoRA)."""
    axes: bool = False
    """Whether positions count along axes (M-RoPE)."""
    tiles: TileSpec | None = None
    marks: MarkSpec | None = None
    scale: float = 1.0
    """Factor of what the decoder reads. Most decoders scale token embeddings alone, where they scale them."""
    origin: str = ""
    """The model whose weights the tower has, where files may lack them."""
    unread: tuple[str, ...] = ()
    """Patterns of names, behind the tower's prefix, of what lies behind the last block that anybody reads."""

    @property
    def hidden(self) -> int:
        """The width of the decoder's hidden states."""
        return self.levels[0].linears[-1].outputs

    @property
    def matrix_elements(self) -> int:
        """The elements of all matrices."""
        tower, block = self.tower, self.tower.block
        width, positions = block.heads * block.head_dim, tower.positions
        each = 4 * tower.hidden * width + (3 if block.gated else 2) * tower.hidden * block.inner
        table = 0 if positions is None else positions.rows
        first = tower.hidden * (3 * tower.patch**2 + table)
        return first + tower.blocks * each + sum(self._projector_elements(level) for level in self.levels)

    def _projector_elements(self, level: LevelSpec) -> int:
        before = self.tower.hidden * len(level.reads)
        total = 0 if level.queries is None else 4 * level.inputs(self.tower) ** 2
        total += sum(9 * before**2 * 2 * 4**index for index in range(len(level.halvings)))
        for inputs, linears in ((before, level.of_patches), (level.inputs(self.tower), level.linears)):
            for linear in linears:
                total += inputs * linear.outputs * (2 if linear.gate else 1)
                inputs = linear.outputs
        return total
