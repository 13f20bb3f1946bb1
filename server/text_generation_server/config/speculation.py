"""What speculation needs of a model. Imports no torch."""

from ..errors import ConfigurationError
from .fallback import FallbackConfig
from .implementation import AnyModelConfig

MAX_DRAFTS = 15
"""The most drafts of a row in one step."""


def check_speculation(drafts: int, config: AnyModelConfig) -> None:
    """Raises `ConfigurationError` for a model whose steps compute one token of a request alone."""
    if not drafts:
        return
    if isinstance(config, FallbackConfig):
        raise ConfigurationError(
            f"--speculate does not apply to {config.architecture}, which runs through Transformers: leave it out"
        )
