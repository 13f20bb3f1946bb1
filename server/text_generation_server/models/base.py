"""Interface between the engine and a model, however its layers are made."""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from ..layers.infer import CacheShape, InferState, StateShape
from ..layers.weights import PrefillCopies, VocabularyShard


class CausalLM(Protocol):
    """One rank's part of a model, read only once built.

    Owned by the engine thread. With more than one rank, all ranks must call `forward` with the same arguments.
    """

    dtype: torch.dtype
    """Of weights, caches and logits."""
    device: torch.device
    vocab_size: int
    vocabulary: VocabularyShard
    """The ids whose logits this rank computes."""
    max_context_length: int
    """Tokens of prompt and answer together for which positions exist."""
    caches: Sequence[CacheShape]
    """What each layer with keys and values keeps of a position on this rank."""
    states: Sequence[StateShape]
    """What each recurrent layer keeps of a row on this rank. Where there are any, a request is computed from its first
    position on, for what is known of a prefix has no state.
    """
    bytes_per_position: int
    """What one more position takes in tables that do not depend on the requests."""
    copies: PrefillCopies
    """Of this rank's matrices of few bits, which may be made before the first `forward`."""
    dense_macs: int
    """Multiplications of this rank for each token, but for experts, attention and logits; 0: not known."""

    def reserve_positions(self, count: int) -> None:
        """Makes room for requests of at most `count` tokens. Call it before the first `forward`, and before graphs are
        captured: it replaces a tensor that they read.
        """
        ...

    def forward(self, input_ids: Tensor, state: InferState) -> Tensor:
        """Writes K and V of the new tokens at `state.slots`, moves the states of their rows on, and returns the last
        hidden states, normalised, of those tokens that `state.logit_tokens` names: [N, hidden_size].

        `input_ids` is [T] int64, all below `vocab_size`; positions lie below what was
        reserved. Both are for the caller to check. Raises EngineFailed when another rank is lost.
        """
        ...

    def logits(self, hidden: Tensor, deterministic: bool = False) -> Tensor:
        """[N, hidden_size] to [N, vocabulary.width] of the model's type. Each id is computed by one rank, so ranks
        cannot differ in a last bit.
        """
        ...
