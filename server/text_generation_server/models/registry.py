"""Loading of a model from its folder."""

from pathlib import Path
from typing import Literal

import torch

from ..config.fallback import FallbackConfig
from ..config.families import VISION_PARTS
from ..config.implementation import AnyModelConfig
from ..config.kv_cache import QuantisedKvCache
from ..config.model import ModelConfig
from ..config.names import TensorNames
from ..config.quantisation import BESIDE
from ..distributed import TensorParallelGroup
from ..weights import DummySource, SafetensorsSource, WeightSource
from .base import CausalLM
from .builder import DecoderBuilder
from .encoder import Encoder
from .vision import VisionEncoder

LoadFormat = Literal["auto", "safetensors", "dummy"]


def load_model(
    folder: Path,
    config: AnyModelConfig,
    group: TensorParallelGroup,
    dtype: torch.dtype,
    device: torch.device,
    load_format: LoadFormat,
    kv_cache: QuantisedKvCache | None = None,
) -> CausalLM:
    """Loads this rank's shard of the model in `folder`. `kv_cache` is the 8-bit type of its KV cache, or None.

    "auto" means safetensors; "dummy" reads nothing from `folder` and fills the weights with random numbers.
    Raises ConfigurationError or ModelFilesError, and the allocator's own errors where memory runs out.
    """
    source = DummySource(dtype, device) if load_format == "dummy" else SafetensorsSource(folder, dtype, device)
    model = _build(config, group, source, dtype, device, kv_cache)
    if isinstance(source, SafetensorsSource):
        source.warn_not_finite()
    return model


def _build(
    config: AnyModelConfig,
    group: TensorParallelGroup,
    source: WeightSource,
    dtype: torch.dtype,
    device: torch.device,
    kv_cache: QuantisedKvCache | None,
) -> CausalLM:
    if isinstance(config, FallbackConfig):
        # Imports transformers, which takes seconds that other models need not wait.
        from .fallback import load_fallback

        return load_fallback(config, group, source, dtype, device)
    model = DecoderBuilder(config, group, source, device, kv_cache).build()
    if isinstance(source, SafetensorsSource):
        # Where the head is the embedding, some files hold it twice, and Transformers reads the embedding too.
        tied = tuple(f"{head}.weight" for head in config.names.all_heads) if config.decoder.head.tied else ()
        beside = BESIDE if config.schemes.method else ()
        source.warn_unread((*_ignored(config, model.encoder), *tied, *beside, *_of_other_ranks(config.names, group)))
    return model


def _ignored(config: ModelConfig, encoder: Encoder | None) -> tuple[str, ...]:
    """Returns patterns of the tensors that nobody needs: of an encoder that is read, a few; else all that it has."""
    if not isinstance(encoder, VisionEncoder):
        return config.names.ignored
    return (*(each for each in config.names.ignored if each not in VISION_PARTS), *encoder.ignored)


def _of_other_ranks(names: TensorNames, group: TensorParallelGroup) -> tuple[str, ...]:
    """Returns patterns of the tensors that other ranks read, and this one need not."""
    if group.world_size == 1:
        return ()
    others = [f"*{name.replace('{head}', '*')}.*" for name in (names.q_norm, names.k_norm) if "{head}" in name]
    if group.expert_parallel:
        others += [f"*{name.replace('{expert}', '*')}.*" for name in names.experts(gated=True)]
    if group.rank:
        # The first rank adds the biases of all-reduced outputs; the last ranks may have an empty vocabulary shard.
        biased = names.out, names.down, names.shared_down
        others += [f"*{name}.bias" for name in biased] + [f"{head}.*" for head in names.all_heads]
    return tuple(others)
