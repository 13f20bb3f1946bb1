"""A class of Transformers as the engine's model."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ...layers.infer import CacheShape, InferState
from ...layers.weights import PrefillCopies, StepAdapters, VocabularyShard
from ..base import CausalLM
from .attention import Step
from .skeleton import Given


class FallbackModel(CausalLM):
    """See `CausalLM`; `loading.py` puts one together."""

    def __init__(
        self,
        model: PreTrainedModel,
        path: str,
        step: Step,
        caches: Sequence[CacheShape],
        copies: PrefillCopies,
        is_captured: bool,
    ) -> None:
        """`path`: where the decoder is."""
        settings = model.config.get_text_config()
        self._decoder: nn.Module = model.get_submodule(path)
        self._given = Given()
        model.set_submodule(path, self._given)
        self._model = model
        self._step = step
        embedding = self._decoder.get_input_embeddings().weight  # type: ignore[operator]
        self.dtype = embedding.dtype
        self.device = embedding.device
        self.vocab_size = int(settings.vocab_size)
        # The class may use the logits in any way, so each rank has all columns.
        self.vocabulary = VocabularyShard.of(self.vocab_size, 0, 1)
        self.max_context_length = int(settings.max_position_embeddings)
        self.caches = caches
        self.states = ()
        self.bytes_per_position = 0
        self.copies = copies
        self.dense_macs = 0
        self.is_captured = is_captured

    def reserve_positions(self, count: int) -> None:
        """See `CausalLM`: the class computes its rotary embedding in each step."""

    @torch.inference_mode()
    def forward(self, input_ids: Tensor, state: InferState) -> Tensor:
        """See `CausalLM`."""
        self._step.begin(state)
        output = self._decoder(input_ids=input_ids[None], position_ids=state.positions[None], use_cache=False)
        hidden: Tensor = output.last_hidden_state[0]
        return hidden if state.logit_tokens is None else hidden.index_select(0, state.logit_tokens)

    @torch.inference_mode()
    def logits(
        self,
        hidden: Tensor,
        deterministic: bool = False,  # noqa: ARG002 - refused at start-up
        adapters: StepAdapters | None = None,  # noqa: ARG002 - refused at start-up
    ) -> Tensor:
        """See `CausalLM`. It does what the class does after its decoder, scales and bounds included."""
        self._given.hidden = hidden
        logits: Tensor = self._model(inputs_embeds=hidden[None], use_cache=False).logits[0]
        self._given.hidden = None
        return logits.to(self.dtype)
