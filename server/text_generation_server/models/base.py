"""What every family has in common: a part before the transformer layers, the layers, a part after."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ..config.model import ModelConfig
from ..layers.infer import InferState, PostLayer, PreLayer, TransformerLayer
from ..layers.rope import RopeTable


class CausalLM:
    """One rank's part of a model, read only once built.

    Owned by the engine thread. With more than one rank, all ranks must call `forward` with the same arguments.
    """

    def __init__(
        self,
        config: ModelConfig,
        dtype: torch.dtype,
        device: torch.device,
        num_kv_heads: int,
        pre: PreLayer,
        layers: Sequence[TransformerLayer],
        post: PostLayer,
        rope: RopeTable,
    ) -> None:
        self.config = config
        self.dtype = dtype
        self.device = device
        self.num_layers = config.num_layers
        self.num_kv_heads = num_kv_heads
        """K and V heads of this rank."""
        self.head_dim = config.head_dim
        self.vocab_size = config.vocab_size
        self._pre = pre
        self._layers = layers
        self._post = post
        self._rope = rope

    def reserve_positions(self, count: int) -> None:
        """Makes room for requests of at most `count` tokens. Call it before the first `forward`, and before graphs are
        captured: it replaces a tensor that they read.
        """
        self._rope.resize(count)

    @torch.inference_mode()
    def forward(self, input_ids: Tensor, state: InferState) -> Tensor:
        """Writes K and V of the new tokens at `state.slots` and returns the last hidden states, normalised, of those
        tokens that `state.logit_tokens` names: [N, hidden_size].

        `input_ids` is [T] int64, all below `vocab_size`; positions lie below what was
        reserved. Both are for the caller to check. Raises EngineFailed when another rank is lost.
        """
        x = self._pre.forward(input_ids)
        residual: Tensor | None = None
        for layer in self._layers[:-1]:
            x, residual = layer.forward(x, residual, state)
        # After the last attention, tokens without logits are done.
        for layer in self._layers[-1:]:
            x, residual = layer.forward(x, residual, state, state.logit_tokens)
        if residual is None:  # no layers: configurations have at least one
            residual = torch.zeros_like(x)
        return self._post.forward(x, residual)

    @torch.inference_mode()
    def logits(self, hidden: Tensor, deterministic: bool = False) -> Tensor:
        """[N, hidden_size] to [N, vocab_size] of the model's type: the full vocabulary, the same on every rank."""
        return self._post.logits(hidden, deterministic)
