"""The error for a quantisation that is not read."""

from ...errors import UnsupportedModel


def refused(key: str, found: str, instead: str = "docs/quantisation.md lists what is") -> UnsupportedModel:
    """`found` says what it is, `instead` what loads in its place."""
    return UnsupportedModel(f"`{key}` in `quantization_config`: {found} is not supported; {instead}")
