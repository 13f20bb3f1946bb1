"""Loading of a drafter from its folder."""

import logging
from pathlib import Path

import torch
from torch import Tensor

from ..config.drafter import FLAG, EagleConfig
from ..distributed import TensorParallelGroup
from ..errors import ModelFilesError
from ..layers.infer import Embedding, Taps
from ..layers.weights import EmbeddingWeights
from .base import Drafter
from .eagle import EagleDrafter
from .eagle_weights import load_eagle
from .tensors import DrafterTensors

logger = logging.getLogger(__name__)


def load_drafter(
    folder: Path,
    config: EagleConfig,
    taps: Taps,
    embedding: Embedding,
    embedded: EmbeddingWeights,
    group: TensorParallelGroup,
) -> Drafter:
    """Reads the head in `folder`, whole. `embedding` and its weights, or this rank's shard of them, are those of the
    model. Raises ModelFilesError.
    """
    weights = load_eagle(config, DrafterTensors(folder, embedding.dtype, embedding.device))
    if weights.embedding is not None and _is_that_of_model(weights.embedding, embedded, group):
        weights = weights.with_embedding(None)
    if weights.embedding is None and embedded.tokens.shape[1] != config.hidden_size:
        raise ModelFilesError(
            f"{folder} has no tensor `embed_tokens.weight`, and rows of the model's embedding have "
            f"{embedded.tokens.shape[1]} elements instead of {config.hidden_size}: {FLAG} names a drafter of another "
            "model"
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
