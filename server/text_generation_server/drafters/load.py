"""Loading of a drafter from its folder."""

import logging
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from ..config.drafter import FLAG, DrafterConfig, EagleConfig
from ..config.medusa import MedusaConfig
from ..distributed import TensorParallelGroup
from ..errors import ModelFilesError
from ..layers.infer import Embedding, Head, Taps
from ..layers.weights import EmbeddingWeights
from .base import Drafter
from .eagle import EagleDrafter
from .eagle_weights import load_eagle
from .medusa import MedusaDrafter, load_medusa
from .tensors import DrafterTensors

logger = logging.getLogger(__name__)


def load_drafter(
    folder: Path,
    config: DrafterConfig,
    taps: Taps | None,
    embedding: Embedding,
    embedded: EmbeddingWeights,
    head: Head,
    group: TensorParallelGroup,
) -> Drafter:
    """Reads what is in `folder`, whole. `taps` have the hidden states that it reads; `embedding` with its weights, or
    this rank's shard of them, and `head` are those of the model. Raises ModelFilesError.
    """
    tensors = DrafterTensors(folder, embedding.dtype, embedding.device)
    if isinstance(config, EagleConfig) and taps is not None:
        return _eagle(folder, config, tensors, taps, embedding, embedded, group)
    if not isinstance(config, MedusaConfig):
        raise ValueError("an EAGLE-3 head reads hidden states of layers")
    logger.info("drafter loaded", extra={"drafter": str(folder), "heads": config.heads})
    return MedusaDrafter(config, load_medusa(config, tensors), head, group)


def _eagle(
    folder: Path,
    config: EagleConfig,
    tensors: DrafterTensors,
    taps: Taps,
    embedding: Embedding,
    embedded: EmbeddingWeights,
    group: TensorParallelGroup,
) -> EagleDrafter:
    weights = load_eagle(config, tensors)
    if weights.embedding is not None and _is_that_of_model(weights.embedding, embedded, group):
        weights = replace(weights, embedding=None)
    if weights.embedding is None and embedded.tokens.shape[1] != config.hidden_size:
        raise ModelFilesError(
            f"{folder} has no tensor `embed_tokens.weight`, and rows of the model's embedding have "
            f"{embedded.tokens.shape[1]} elements instead of {config.hidden_size}: {FLAG} names a drafter of another "
            "model: name one for this model"
        )
    logger.info(
        "drafter loaded",
        extra={
            "drafter": str(folder),
            "layers": list(config.layers),
            "ids": config.draft_vocab_size,
            "own_embedding": weights.embedding is not None,
        },
    )
    return EagleDrafter(config, weights, taps, embedding)


def _is_that_of_model(own: Tensor, embedded: EmbeddingWeights, group: TensorParallelGroup) -> bool:
    """Whether the head has the embedding of the model once more, which needs no memory then. Ranks agree on it."""
    first, stop = embedded.span
    fits = embedded.tokens.shape[1] == own.shape[1] and stop <= len(own)
    return bool(group.min_int(fits and torch.equal(own[first:stop], embedded.rows(first, stop))))
