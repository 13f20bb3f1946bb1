"""The spec of a vision tower: from patches of pixels to hidden states."""

from dataclasses import dataclass
from typing import Literal

from ..spec import NormSpec

VisionActivation = Literal["quick_gelu", "gelu", "gelu_tanh", "silu", "relu", "softmax"]
"""`quick_gelu` is x * sigmoid(1.702 x), `softmax` is over the last dimension; the others are those of the decoder."""


@dataclass(frozen=True)
class PositionSpec:
    """A table of learned positions, `side` x `side`, and how patches of a view find their rows.

    - "table": a view has exactly so many patches (`TowerSpec.image`).
    - "bilinear": the table is stretched to the view, so that centres of patches at the corners meet.
    - "bilinear corners": the same, so that the corners meet. A view is about as large as the table.
    - "bicubic": the table is stretched to the view, so that the corners meet.
    - "buckets": a patch takes the row in which its corner falls when the view has the size of the table.
    - "axes": there are two tables of `side` rows, of columns and of rows, and a patch has the sum of its two. A view
      has at most so many patches along a side.
    """

    side: int
    kind: Literal["table", "bilinear", "bilinear corners", "bicubic", "buckets", "axes"] = "table"

    @property
    def rows(self) -> int:
        """The rows of the table."""
        return 2 * self.side if self.kind == "axes" else self.side**2


@dataclass(frozen=True)
class VisionRopeSpec:
    """Rotary embedding of row and column, which share the pairs of a head."""

    theta: float
    order: Literal["halves", "alternating", "neighbours", "neighbours by half", "quarters", "thirds"]
    """How pairs of a head are shared.

    - "halves": elements i and i + head_dim / 2 are a pair. Rows have the first half of the pairs, columns the second,
      both with the frequencies of half a head.
    - "alternating": the same, but of the frequencies of a whole head rows have the even and columns the odd ones.
    - "neighbours": stored elements 2i and 2i + 1 are a pair. Columns and rows have every other pair, with the
      frequencies of half a head.
    - "neighbours by half": the same pairs, but columns have the first half of them, rows the second.
    - "quarters": stored elements i and i + head_dim / 4 of each half of a head are a pair. Columns have the first half,
      rows the second, both with the frequencies of half a head.
    - "thirds": of 6 n elements, as many as a head has, i and i + 3 n are a pair. Time has the first n pairs, rows the
      next, columns the last, with the frequencies of 2 n elements. An image is at time 0, and the rest of a head is not
      rotated.
    """
    first: int = 0
    """The number of the first row and column."""

    @staticmethod
    def third(head_dim: int) -> int:
        """The pairs of each axis where three share a head."""
        return head_dim // 6


@dataclass(frozen=True)
class BlockSpec:
    """A block of the tower: attention in both directions, then a feed-forward network, each behind its norm."""

    heads: int
    head_dim: int
    inner: int
    activation: VisionActivation
    norm: NormSpec
    gated: bool = False
    qkv_bias: bool = True
    out_bias: bool = True
    ffn_bias: bool = True
    qk_norm: NormSpec | None = None
    """The norm of queries and keys."""
    qk_norm_by_head: bool = False
    """Whether it is over each head, with one weight for all, and not over all heads together."""
    value_norm: bool = False
    """Whether the same norm, without a weight, is over each value."""
    softmax_scale: float | None = None
    """None: 1 / sqrt(head_dim)."""
    output_norms: bool = False
    """Whether the output of both sublayers is normalised before it is added."""
    clipped: bool = False
    """Whether each matrix has bounds of what it reads and of what it makes."""
    scaled: bool = False
    """Whether the output of both sublayers is multiplied by a learned vector."""


@dataclass(frozen=True)
class TowerSpec:
    """The tower: from patches of `patch` x `patch` pixels to hidden states of them."""

    hidden: int
    patch: int
    blocks: int
    block: BlockSpec
    image: int = 0
    """Pixels along a side of a view; 0: views may have several sizes."""
    merge: int = 1
    """Patches of `merge` x `merge` become one position of the prompt. They stand side by side in all hidden states."""
    frames: int = 1
    """The frames of a patch for which its matrix is stored; an image is so many equal ones."""
    patch_bias: bool = False
    class_token: bool = False
    """Whether a learned vector, with a position of its own, stands before the patches of a view."""
    positions: PositionSpec | None = None
    rope: VisionRopeSpec | None = None
    patch_norm: NormSpec | None = None
    """The norm of patches before they get positions."""
    first_norm: NormSpec | None = None
    """The norm before the first block."""
    window: int = 0
    """Positions along a side of a window; patches attend within windows. 0: to the whole view."""
    whole: tuple[int, ...] = ()
    """With windows: the blocks that attend to the whole view."""

    @property
    def drops_rest(self) -> bool:
        """Whether views are of the size of the table of positions, whose rest that is no patch is not read."""
        return self.positions is not None and self.positions.kind in ("table", "buckets")
