"""Reader of quantisation schemes, from the configuration of a checkpoint. It refuses unsupported formats by name."""

from collections.abc import Callable, Mapping
from pathlib import Path

from ...errors import UnsupportedModel
from ..json_object import JsonObject
from .compressed_tensors import compressed_tensors
from .eight_bit import bitsandbytes, fbgemm_fp8, fp8
from .grouped import auto_round, awq, gptq, mxfp4
from .modelopt import modelopt
from .refusal import refused
from .schemes import UNQUANTISED, Schemes
from .stored import stored_schemes

_READERS: Mapping[str, Callable[[JsonObject], Schemes]] = {
    "compressed-tensors": compressed_tensors,
    "fp8": fp8,
    "fbgemm_fp8": fbgemm_fp8,
    "modelopt": modelopt,
    "bitsandbytes": bitsandbytes,
    "gptq": gptq,
    "awq": awq,
    "auto-round": auto_round,
    "mxfp4": mxfp4,
}
_OTHER_NAMES = {
    "compressed_tensors": "compressed-tensors",
    "auto_round": "auto-round",
    "mxfp8": "fp8",
    **{f"modelopt_{kind}": "modelopt" for kind in ("fp8", "fp4", "mxfp8", "mixed")},
}
"""Of methods."""
_KEYS = ("quantization_config", "compression_config")
_FILES = {"quantize_config.json": "gptq", "quant_config.json": "awq", "hf_quant_config.json": "modelopt"}
"""Files beside `config.json` in which older tools describe their format, and the method of each."""


def read_schemes(config: JsonObject, folder: Path | None = None) -> Schemes:
    """Reads the schemes from `config.json`, from another file of `folder`, or from its tensors. Raises UnsupportedModel
    for unsupported formats, ConfigurationError for wrong values, ModelFilesError for unreadable files.
    """
    _check_not_mlx(config)
    for holder in (config, config.child("text_config")):
        for key in _KEYS:
            if key in holder:
                return _read(holder.child(key), "compressed-tensors" if key == "compression_config" else None)
    if folder is not None:
        for name, method in _FILES.items():
            if (folder / name).is_file():
                found = JsonObject.from_file(folder / name)
                return _read(found, "awq" if "zero_point" in found else method)
        return stored_schemes(folder) or UNQUANTISED
    return UNQUANTISED


def _check_not_mlx(config: JsonObject) -> None:
    """Refuses MLX, which has its own key; newer versions repeat it under the usual key, without a method."""
    described = isinstance(value := config.plain().get(_KEYS[0]), dict) and "quant_method" in value
    if isinstance(config.plain().get("quantization"), dict) and not described:
        raise UnsupportedModel(
            "`quantization` in config.json: checkpoints that MLX quantised are not supported; use the checkpoint that "
            "it was made from, or a GPTQ or AWQ checkpoint of the model (docs/quantisation.md)"
        )


def _read(config: JsonObject, default: str | None) -> Schemes:
    method = config.string("quant_method", default="").lower() or default or _guessed(config)
    method = _OTHER_NAMES.get(method, method)
    if method not in _READERS:
        raise UnsupportedModel(
            f"`quantization_config` in config.json: checkpoints quantised by {method!r} are not supported; read are "
            f"{', '.join(_READERS)} (docs/quantisation.md)"
        )
    return _READERS[method](config)


def _guessed(config: JsonObject) -> str:
    """Returns the method of a configuration that does not name it."""
    if "config_groups" in config:
        return "compressed-tensors"
    if "load_in_4bit" in config or "load_in_8bit" in config:
        return "bitsandbytes"
    if "bits" in config and "group_size" in config:
        return "gptq"
    raise refused("quant_method", "a checkpoint that does not say by what it was quantised")
