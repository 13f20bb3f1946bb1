"""Check that a class can be served, and by how many ranks, without its weights."""

from collections.abc import Collection

import torch
from transformers import PreTrainedModel

from ...config.fallback import FallbackConfig, unsupported
from ...config.kv_cache import QuantisedKvCache, kv_multiple, other_kv_caches
from ...distributed import TensorParallelGroup
from ...errors import ConfigurationError, UnsupportedModel
from .dry_run import DryRun, dry_run
from .mixing import Trace, check_alike, joining, trace
from .parallel import Sharding, say_what_is_whole, shard, unshared
from .skeleton import build_skeleton


def check_runnable(config: FallbackConfig, shards: int = 1, kv_cache: QuantisedKvCache | None = None) -> None:
    """Raises UnsupportedModel or ConfigurationError, with the reason, for a class that cannot be served, or not with
    this type of keys and values.
    """
    # The last rank does not log how matrices are sharded, which a load will do.
    _, _, seen = try_out(config, TensorParallelGroup(shards - 1, shards, torch.device("cpu")), torch.float32)
    check_kv_cache(config, kv_cache, seen)


def check_kv_cache(config: FallbackConfig, kv_cache: QuantisedKvCache | None, seen: DryRun) -> None:
    """Raises ConfigurationError for heads whose keys and values our operators do not quantise."""
    if kv_cache is None:
        return
    for call in seen.calls:
        if call.head_dim % (multiple := kv_multiple(kv_cache)) or call.value_dim != call.head_dim:
            alike = call.value_dim == call.head_dim
            raise ConfigurationError(
                f"--kv-cache-dtype {kv_cache} needs heads whose size is a multiple of {multiple}, and values as "
                f"large as keys; {config.architecture} has keys of {call.head_dim} and values of {call.value_dim}: "
                f"{other_kv_caches(kv_cache) if alike else 'leave --kv-cache-dtype out'}"
            )


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
        model, sharding = _shared(model, config, group)
        seen = dry_run(model)
    _check_sums(model, sharding, seen)
    return model, sharding, seen


def _shared(
    model: PreTrainedModel, config: FallbackConfig, group: TensorParallelGroup
) -> tuple[PreTrainedModel, Sharding]:
    """The rank's part. What works along a dimension that ranks would share, such as the sparse gate of Gemma 3n, each
    of them has whole.
    """
    if group.world_size == 1:
        return model, unshared(model)
    name, whole, dtype = type(model).__name__, trace(model), model.dtype
    sharding = shard(model, group, whole.calls)
    if joined := _joined(model, whole, sharding, group):
        model = build_skeleton(config, dtype)
        sharding = shard(model, group, whole.calls, joined)
        if still := _joined(model, whole, sharding, group):
            raise unsupported(name, f"{min(still)} cannot be shared; set --num-shard to 1")
    if group.rank == 0:
        say_what_is_whole(model, sharding.cuts)
    return model, sharding


def _joined(model: PreTrainedModel, whole: Trace, sharding: Sharding, group: TensorParallelGroup) -> set[str]:
    """Modules whose results are made of all that ranks have parts of, and not only added up."""
    part = _trace_of_part(model, whole, group)
    cut = [name for name, each in sharding.cuts.items() if each.ranges]
    return {_owner(each.module, cut) for each in joining(whole, part, sharding.summed)}


def _trace_of_part(model: PreTrainedModel, whole: Trace, group: TensorParallelGroup) -> Trace:
    name = type(model).__name__
    try:
        part = trace(model)
    except UnsupportedModel as error:
        # The whole model ran.
        raise unsupported(name, f"it does not run on a part of its matrices ({error}); set --num-shard to 1") from error
    check_alike(name, whole, part, group.world_size)
    return part


def _owner(path: str, cut: Collection[str]) -> str:
    """The smallest module around `path` that has tensors of which ranks have parts."""
    while path and not any(name.startswith(f"{path}.") for name in cut):
        path = path.rpartition(".")[0]
    return path


def _check_sums(model: PreTrainedModel, sharding: Sharding, seen: DryRun) -> None:
    """Refuses row-parallel modules that the forward pass does not call: nobody would all-reduce their partial sums."""
    called = {*seen.experts, *(name for names in seen.linears for name in names)}
    if uncalled := sharding.summed - called:
        raise unsupported(
            type(model).__name__,
            f"{min(uncalled)} is not called as its plan for several shards says; set --num-shard to 1",
        )
