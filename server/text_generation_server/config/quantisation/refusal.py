"""The error for what is not read."""

from ...errors import UnsupportedModel
from ..json_object import JsonObject


def refused(
    config: JsonObject, key: str, found: str, instead: str = "docs/quantisation.md lists what is"
) -> UnsupportedModel:
    """`found` says what it is, `instead` what loads in its place."""
    where = f"`{key}` in `quantization_config`" if key else "`quantization_config`"
    return UnsupportedModel(f"{where}: {found} is not supported; {instead}")
