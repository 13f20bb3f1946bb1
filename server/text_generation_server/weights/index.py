"""Index of a model folder: which file holds which tensor."""

from pathlib import Path

from ..config.files import INDEX, SINGLE, indexed_files, is_duplicate
from ..errors import ModelFilesError


def weight_files(folder: Path) -> list[Path]:
    """Returns the safetensors files of a model: those that its index names, else the single one.

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
    files = indexed_files(folder)
    for path in files:
        if not path.is_file():
            raise ModelFilesError(f"{folder / INDEX} names {path.name}, which is not in the model folder")
    return files
