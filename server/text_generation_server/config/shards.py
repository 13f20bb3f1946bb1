"""Check that so many shards can share a model, from its configuration."""

from dataclasses import dataclass

from ..errors import ConfigurationError
from .fallback import FallbackConfig
from .implementation import AnyModelConfig
from .model import ModelConfig
from .recurrent import GatedLruSpec, LightningSpec, Mamba2Spec, MambaSpec, ShortConvSpec
from .spec import CompressedAttentionSpec, LatentAttentionSpec, MixerSpec, MoeSpec


@dataclass(frozen=True)
class AskedShards:
    """How the ranks are to share a model; `count` is the number of shards on all nodes together."""

    count: int = 1
    expert_parallel: bool = False
    context_parallel: bool = False


ONE_SHARD = AskedShards()


def check_shards(config: AnyModelConfig, shards: AskedShards) -> None:
    """Raises ConfigurationError for a model that cannot be sharded so. `models/fallback/`, which needs torch, checks
    classes of Transformers.
    """
    if shards.expert_parallel:
        _check_expert_parallel(config)
    if shards.context_parallel:
        _check_context_parallel(config)
    if isinstance(config, FallbackConfig) or shards.count == 1:
        return
    for mixer in config.decoder.mixers:
        check_heads(*_divided(mixer), shards.count)
    for layer in config.decoder.layers:
        if layer.moe is not None:
            check_experts(layer.moe, shards)


def shares_heads(config: ModelConfig, count: int) -> bool:
    """Whether `count` shards can have equally many heads of every layer."""
    return all(_divided(mixer)[0] % count == 0 for mixer in config.decoder.mixers)


def _divided(mixer: MixerSpec) -> tuple[int, str]:
    """Returns the number of units of which each shard gets equally many, and their name."""
    if isinstance(mixer, MambaSpec):
        return mixer.channels, "channels of a state space"
    if isinstance(mixer, GatedLruSpec):
        return mixer.blocks, "blocks of a recurrent unit"
    if isinstance(mixer, ShortConvSpec):
        return mixer.channels, "channels of a convolution"
    if isinstance(mixer, LightningSpec) and mixer.norm_groups > 1:
        return mixer.norm_groups, "groups of heads of linear attention"
    if isinstance(mixer, Mamba2Spec):
        if mixer.norm_over == "group":
            return mixer.groups, "groups of heads of a state space"
        return mixer.num_heads, "heads of a state space"
    if isinstance(mixer, CompressedAttentionSpec):
        return mixer.out_groups, "groups of attention heads"
    return mixer.num_heads, "attention heads"


def check_heads(number: int, name: str, count: int) -> None:
    """Raises ConfigurationError when `count` shards cannot have equally many of `number` heads, called `name`."""
    if number % count:
        raise ConfigurationError(
            f"{count} shards cannot share {number} {name} evenly: set --num-shard to a divisor of that number"
        )


def check_experts(spec: MoeSpec, shards: AskedShards) -> None:
    """Raises ConfigurationError when a shard would get nothing of the experts."""
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
    if not any(layer.moe is not None for layer in config.decoder.layers):
        raise ConfigurationError("--enable-expert-parallel is for mixtures, and the model has no experts: leave it out")


def _check_context_parallel(config: AnyModelConfig) -> None:
    latent = []
    if isinstance(config, ModelConfig):
        latent = [each for each in config.decoder.mixers if isinstance(each, LatentAttentionSpec)]
    if not latent:
        raise ConfigurationError(
            "--enable-context-parallel is for latent attention (DeepSeek, Kimi and others), and "
            f"{config.architecture} has none: leave it out"
        )
    if any(each.indexer is not None or each.top_k for each in latent):
        raise ConfigurationError(
            f"--enable-context-parallel is not there for {config.architecture}, whose heads attend to positions that "
            "an indexer chooses: leave it out"
        )
