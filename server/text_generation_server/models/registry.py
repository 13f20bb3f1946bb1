"""From the architecture that config.json names to a loaded model."""

from collections.abc import Callable
from pathlib import Path
from typing import Literal

import torch

from ..config.model import ModelConfig
from ..distributed import TensorParallelGroup
from ..errors import OutOfMemory
from ..weights import DummySource, SafetensorsSource, WeightSource
from .base import CausalLM
from .llama import load_llama

Loader = Callable[[ModelConfig, TensorParallelGroup, WeightSource, torch.dtype, torch.device], CausalLM]
LoadFormat = Literal["auto", "safetensors", "dummy"]

LOADERS: dict[str, Loader] = {"LlamaForCausalLM": load_llama}
"""One for each of `config.model.ARCHITECTURES`."""


def load_model(
    folder: Path,
    config: ModelConfig,
    group: TensorParallelGroup,
    dtype: torch.dtype,
    device: torch.device,
    load_format: LoadFormat,
) -> CausalLM:
    """Loads this rank's part of the model in `folder`.

    "auto" means safetensors; "dummy" reads nothing from `folder` and fills the weights with random numbers.
    Raises ConfigurationError, ModelFilesError or OutOfMemory.
    """
    loader = LOADERS[config.architecture]
    try:
        if load_format == "dummy":
            return loader(config, group, DummySource(dtype, device), dtype, device)
        source = SafetensorsSource(folder, dtype, device)
        model = loader(config, group, source, dtype, device)
        source.warn_unread()
        source.warn_not_finite()
    except torch.OutOfMemoryError as error:
        raise OutOfMemory(
            f"the weights do not fit into the memory of {device}: use more shards (--num-shard) or a smaller --dtype"
        ) from error
    return model
