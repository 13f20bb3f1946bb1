"""Media (images) in a step: new tokens that read rows of the media pool in place of rows of the token embedding."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class MediaInput:
    """What an encoder has made of media, and which new tokens of a step read it. Shapes do not depend on how many do,
    so that a CUDA graph can replay a step for other contents.
    """

    pool: Tensor
    """[rows, levels, hidden]: level 0 takes the place of the token's embedding; level i + 1 is added to the residual
    stream after layer i (DeepStack).
    """
    rows: Tensor
    """[T] int64, the row of each new token; of text any."""
    present: Tensor
    """[T, 1] bool: whether it reads its row."""
    own_matrices: bool = False
    """Whether tokens that do pass matrices of their own, and at least one does."""

    @classmethod
    def split(cls, ids: Tensor, pool: Tensor, own_matrices: bool = False) -> "tuple[Tensor, MediaInput]":
        """Splits ids [T] int64, of which `-1 - r` stands for row r of the pool, into token ids and the rest. Where a
        row is read the token id is 0.
        """
        return ids.clamp(min=0), cls(pool, (-1 - ids).clamp_(min=0), (ids < 0)[:, None], own_matrices)

    def embed(self, x: Tensor) -> Tensor:
        """Returns the embeddings [T, hidden] with rows of the pool where they are read."""
        return torch.where(self.present, self.pool[:, 0].index_select(0, self.rows), x)

    def deepen(self, layer: int, residual: Tensor) -> None:
        """Adds what belongs after a layer to the residual stream [T, hidden]."""
        if layer + 1 < self.pool.shape[1]:
            added = self.pool[:, layer + 1].index_select(0, self.rows)
            residual.add_(added.masked_fill_(~self.present, 0.0))
