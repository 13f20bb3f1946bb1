"""Loading of a model from its folder."""

import logging
from dataclasses import replace
from pathlib import Path

import torch

from ..adapters import BaseModel, MergedSource, ModelTensors, read_adapter, untied_aliases
from ..config.drafter import FoundDrafter
from ..config.fallback import FallbackConfig
from ..config.implementation import AnyModelConfig
from ..config.kv_cache import QuantisedKvCache
from ..config.model import ModelConfig
from ..config.server import LoadFormat, check_merge
from ..distributed import TensorParallelGroup
from ..errors import AdapterError
from ..weights import DummySource, SafetensorsSource, WeightSource
from .adapters import AdapterReader
from .base import CausalLM
from .builder import DecoderBuilder
from .drafters import build_drafter, taps_of
from .unread import unread

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
    check_merge(load_format, merge_adapter is not None)
    if load_format == "dummy":
        return _build(config, group, DummySource(dtype, device), dtype, device, kv_cache, drafter=drafter)
    twins = config.names.others if isinstance(config, ModelConfig) else None
    files = SafetensorsSource(folder, dtype, device, twins=twins)
    source = files
    if merge_adapter is not None:
        source, config = _with_adapter(config, files, merge_adapter)
    reader = None
    if isinstance(config, ModelConfig) and merge_adapter is None and not config.classes:
        reader = AdapterReader(folder, config, group, dtype)
    model = _build(config, group, source, dtype, device, kv_cache, reader, drafter)
    ignored = unread(config, model, group) if isinstance(config, ModelConfig) else ()
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
    if is_ours and (shared := sorted(filter(config.names.is_of_several_layers, adapter.changes))):
        raise AdapterError(
            f"{folder} changes `{shared[0]}` for one of the layers that share it: it cannot be merged; serve it with "
            "--lora-adapters"
        )
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
