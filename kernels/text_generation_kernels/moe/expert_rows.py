"""The rows of a GEMM of experts."""

from typing import NamedTuple

from torch import Tensor


class ExpertRows(NamedTuple):
    """The rows of a GEMM of experts, and its epilogue."""

    ids: Tensor
    """[tokens, slots] int32: the expert of each row."""
    alignment: tuple[Tensor, Tensor, Tensor] | None
    """What `moe_align` makes for tiles of `height` rows; None for direct tiles."""
    weights: Tensor | None
    """[tokens, slots] float32, by which down multiplies; None for up."""
    activation: str | None
    """Of up; None for down."""
    height: int
    held: int | None = None
    """How many experts this rank has, where others have some."""
    adds: bool = False
    """Whether a sum over the experts of a token is added to what is in `out`."""
    delta: Tensor | None = None
    """[rows, outputs], what adapters add before the epilogue, in the order of the alignment; not for direct tiles."""
