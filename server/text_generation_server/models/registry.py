"""Loading of a model from its folder."""

import logging
from dataclasses import replace
from pathlib import Path

import torch

from ..adapters import BaseModel, MergedSource, ModelTensors, read_adapter, untied_aliases
from ..config.drafter import FoundDrafter
from ..config.fallback import FallbackConfig
from ..config.families import VISION_PARTS
from ..config.implementation import AnyModelConfig
from ..config.kv_cache import QuantisedKvCache
from ..config.model import ModelConfig
from ..config.names import TensorNames
from ..config.quantisation import BESIDE
from ..config.server import LoadFormat, check_merge
from ..distributed import TensorParallelGroup
from ..weights import DummySource, SafetensorsSource, WeightSource
from .adapters import AdapterReader
from .base import CausalLM
from .builder import DecoderBuilder
from .drafters import build_drafter, taps_of
from .encoder import Encoder
from .vision import VisionEncoder

logger = logging.getLogger(__name__)


def load_model(
    folder: Path,
    config: AnyModelConfig,
    group: TensorParallelGroup,
    dtype: torch.dtype,
    device: torch.device,
    load_format: LoadFormat,
    kv_cache: QuantisedKvCache | None = None,
    merge_adapter: Path | None = None,
    drafter: FoundDrafter | None = None,
) -> CausalLM:
    """Loads this rank's shard of the model in `folder`. `kv_cache` is the type of its quantised KV cache, or None.
    `merge_adapter` is the folder of an adapter that is merged into its weights while they are read. Requests cannot
    have adapters then, nor where weights are random or classes of Transformers compute them. `drafter` drafts for it.

    "auto" means safetensors; "dummy" reads nothing from `folder` and fills the weights with random numbers.
    Raises ConfigurationError, ModelFilesError or AdapterError, and the allocator's own errors where memory runs out.
    """
    check_merge(load_format, merge_adapter)
    if load_format == "dummy":
        return _build(config, group, DummySource(dtype, device), dtype, device, kv_cache, drafter=drafter)
    files = SafetensorsSource(folder, dtype, device)
    source = files
    if merge_adapter is not None:
        source, config = _with_adapter(config, files, merge_adapter)
    reader = None
    if isinstance(config, ModelConfig) and merge_adapter is None and not config.classes:
        reader = AdapterReader(folder, config, group, dtype)
    model = _build(config, group, source, dtype, device, kv_cache, reader, drafter)
    ignored = _unread(config, model, group) if isinstance(config, ModelConfig) else ()
    if isinstance(config, ModelConfig):
        files.warn_unread(ignored)
    # Of a class of Transformers, other ranks leave tensors out that no pattern names.
    if isinstance(source, MergedSource) and (isinstance(config, ModelConfig) or group.rank == 0):
        source.check_read(ignored)
    files.warn_not_finite()
    return model


def _with_adapter(
    config: AnyModelConfig, files: SafetensorsSource, folder: Path
) -> tuple[MergedSource, AnyModelConfig]:
    """Returns the weights with the adapter in `folder` merged into them, and the configuration of what they make. The
    operator named the adapter. Raises AdapterError.
    """
    is_ours = isinstance(config, ModelConfig)
    base = BaseModel(files, ModelTensors.of(config.decoder, config.names, files) if is_ours else None)
    adapter = read_adapter(folder, base, allow_pickle=True)
    aliases = untied_aliases(adapter, base)
    if is_ours and aliases is not None:
        decoder = config.decoder
        config = replace(config, decoder=replace(decoder, head=replace(decoder.head, tied=False)))
    logger.info(
        "adapter is merged into the weights",
        extra={"adapter": str(folder), "digest": adapter.digest, "tensors": len(adapter.changes)},
    )
    return MergedSource(files, adapter, aliases or {}), config


def _build(
    config: AnyModelConfig,
    group: TensorParallelGroup,
    source: WeightSource,
    dtype: torch.dtype,
    device: torch.device,
    kv_cache: QuantisedKvCache | None,
    reader: AdapterReader | None = None,
    drafter: FoundDrafter | None = None,
) -> CausalLM:
    if isinstance(config, FallbackConfig):
        # Imports transformers, which takes seconds that other models need not wait.
        from .fallback import load_fallback

        return load_fallback(config, group, source, dtype, device, kv_cache)
    builder = DecoderBuilder(config, group, source, device, kv_cache, taps_of(drafter))
    model = builder.build(reader)
    if drafter is not None:
        model.draft_with(build_drafter(drafter, config, builder, group, source, device))
    return model


def _unread(config: ModelConfig, model: CausalLM, group: TensorParallelGroup) -> tuple[str, ...]:
    """Returns patterns of the tensors that this rank need not read."""
    # Where the head is the embedding, some files hold it twice, and Transformers reads the embedding too.
    tied = tuple(f"{head}.weight" for head in config.names.all_heads) if config.decoder.head.tied else ()
    beside = BESIDE if config.schemes.method else ()
    return (*_ignored(config, model.encoder), *tied, *beside, *_of_other_ranks(config.names, group))


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
