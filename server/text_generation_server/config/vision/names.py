"""Where a checkpoint keeps the tensors of an encoder of images."""

from dataclasses import dataclass
from typing import Literal


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
    qkv_by_head: bool = False
    """Whether queries, keys and values of a head stand side by side in the fused one."""
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
