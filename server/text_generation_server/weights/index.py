"""Which file of a model folder holds which tensor."""

from pathlib import Path

from ..config.files import INDEX, SINGLE, is_duplicate
from ..config.json_object import JsonObject
from ..errors import ModelFilesError


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a model: those its index names, else the single one.

    Raises ModelFilesError when there are none, or when the index names anything but files beside it: an index is
    untrusted, and `../x` would read outside the folder.
    """
    if (folder / INDEX).is_file():
        return _indexed(folder)
    if (folder / SINGLE).is_file():
        return [folder / SINGLE]
    found = sorted(path for path in folder.glob("*.safetensors") if not is_duplicate(path.name))
    if len(found) == 1:
        return found
    raise ModelFilesError(
        f"{folder} has neither {INDEX} nor {SINGLE}: convert the model with --auto-convert, or fetch all its files"
    )


def _indexed(folder: Path) -> list[Path]:
    path = folder / INDEX
    weight_map = JsonObject.from_file(path).child("weight_map")
    names = sorted({weight_map.string(tensor) for tensor in weight_map})
    if not names:
        raise ModelFilesError(f"{path}: `weight_map` is missing or empty")
    for name in names:
        if Path(name).name != name or not name.endswith(".safetensors"):
            raise ModelFilesError(f"{path}: {name!r} is not the name of a safetensors file in the model folder")
        if not (folder / name).is_file():
            raise ModelFilesError(f"{path} names {name}, which is not in the model folder")
    return [folder / name for name in names]
