"""The requests of an attention call: their new tokens, and where the keys and values of their contexts lie.

The engine owns all tensors. It makes one record of each kind for a step, which all layers read.
"""

from dataclasses import dataclass

from torch import Tensor

MAX_WIDTH = 32
"""The most tokens of a request of `Decodes`: fewer than positions of a chunk of decode attention."""


@dataclass(frozen=True, slots=True, eq=False)
class Decodes:
    """D tokens of requests in decode: the first D tokens of the step, `width` of each request. Padding has length 0."""

    slot_table: Tensor
    """[rows, positions] int32, the slot of each position; valid below `kv_lens`."""
    rows: Tensor
    """[D] int64, the row of `slot_table` of each token's request."""
    kv_lens: Tensor
    """[D] int32, the tokens that each attends to, itself included. Contiguous, as `rows` are."""
    max_kv_len: int
    """An upper bound of `kv_lens`, by which the host chooses grids."""
    width: int = 1
    """Successive tokens of one request: its row is the same for all, and the first few attend to one position more each
    than the token before. The others of them are padding.
    """

    @property
    def is_cuda(self) -> bool:
        """Whether the tensors are on a GPU."""
        return self.rows.is_cuda

    def check(self, name: str) -> None:
        """Raises ValueError for rows and lengths that kernels cannot read."""
        if not self.rows.is_contiguous() or not self.kv_lens.is_contiguous():
            raise ValueError(f"{name}: rows and kv_lens must be contiguous")


def tokens_of_a_request(name: str, batch: Decodes, tokens: int, deterministic: bool) -> int:
    """Tokens of a request that a kernel computes together: one where `deterministic`, because the bits of a token would
    depend on those beside it. Raises ValueError for a width that does not fit, and for rows that kernels cannot read.
    """
    batch.check(name)
    if not 1 <= batch.width <= MAX_WIDTH or tokens % batch.width:
        raise ValueError(f"{name}: {tokens} tokens do not make requests of {batch.width} tokens (1 to {MAX_WIDTH})")
    return 1 if deterministic else batch.width


@dataclass(frozen=True, slots=True, eq=False)
class Chunks:
    """C requests with any number of new tokens each, which are the last of its tokens. A chunk may be empty."""

    slot_table: Tensor
    """[rows, positions] int32, the slot of each position; valid below `kv_lens`."""
    rows: Tensor
    """[C] int64, the row of `slot_table` of each request."""
    starts: Tensor
    """[C + 1] int32, the token of the step at which each chunk begins, and where the last chunk ends."""
    kv_lens: Tensor
    """[C] int32, the tokens of each request, cached and new. Nothing is read or written for a request of length 0."""
    max_len: int
    """About the length of the longest chunk, by which the host chooses tiles."""
    seen_ends: Tensor | None = None
    """[T] int64, the end of the positions that each new token of the step attends to, where some attend to later ones
    (`span_attention.py`). None: each attends to those before it, and itself.
    """
