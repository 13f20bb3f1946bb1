"""Memory that the weights of a model take, whatever code computes it and wherever they come from."""

from pathlib import Path

from ..config.fallback import FallbackConfig
from ..config.implementation import AnyModelConfig
from ..config.sizes import class_bytes, served_bytes, weight_bytes


def bytes_of_weights(folder: Path, config: AnyModelConfig, itemsize: int, are_read: bool) -> int | None:
    """Returns the bytes of the weights of all ranks together, where a number that is not quantised takes `itemsize`
    bytes. Random weights (`--load-format dummy`) have the sizes of the configuration, whatever `folder` holds. None:
    `folder` does not tell how much is stored.

    Raises ModelFilesError, ConfigurationError or UnsupportedModel for files that do not tell what is to be loaded.
    """
    if are_read:
        return served_bytes(folder, config, itemsize)
    if isinstance(config, FallbackConfig):
        # Imports transformers, which takes seconds that other models need not wait.
        from .fallback import count_parameters

        return class_bytes(count_parameters(config), config, itemsize)
    return weight_bytes(config, itemsize)
