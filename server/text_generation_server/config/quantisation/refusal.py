"""The error for an unsupported quantisation."""

from ...errors import UnsupportedModel


def refused(key: str, found: str, instead: str = "docs/quantisation.md lists what is") -> UnsupportedModel:
    """Returns the error; `found` says what the checkpoint is, `instead` what loads in its place."""
    return UnsupportedModel(f"`{key}` in `quantization_config`: {found} is not supported; {instead}")
