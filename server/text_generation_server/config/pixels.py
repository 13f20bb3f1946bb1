"""What becomes of the bytes of pixels before a vision tower reads them: `preprocessor_config.json` of a model."""

from dataclasses import dataclass
from pathlib import Path

from ..errors import UnsupportedModel
from .json_object import JsonObject

_NESTED, _FILE = "processor_config.json", "preprocessor_config.json"
_KEY = "image_processor"
_KIMI_KEY = "media_proc_cfg"
_BYTE = 1 / 255


@dataclass(frozen=True)
class PixelSpec:
    """A byte b of channel c becomes `(scale * b - mean[c]) / std[c]`."""

    scale: float = _BYTE
    mean: tuple[float, ...] = (0.0, 0.0, 0.0)
    std: tuple[float, ...] = (1.0, 1.0, 1.0)
    coarse: bool = False
    """Whether each step of this is rounded to bfloat16."""


def read_pixels(folder: Path | None) -> PixelSpec:
    """Reads the file of a model folder; newer versions of Transformers write the same into another file. That of
    MiniCPM-V has names of its own.

    Raises UnsupportedModel where neither is there, ModelFilesError or ConfigurationError for wrong ones.
    """
    config = _processor(folder)
    scale = config.number("rescale_factor", default=_BYTE) if config.boolean("do_rescale", default=True) else 1.0
    if not config.boolean("do_normalize", default=True):
        return PixelSpec(scale)
    before = "norm" if "norm_mean" in config else "image"
    mean = config.numbers(f"{before}_mean", 3, zero=True)
    return PixelSpec(scale, mean, config.numbers(f"{before}_std", 3))


def _processor(folder: Path | None) -> JsonObject:
    if folder is not None and (folder / _NESTED).is_file():
        whole = JsonObject.from_file(folder / _NESTED)
        if _KEY in whole:
            return whole.child(_KEY)
    if folder is not None and (folder / _FILE).is_file():
        config = JsonObject.from_file(folder / _FILE)
        return config.child(_KIMI_KEY) if _KIMI_KEY in config else config
    raise UnsupportedModel(f"the model folder has no {_FILE}, which says how pixels are read")
