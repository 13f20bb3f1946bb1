"""Interface between the engine and a model, whatever code computes its layers."""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from ..drafters import Drafter
from ..layers.infer import CacheShape, InferState, RecurrentMixer, StateShape
from ..layers.weights import PrefillCopies, StepAdapters, VocabularyShard
from .adapters import ModelAdapters
from .encoder import Encoder


class CausalLM(Protocol):
    """One rank's shard of a model, immutable once it is built.

    The engine thread owns it. All ranks must call `forward` with the same arguments.
    """

    dtype: torch.dtype
    """The type of weights, caches and logits."""
    device: torch.device
    vocab_size: int
    vocabulary: VocabularyShard
    """The ids whose logits this rank computes."""
    classes: int = 0
    """The classes that a classifier scores; 0: the model generates text."""
    max_context_length: int
    """Tokens of prompt and answer together for which positions exist."""
    caches: Sequence[CacheShape]
    """What each layer with keys and values keeps of a position on this rank."""
    states: Sequence[StateShape]
    """What each recurrent layer keeps of a row on this rank. A model with recurrent layers computes requests from their
    first position on, because the prefix cache holds no states.
    """
    recurrent: Sequence[RecurrentMixer] = ()
    """The mixers of these layers."""
    bytes_per_position: int
    """The bytes of one more position in tables that do not depend on the requests."""
    copies: PrefillCopies
    """The 16-bit copies of this rank's weight-only matrices, which may be made before the first `forward`."""
    dense_macs: int
    """Multiply-accumulates of this rank for each token, without experts, attention and logits; 0: unknown."""
    encoder: Encoder | None = None
    """Turns images into rows of the media pool; None: the model reads text alone."""
    adapters: ModelAdapters | None = None
    """Reads adapters for requests; None: requests of this model can have none."""
    drafter: Drafter | None = None
    """Drafts tokens for speculation; None: there is none."""
    expert_pairs: Tensor | None = None
    """The `ExpertLoad.pairs` of the newest step; None: this rank does not count them."""
    is_captured: bool = True
    """Whether CUDA graphs can hold its steps."""

    def reserve_positions(self, count: int) -> None:
        """Extends the tables to requests of at most `count` tokens. Call it before the first `forward`, and before
        graphs are captured: it replaces a tensor that they read.
        """
        ...

    def forward(self, input_ids: Tensor, state: InferState) -> Tensor:
        """Writes K and V of the new tokens at `state.slots`, updates the states of their rows, and returns the last
        hidden states, normalised, of the tokens that `state.logit_tokens` names: [N, hidden_size].

        `input_ids` is [T] int64, all below `vocab_size`; positions lie below what was reserved. The caller has checked
        both. Raises EngineFailed when another rank is lost.
        """
        ...

    def logits(self, hidden: Tensor, deterministic: bool = False, adapters: StepAdapters | None = None) -> Tensor:
        """Turns [N, hidden_size] into [N, vocabulary.width] of the model's type, or into [N, classes]. One rank
        computes each id, so ranks cannot differ in a last bit. `adapters` are those of the N tokens, where
        `AdapterPool.changes_head`; None: all use the base's head.
        """
        ...
