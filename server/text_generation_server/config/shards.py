"""Whether so many shards can share a model, as far as its configuration tells."""

from dataclasses import dataclass

from ..errors import ConfigurationError
from .fallback import FallbackConfig
from .implementation import AnyModelConfig
from .spec import MoeSpec


@dataclass(frozen=True)
class AskedShards:
    """How the ranks are to share a model; `count`: of all nodes together."""

    count: int = 1
    expert_parallel: bool = False


ONE_SHARD = AskedShards()


def check_shards(config: AnyModelConfig, shards: AskedShards) -> None:
    """Raises ConfigurationError for a model that cannot be shared so.

    What classes of Transformers can share is checked by `models/fallback/`, which needs torch.
    """
    if shards.expert_parallel:
        _check_expert_parallel(config)
    if isinstance(config, FallbackConfig) or shards.count == 1:
        return
    for layer in config.decoder.layers:
        check_heads(layer.attention.num_heads, shards.count)
        if isinstance(layer.ffn, MoeSpec):
            check_experts(layer.ffn, shards)


def check_heads(num_heads: int, count: int) -> None:
    """Raises ConfigurationError when `count` shards cannot have equally many of the query heads."""
    if num_heads % count:
        raise ConfigurationError(
            f"{count} shards cannot share {num_heads} attention heads evenly: set --num-shard to a divisor of that "
            "number"
        )


def check_experts(spec: MoeSpec, shards: AskedShards) -> None:
    """Raises ConfigurationError when a shard would have no part of the experts."""
    if shards.expert_parallel and spec.experts < shards.count:
        raise ConfigurationError(
            f"{shards.count} shards cannot each have one of {spec.experts} experts: "
            f"leave --enable-expert-parallel out, or set --num-shard to at most {spec.experts}"
        )
    if not shards.expert_parallel and spec.inner < shards.count:
        raise ConfigurationError(
            f"{shards.count} shards cannot share the inner size {spec.inner} of the experts: "
            f"set --num-shard to at most {spec.inner}"
        )


def _check_expert_parallel(config: AnyModelConfig) -> None:
    if isinstance(config, FallbackConfig):
        raise ConfigurationError(
            f"--enable-expert-parallel is not there for {config.architecture}, which runs through Transformers: "
            "leave it out"
        )
    if not any(isinstance(layer.ffn, MoeSpec) for layer in config.decoder.layers):
        raise ConfigurationError("--enable-expert-parallel is for mixtures, and the model has no experts: leave it out")
