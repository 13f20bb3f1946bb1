"""Git LFS pointers, which stand for files that were not fetched."""

from pathlib import Path

from ..errors import ModelFilesError

_START = b"version https://git-lfs.github.com/spec/"


def refuse_pointer(path: Path) -> None:
    """Raises ModelFilesError where `path` is such a pointer; else returns, also where it cannot be read."""
    try:
        with path.open("rb") as file:
            start = file.read(len(_START))
    except OSError:
        return
    if start == _START:
        raise ModelFilesError(
            f"{path} is only a pointer of Git LFS, not the file itself: run `git lfs pull` in that folder, or download "
            "the model again"
        )
