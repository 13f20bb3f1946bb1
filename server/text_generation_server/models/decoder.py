"""The one decoder: an embedding, layers and a head, whatever its family."""

import logging
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ..drafters import Drafter
from ..layers.infer import (
    AddNorm,
    CacheShape,
    Embedding,
    Head,
    InferState,
    Layer,
    MediaInput,
    OverlappedHalves,
    PerLayerInputs,
    RecurrentMixer,
    SublayerOutput,
    Taps,
    keep_token_ids,
    new_tokens,
)
from ..layers.rope import RopeTable
from ..layers.weights import ImageTokens, PrefillCopies, StepAdapters
from .adapter_pool import AdapterPool
from .adapters import ModelAdapters
from .base import CausalLM
from .encoder import Encoder
from .encoder_fit import reason_against

logger = logging.getLogger(__name__)


class ImageLayers(NamedTuple):
    """The layers of a model for steps in which tokens of images pass matrices of their own."""

    layers: Sequence[Layer]
    tokens: ImageTokens


class Decoder(CausalLM):
    """See `CausalLM`; `builder.py` puts one together."""

    def __init__(
        self,
        embedding: Embedding,
        layers: Sequence[Layer],
        halves: OverlappedHalves,
        last: AddNorm,
        head: Head,
        caches: Sequence[CacheShape],
        recurrent: Sequence[RecurrentMixer],
        ropes: Sequence[RopeTable],
        max_context_length: int,
        copies: PrefillCopies,
        dense_macs: int,
        inputs: PerLayerInputs | None = None,
        encoder: Encoder | None = None,
        adapters: ModelAdapters | None = None,
        taps: Taps | None = None,
        of_images: ImageLayers | None = None,
        expert_pairs: Tensor | None = None,
    ) -> None:
        """`recurrent` are the mixers with a state. `last` adds the output of the last layer to the residual stream and
        applies the final norm. `inputs` makes the inputs of all layers, where they have some. `taps` get what a drafter
        reads. `of_images` compute steps whose tokens of images pass matrices of their own. `expert_pairs` has the
        meaning of `CausalLM`.
        """
        self._taps = taps
        # Its drafter reads what all tokens make of the last layer.
        self._taps_end = taps is not None and any(each >= len(layers) for each in taps.layers)
        self._inputs = inputs
        self._embedding = embedding
        self._layers = layers
        self._halves = halves
        self._last = last
        self._head = head
        self._ropes = ropes
        self.dtype = embedding.dtype
        self.device = embedding.device
        self.vocabulary = head.vocabulary
        self.vocab_size = head.vocabulary.vocab_size
        self.classes = head.classes
        self.caches = caches
        self.states = [each.state for each in recurrent]
        self.recurrent = recurrent
        self.bytes_per_position = sum(table.bytes_per_position for table in ropes)
        self.max_context_length = max_context_length
        self.copies = copies
        self.dense_macs = dense_macs
        self.encoder = encoder
        self.adapters = adapters
        self._of_images = of_images
        self.expert_pairs = expert_pairs
        self.drafter: Drafter | None = None
        if encoder is not None and (reason := reason_against(encoder, layers, ropes)):
            self.encoder = None
            logger.warning("images are not served: %s", reason)

    def draft_with(self, drafter: Drafter) -> None:
        """Lets a drafter read its forward passes. Call it before the first one."""
        self.drafter = drafter
        self.bytes_per_position += drafter.bytes_per_position

    def reserve_positions(self, count: int) -> None:
        """See `CausalLM`."""
        for table in self._ropes:
            table.resize(count)
        if self.drafter is not None:
            self.drafter.reserve_positions(count)

    @torch.inference_mode()
    def forward(self, input_ids: Tensor, state: InferState) -> Tensor:
        """See `CausalLM`."""
        if state.rope_positions is not None:
            # Kernels before attention read them while the previous kernel may still run, so none may be written there.
            for table in self._ropes:
                new_tokens(table, state)
        if state.adapters is not None:
            return self._through_adapted(input_ids, state, state.adapters)
        embedded = self._embedded(self._embedding, input_ids, state)
        if state.media is not None and state.media.own_matrices and self._of_images is not None:
            return _of(state.logit_tokens, self._through_images(embedded, state, state.media, self._of_images))
        x: SublayerOutput = embedded
        residual: Tensor | None = None
        # After the last attention, tokens whose logits nobody wants need no further layer.
        kept = None if self._taps_end else state.logit_tokens
        if cuts := self._halves.cuts(embedded, state):
            x, residual = self._halves.forward(embedded, state, cuts, kept)
        else:
            for index, layer in enumerate(self._layers[:-1]):
                x, residual = layer.forward(x, residual, state)
                if state.media is not None:
                    state.media.deepen(index, residual)
            for layer in self._layers[-1:]:
                x, residual = layer.forward(x, residual, state, kept)
        hidden, _ = self._last.read(x, residual)
        return hidden.x if kept is state.logit_tokens else _of(state.logit_tokens, hidden.x)

    def _embedded(self, embedding: Embedding, input_ids: Tensor, state: InferState) -> Tensor:
        keep_token_ids(input_ids, state)
        embedded = embedding.forward(input_ids, state)
        if self._taps is not None:
            self._taps.begin(embedded)
        if self._inputs is not None:
            self._inputs.make(input_ids, embedded, state)
        return embedded

    def _through_adapted(self, input_ids: Tensor, state: InferState, adapters: StepAdapters) -> Tensor:
        """Computes a step in which tokens use adapters. The tables of adapters name all its tokens, so the last layer
        computes those too whose logits nobody wants.
        """
        pool = self._pool
        pool.current.begin(adapters)
        x: SublayerOutput = self._embedded(pool.embedding, input_ids, state)
        residual: Tensor | None = None
        for index, layer in enumerate(pool.layers):
            x, residual = layer.forward(x, residual, state)
            if state.media is not None and index < len(self._layers) - 1:
                state.media.deepen(index, residual)
        hidden, _ = pool.last.read(x, residual)
        return _of(state.logit_tokens, hidden.x)

    def _through_images(self, embedded: Tensor, state: InferState, media: MediaInput, of_images: ImageLayers) -> Tensor:
        """Computes a step whose tokens of images pass matrices of their own, of all its tokens."""
        of_images.tokens.present = media.present
        x: SublayerOutput = embedded
        residual: Tensor | None = None
        for layer in of_images.layers:
            x, residual = layer.forward(x, residual, state)
        hidden, _ = self._last.read(x, residual)
        return hidden.x

    @torch.inference_mode()
    def logits(self, hidden: Tensor, deterministic: bool = False, adapters: StepAdapters | None = None) -> Tensor:
        """See `CausalLM`."""
        if adapters is None:
            return self._head.logits(hidden, deterministic)
        self._pool.current.begin(adapters)
        return self._pool.head.logits(hidden, deterministic)

    @property
    def _pool(self) -> AdapterPool:
        if self.adapters is None or self.adapters.pool is None:
            raise ValueError("a step names adapters of a model that has no room for any")
        return self.adapters.pool


def _of(tokens: Tensor | None, hidden: Tensor) -> Tensor:
    return hidden if tokens is None else hidden.index_select(0, tokens)
