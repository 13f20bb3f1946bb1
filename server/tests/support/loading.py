"""One call from a folder to a model of ours."""

from pathlib import Path

import torch

from text_generation_server.config import ParallelConfig
from text_generation_server.config.asked_drafter import DrafterKind
from text_generation_server.config.drafter import FoundDrafter, read_drafter_config
from text_generation_server.config.implementation import ModelImpl, read_model_config
from text_generation_server.config.kv_cache import QuantisedKvCache
from text_generation_server.distributed import TensorParallelGroup, init_group
from text_generation_server.models import CausalLM, load_model

CPU = torch.device("cpu")


def load(
    folder: Path,
    dtype: torch.dtype = torch.float32,
    group: TensorParallelGroup | None = None,
    dummy: bool = False,
    impl: ModelImpl = "auto",
    kv_cache: QuantisedKvCache | None = None,
    quantize: str | None = None,
    merge_adapter: Path | None = None,
    drafter: Path | None = None,
    kind: DrafterKind | None = None,
) -> CausalLM:
    group = group or init_group(ParallelConfig(), CPU, timeout_s=1)
    config = read_model_config(folder, impl, quantize)
    load_format = "dummy" if dummy else "safetensors"
    found = None if drafter is None else FoundDrafter(drafter, read_drafter_config(drafter, config, kind))
    return load_model(folder, config, group, dtype, CPU, load_format, kv_cache, merge_adapter, found)
