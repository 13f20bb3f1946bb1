"""Checks of a model before its weights are downloaded or read."""

from dataclasses import dataclass
from pathlib import Path

from ..errors import ConfigurationError
from .fallback import FallbackConfig
from .files import stored_bytes, tensor_files
from .implementation import AnyModelConfig, ModelImpl, read_model_config
from .memory import check_machine
from .model import ModelConfig
from .server import Environment
from .shards import ONE_SHARD, AskedShards, check_shards
from .sizes import class_bytes, weight_bytes
from .tokenizer import check_tokenizer

_HALF = 2
"""Bytes of a number that is not quantised, while the device is unknown."""


@dataclass(frozen=True)
class AskedLimits:
    """Limits of the command line; None leaves them to model and memory."""

    max_input_tokens: int | None = None
    max_total_tokens: int | None = None


def check_servable(
    folder: Path,
    environment: Environment,
    limits: AskedLimits,
    needs_weights: bool = True,
    model_impl: ModelImpl = "auto",
    quantize: str | None = None,
    shards: AskedShards = ONE_SHARD,
) -> AnyModelConfig:
    """Returns the configuration of `folder`. Raises `ModelFilesError`, `UnsupportedModel`, `ConfigurationError` or
    `OutOfMemory` when it cannot be served so. `needs_weights` says whether its weights will be read.

    `models/fallback/`, which needs torch, checks whether a class of Transformers can run, and be sharded.
    """
    config = override_rope(read_model_config(folder, model_impl, quantize), environment)
    check_shards(config, shards)
    check_tokenizer(folder)
    positions = config.max_position_embeddings if isinstance(config, FallbackConfig) else config.max_context_length
    if positions is not None:
        _check_limits(limits, positions)
    check_machine(_least_bytes(folder, config, needs_weights))
    return config


def _least_bytes(folder: Path, config: AnyModelConfig, needs_weights: bool) -> int | None:
    """Returns the least bytes of the weights, whatever `--dtype` will be: 16 bits per number, or fewer as quantised.
    None: the size is unknown.
    """
    # Random weights are as large as the configuration says, whatever is in the folder.
    stored = stored_bytes(folder) if needs_weights else None
    if isinstance(config, ModelConfig) and (config.is_less_than_files or stored is None):
        # Before a download, files without an index have no size: the configuration tells it.
        return weight_bytes(config, _HALF, tensor_files(folder) if needs_weights else ())
    # Files without a type may have numbers of 32 bits.
    least = stored // 2 if stored and config.dtype in (None, "float32") else stored
    if least and isinstance(config, FallbackConfig) and config.schemes.online:
        return class_bytes(least // _HALF, config, _HALF)
    return least


def override_rope(config: AnyModelConfig, environment: Environment) -> AnyModelConfig:
    """Applies ROPE_SCALING and ROPE_FACTOR, which override the checkpoint."""
    scaling, factor = environment.rope_scaling, environment.rope_factor
    if scaling is None and factor is None:
        return config
    if scaling is None or factor is None:
        raise ConfigurationError("--rope-scaling and --rope-factor go together: set both or neither")
    if isinstance(config, FallbackConfig):
        raise ConfigurationError(
            f"--rope-scaling does not apply to {config.architecture}, which runs through Transformers: leave it out "
            "and set `rope_parameters` in config.json"
        )
    return config.with_rope(scaling, factor)


def check_deterministic(asked: bool, config: AnyModelConfig, shards: AskedShards) -> None:
    """Raises `ConfigurationError` for a model whose results may differ with the batch, so shared."""
    if asked and shards.context_parallel:
        raise ConfigurationError(
            "--deterministic does not go with --enable-context-parallel, by which the slots of a request decide how "
            "its positions are added up: leave one of them out"
        )
    if asked and isinstance(config, FallbackConfig):
        raise ConfigurationError(
            f"--deterministic does not apply to {config.architecture}, which runs through Transformers: leave it out"
        )


def _check_limits(limits: AskedLimits, positions: int) -> None:
    for flag, value, most in (
        ("--max-total-tokens", limits.max_total_tokens, positions),
        ("--max-input-tokens", limits.max_input_tokens, positions - 1),
    ):
        if value is not None and value > most:
            raise ConfigurationError(
                f"{flag} {value} is too many for the {positions} positions of the model; lower it to at most {most}, "
                "or set --rope-scaling and --rope-factor"
            )
