"""The input of a forward pass, besides token ids and weights."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

LOGITS_BLOCK = 64
"""Tokens of one product in decode steps, and of the logits in both kinds of step, in deterministic mode."""
_PREFILL_BLOCK = 256


@dataclass(frozen=True)
class InferState:
    """One step of a batch of B requests with T new tokens, request after request, without padding.

    The prefix `b_` marks tensors with one entry a request. All tensors are on the model's device and belong to the
    engine; a forward pass writes only to the caches, at `slots`.
    """

    is_prefill: bool
    """False: every request has exactly one new token, so T = B."""
    deterministic: bool
    """Results of a request must not depend, to the bit, on which others are in the batch."""
    positions: Tensor
    """[T] int64, position of each new token in its request."""
    slots: Tensor
    """[T] int64, pool slot that receives K and V of each new token."""
    b_row: Tensor
    """[B] int64, row of `slot_table` of each request."""
    b_q_start: Tensor
    """[B + 1] int32, new tokens before each request."""
    b_kv_len: Tensor
    """[B] int32, tokens of each request after this step, cached and new."""
    max_q_len: int
    max_kv_len: int
    slot_table: Tensor
    """[rows, max_total_tokens] int32, slot of each position; valid below `b_kv_len`, new tokens included."""
    k_cache: Sequence[Tensor]
    """One for each layer: [slots, kv_heads of this rank, head_dim]."""
    v_cache: Sequence[Tensor]
    logit_indices: Tensor
    """[N] int64, the new tokens whose logits are wanted; in a decode step all of them, in order."""

    @property
    def linear_block(self) -> int | None:
        """Tokens of one matrix product where results must not depend on the batch; see `Linear.apply`.

        What a prefill computes is never computed by a decode step, so each may have its own size.
        """
        if not self.deterministic:
            return None
        return _PREFILL_BLOCK if self.is_prefill else LOGITS_BLOCK
