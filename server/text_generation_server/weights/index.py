"""Index of a model folder: which file holds which tensor."""

from pathlib import Path

from ..config.files import indexed_files, is_duplicate, layout_of
from ..errors import ModelFilesError


def weight_files(folder: Path) -> list[Path]:
    """Returns the safetensors files of a model: those that its index names, else the single one.

    Raises ModelFilesError when there are none, or when the index names anything but files beside it: an index is
    untrusted, and `../x` would read outside the folder.
    """
    layout = layout_of(folder)
    if (folder / layout.index).is_file():
        return _indexed(folder, layout.index)
    if (folder / layout.single).is_file():
        return [folder / layout.single]
    found = sorted(path for path in folder.glob("*.safetensors") if not is_duplicate(path))
    if len(found) == 1:
        return found
    raise ModelFilesError(
        f"{folder} has neither {layout.index} nor {layout.single}: convert the model with --auto-convert, or fetch all "
        "its files"
    )


def _indexed(folder: Path, index: str) -> list[Path]:
    files = indexed_files(folder)
    for path in files:
        if not path.is_file():
            raise ModelFilesError(f"{folder / index} names {path.name}, which is not in the model folder")
    return files
