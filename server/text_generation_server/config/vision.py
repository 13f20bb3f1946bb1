"""The spec of an encoder of images, as data: a vision tower, and projectors from its hidden states to the decoder's.

A family (`families/vision/`) turns a `config.json` into a `VisionSpec`. The router resizes images; a view is what it
sends: a part of an image, or all of it, of a size that the encoder reads.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from .pixels import PixelSpec
from .spec import NormSpec

VisionActivation = Literal["quick_gelu", "gelu", "gelu_tanh", "silu", "relu", "softmax"]
"""`quick_gelu` is x * sigmoid(1.702 x), `softmax` is over the last dimension; the others are those of the decoder."""
Join = Literal["patches", "channels", "mean"]
"""How patches that are merged become one position: one after the other, channel by channel, or as their mean."""


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


@dataclass(frozen=True)
class LinearSpec:
    """A linear layer of a projector; `weight` and `bias` are whole names behind the projector's prefix."""

    weight: str
    outputs: int
    bias: str | None = None
    activation: VisionActivation | None = None
    """What follows it."""
    transposed: bool = False
    """Whether it is stored [inputs, outputs]."""
    rest: int = 0
    """Where it is: further rows, which it does not read."""
    patches: int = 0
    """The side of the patches that it joins, where it is stored as a convolution of them; 0: it is not."""
    norm: NormSpec | None = None
    """The norm of its output, before the activation."""
    norm_name: str = ""
    gate: str = ""
    """The whole name of the matrix of a gate, which has the activation and multiplies the output; empty: none."""


@dataclass(frozen=True)
class QuerySpec:
    """Learned queries, each of which attends to all patches of a view and becomes a position (Aria, 2024).

    Patches are normalised and make keys and values. What comes out goes through a matrix.
    """

    heads: int
    counts: Mapping[int, int]
    """How many of the queries there are, by the patches along the longer side of a view."""
    norm: NormSpec
    """Of queries, and of patches."""


@dataclass(frozen=True)
class LevelSpec:
    """A projector: from hidden states of the tower to one level of the encoder's output."""

    reads: tuple[int, ...]
    """The hidden states that it reads side by side: 0 is before the first block, n behind block n - 1."""
    linears: tuple[LinearSpec, ...]
    last_norm: NormSpec | None = None
    """The norm of the tower's last hidden states."""
    norm: NormSpec | None = None
    """The norm of patches, before they are joined."""
    of_patches: tuple[LinearSpec, ...] = ()
    """Linear layers of patches, behind that norm."""
    halvings: tuple[str, ...] = ()
    """In place of joining: convolutions of 3 x 3, with a bias, each of which halves height and width and doubles the
    channels. Their names, behind the tower's prefix.
    """
    queries: QuerySpec | None = None
    """In place of joining."""
    join: Join = "patches"
    factor: float = 1.0
    """Factor of what is joined."""
    standardised: bool = False
    """Whether a learned vector is subtracted from it then, and another one multiplies it. Both, and the factor, are
    applied in float32.
    """
    joined_norm: NormSpec | None = None
    """The norm behind that."""
    norm_name: str = "norm"
    """Of both."""
    keeps_class: bool = False
    """Whether the class token takes a position of the prompt."""

    def inputs(self, tower: TowerSpec) -> int:
        """Returns the inputs of the first linear layer behind the join."""
        width = self.of_patches[-1].outputs if self.of_patches else tower.hidden * len(self.reads)
        if self.halvings:
            return width * 2 ** len(self.halvings)
        return width if self.join == "mean" else width * tower.merge**2


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
class VisionNames:
    """Names of the tower's tensors; those that say so are whole names, the others lack `.weight` and `.bias`, or, where
    they end with `_`, `weight` and `bias`.
    """

    prefixes: tuple[tuple[str, str], ...]
    """Prefixes of tower and projector that a checkpoint may use; the first pair with a matrix of patches counts."""
    patch: str = "embeddings.patch_embedding"
    class_token: str = "embeddings.class_embedding"
    """Whole, as the next one."""
    positions: str = "embeddings.position_embedding.weight"
    dimensions: int = 0
    """Of both, with those of one element that stand in front; 0: there are none."""
    patch_layout: Literal["convolution", "channels first", "channels last"] = "convolution"
    """How the matrix of patches is stored: as one of a linear layer in the order channel, row, column, or row, column,
    channel, where it is not a convolution.
    """
    class_last: bool = False
    """Whether the position of the class token is the last one of the table."""
    positions_in_rows: bool = False
    """Whether the table is stored [side, side, hidden], or [2, side, hidden]."""
    patch_norm: str = ""
    first_norm: str = "pre_layrnorm"
    last_norm: str = "post_layernorm"
    block: str = "encoder.layers.{}."
    """`{}` is the number of the block. What follows is relative to it."""
    norms: tuple[str, str] = ("layer_norm1", "layer_norm2")
    output_norms: tuple[str, str] = ("", "")
    qkv: tuple[str, ...] = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    """Three matrices, or the fused one."""
    qk_norms: tuple[str, str] = ("self_attn.q_norm", "self_attn.k_norm")
    out: str = "self_attn.out_proj"
    first: tuple[str, ...] = ("mlp.fc1",)
    """The first matrix of the feed-forward network, or gate and up."""
    second: str = "mlp.fc2"
    scales: tuple[str, str] = ("lambda_1", "lambda_2")
    """Whole."""
    clipped: str = ".linear"
    """The end of names of matrices with bounds, whose own names lack it."""
    standard: tuple[str, str] = ("std_bias", "std_scale")
    """Whole."""
    beside: str = "multi_modal_projector."
    """The end of a projector's prefix that other tensors of the whole model lack."""
    ignored: tuple[str, ...] = ()
    """Patterns of whole names that checkpoints hold though nothing needs them."""


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
        total = 0 if level.queries is None else 3 * before**2
        total += sum(9 * before**2 * 2 * 4**index for index in range(len(level.halvings)))
        for inputs, linears in ((before, level.of_patches), (level.inputs(self.tower), level.linears)):
            for linear in linears:
                total += inputs * linear.outputs * (2 if linear.gate else 1)
                inputs = linear.outputs
        return total
