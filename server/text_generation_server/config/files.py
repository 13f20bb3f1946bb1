"""Weight files of a model folder: what its index and the names of files tell before weights are read."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError, safe_open

from ..errors import ConfigurationError, ModelFilesError
from .json_object import JsonObject


@dataclass(frozen=True)
class Layout:
    """Names of the files of a model."""

    config: str
    index: str
    single: str


TRANSFORMERS = Layout("config.json", "model.safetensors.index.json", "model.safetensors")
PARAMS = Layout("params.json", "consolidated.safetensors.index.json", "consolidated.safetensors")
"""Mistral's own. Many of its models have both, and the other one counts."""


def layout_of(folder: Path) -> Layout:
    """The one in which a model is read."""
    has_params_alone = (folder / PARAMS.config).is_file() and not (folder / TRANSFORMERS.config).is_file()
    return PARAMS if has_params_alone else TRANSFORMERS


def stored_bytes(folder: Path) -> int | None:
    """Returns the bytes of the stored weights, from the index or from the files. None: neither tells, as before a
    download. Raises ModelFilesError or ConfigurationError for an unreadable index.
    """
    layout = layout_of(folder)
    if (folder / layout.index).is_file():
        index = JsonObject.from_file(folder / layout.index)
        return _said(index) or _size_of([folder / name for name in _named(index)])
    single = folder / layout.single
    files = [single] if single.is_file() else [path for path in folder.glob("*.safetensors") if path.is_file()]
    return _size_of([path for path in files if not is_duplicate(path)])


def tensor_files(folder: Path) -> Mapping[str, Path]:
    """Returns the file of each tensor, which may not exist yet. Wrong files are reported when weights are read."""
    layout = layout_of(folder)
    try:
        if (folder / layout.index).is_file():
            names = JsonObject.from_file(folder / layout.index).child("weight_map")
            return {tensor: folder / Path(names.string(tensor)).name for tensor in names}
        with safe_open(folder / layout.single, framework="numpy") as file:
            return dict.fromkeys(file.keys(), folder / layout.single)
    except (OSError, ModelFilesError, ConfigurationError, SafetensorError):
        return {}


def indexed_files(folder: Path) -> list[Path]:
    """Returns the files that the index names, whether they exist or not.

    Raises ModelFilesError or ConfigurationError for an index that is unreadable, names no files, or names files outside
    the folder: an index is untrusted, and `../x` would read another folder.
    """
    path = folder / layout_of(folder).index
    weight_map = JsonObject.from_file(path).child("weight_map")
    names = sorted({weight_map.string(tensor) for tensor in weight_map})
    if not names:
        raise ModelFilesError(f"{path}: `weight_map` is missing or empty")
    for name in names:
        if Path(name).name != name or name == "..":
            raise ModelFilesError(
                f"{path} names {name!r}, which is not in the model folder itself: an index may only name safetensors "
                "files beside it, so that nothing else is read"
            )
        if not name.endswith(".safetensors"):
            raise ModelFilesError(f"{path} names {name!r}, which is not the name of a safetensors file")
    return [folder / name for name in names]


def is_duplicate(path: Path) -> bool:
    """Whether a file holds the weights once more, in the layout of their authors."""
    return path.name.startswith("consolidated") and layout_of(path.parent) is TRANSFORMERS


def _said(index: JsonObject) -> int | None:
    """Returns `total_size`. Only estimates need it, and some tools write 0 or text, which counts as absent."""
    try:
        return index.child("metadata").integer("total_size", maximum=2**63 - 1)
    except ConfigurationError:
        return None


def _named(index: JsonObject) -> set[str]:
    """Returns the names of the files that the index names. They are checked when weights are read."""
    weight_map = index.child("weight_map")
    return {Path(weight_map.string(tensor)).name for tensor in weight_map}


def _size_of(files: list[Path]) -> int | None:
    """Returns the bytes of all files; None where one is missing, and for an empty list."""
    return sum(path.stat().st_size for path in files) or None if all(path.is_file() for path in files) else None
