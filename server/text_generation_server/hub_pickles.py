"""Converts `.bin` weights, which are pickles, to safetensors, by torch's loader that runs no code of a file."""

import json
import logging
import os
from collections.abc import Sequence
from pathlib import Path

from .config.pointer import refuse_pointer
from .errors import ModelFilesError

logger = logging.getLogger(__name__)


def convert(folder: Path, pickles: Sequence[Path]) -> None:
    """Writes `model*.safetensors` beside `pytorch_model*.bin`, and an index where there is more than one file.

    A tensor with two names is written under both, because `config.json` decides which of them the model reads. The
    files get their names when all of them are complete, so an interrupted conversion starts again.
    """
    files = {path: path.name.replace("pytorch_model", "model").replace(".bin", ".safetensors") for path in pickles}
    if not os.access(folder, os.W_OK):
        raise ModelFilesError(f"cannot convert the .bin weights: {folder} is not writable")
    weight_map: dict[str, str] = {}
    for path, name in files.items():
        logger.info("converting", extra={"file": path.name})
        weight_map.update(dict.fromkeys(_convert_file(path, _partial(folder / name)), name))
    if len(files) > 1:
        index = {"metadata": {}, "weight_map": weight_map}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2))
    for name in files.values():
        _partial(folder / name).replace(folder / name)


def _partial(path: Path) -> Path:
    return path.with_suffix(".partial")


def _convert_file(source: Path, target: Path) -> list[str]:
    """Converts one file and returns the names of its tensors."""
    import torch
    from safetensors.torch import save_file

    try:
        loaded = torch.load(source, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged file makes the reader fail in any way there is
        refuse_pointer(source)
        raise ModelFilesError(f"{source} is damaged, or holds more than tensors, and is not loaded") from error
    if not isinstance(loaded, dict) or not all(isinstance(value, torch.Tensor) for value in loaded.values()):
        raise ModelFilesError(f"{source} must hold a flat dictionary of tensors")
    # safetensors allows neither views of larger tensors nor shared memory, so each tensor is copied.
    tensors = {name: tensor.contiguous().clone() for name, tensor in loaded.items()}
    save_file(tensors, target, metadata={"format": "pt"})
    return list(tensors)
