"""What can be known to be wrong with a model before its weights are downloaded or read."""

from dataclasses import dataclass
from pathlib import Path

from ..errors import ConfigurationError, ModelFilesError
from .memory import check_machine
from .model import ModelConfig
from .server import Environment

_TOKENIZERS = ("tokenizer.json", "*.model", "*.tiktoken", "vocab.json", "vocab.txt")
"""The router reads the first, and makes it from the others with transformers."""


@dataclass(frozen=True)
class AskedLimits:
    """Limits of the command line; None where the model and the memory decide."""

    max_input_tokens: int | None = None
    max_total_tokens: int | None = None


def check_servable(folder: Path, environment: Environment, limits: AskedLimits, needs_weights: bool = True) -> None:
    """Raises `ModelFilesError`, `UnsupportedModel`, `ConfigurationError` or `OutOfMemory` when `folder` cannot be
    served like this. `needs_weights`: whether its weights will be read.
    """
    config = ModelConfig.from_folder(folder)
    if environment.rope_scaling is not None and environment.rope_factor is not None:
        config = config.with_rope(environment.rope_scaling, environment.rope_factor)
    if not any(next(folder.glob(pattern), None) for pattern in _TOKENIZERS):
        raise ModelFilesError(
            f"{folder} has no tokenizer: none of {', '.join(_TOKENIZERS)}; fetch the tokenizer.json of the model"
        )
    _check_limits(limits, config.max_context_length)
    if needs_weights:
        check_machine(folder)


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
