"""Check that a class can be served, and by how many ranks, without its weights."""

import torch
from transformers import PreTrainedModel

from ...config.fallback import FallbackConfig, unsupported
from ...distributed import TensorParallelGroup
from ...errors import ConfigurationError
from .dry_run import DryRun, dry_run
from .parallel import Sharding, shard
from .skeleton import build_skeleton


def check_runnable(config: FallbackConfig, shards: int = 1) -> None:
    """Raises UnsupportedModel or ConfigurationError, with the reason, for a class that cannot be served."""
    # The last rank does not log how matrices are sharded, which a load will do.
    try_out(config, TensorParallelGroup(shards - 1, shards, torch.device("cpu")), torch.float32)


def try_out(
    config: FallbackConfig, group: TensorParallelGroup, dtype: torch.dtype
) -> tuple[PreTrainedModel, Sharding, DryRun]:
    """Returns the class with the shapes of this rank, on the meta device, and what a forward pass of it calls.

    Raises UnsupportedModel or ConfigurationError.
    """
    # The dry run reads version counters of tensors, which tensors of inference mode do not have.
    with torch.inference_mode(False):
        model = build_skeleton(config, dtype)
        if not isinstance(getattr(model.config.get_text_config(), "max_position_embeddings", None), int):
            raise ConfigurationError("config.json: `max_position_embeddings` is missing")
        sharding = shard(model, group)
        seen = dry_run(model)
    _check_sums(model, sharding, seen)
    return model, sharding, seen


def _check_sums(model: PreTrainedModel, sharding: Sharding, seen: DryRun) -> None:
    """Refuses row-parallel modules that the forward pass does not call: nobody would all-reduce their partial sums."""
    called = {*seen.experts, *(name for names in seen.linears for name in names)}
    if uncalled := sharding.summed - called:
        raise unsupported(
            type(model).__name__,
            f"{min(uncalled)} is not called as its plan for several shards says; set --num-shard to 1",
        )
