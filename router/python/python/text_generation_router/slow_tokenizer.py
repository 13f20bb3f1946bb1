"""Tokenizers without a `tokenizer.json`, converted once at start."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from collections.abc import Callable

_LFS_POINTER = b"version https://git-lfs.github.com/spec/"
_REMEDY = "put a tokenizer.json into its folder, which a converted copy of the model may have"


def convert(folder: str) -> str:
    """Return the text of a `tokenizer.json` for the model in `folder`.

    Nothing is downloaded and no code of the model runs.

    Raises:
        ImportError: `transformers` or what it reads the files with is not installed.
        OSError, ValueError: the folder has no tokenizer that can be converted.

    """
    _refuse_pointers(Path(folder))
    own_code = _own_code(Path(folder))
    if own_code is not None:
        from .published_tokenizers import READERS

        if own_code not in READERS:
            raise ValueError(f"it is code of the model ({own_code}), and no code of a model is run: {_REMEDY}")
        return READERS[own_code](Path(folder))
    # Takes seconds, and most models do not need it.
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    load = cast("Callable[..., object]", AutoTokenizer.from_pretrained)  # pyright: ignore[reportUnknownMemberType]
    tokenizer = load(folder, local_files_only=True, trust_remote_code=False)
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise ValueError(f"{type(tokenizer).__name__} has no fast version: {_REMEDY}")
    return tokenizer.backend_tokenizer.to_str()


def _refuse_pointers(folder: Path) -> None:
    """Raise ValueError where Git LFS has left a pointer in the place of a file: readers would call that damaged."""
    for path in (path for pattern in ("*.json", "*.model", "*.tiktoken", "*.txt") for path in folder.glob(pattern)):
        with path.open("rb") as file:
            if file.read(len(_LFS_POINTER)) == _LFS_POINTER:
                raise ValueError(
                    f"{path} is only a pointer of Git LFS, not the file itself: run `git lfs pull` in that folder, or "
                    "download the model again"
                )


def _own_code(folder: Path) -> str | None:
    """Name of the class that the files of a model bring along, the slow one where there are two."""
    path = folder / "tokenizer_config.json"
    if not path.is_file():
        return None
    settings: Any = json.loads(path.read_text(encoding="utf-8"))
    own = cast("dict[str, Any]", settings).get("auto_map") if isinstance(settings, dict) else None
    found = cast("dict[str, Any]", own).get("AutoTokenizer") if isinstance(own, dict) else None
    names = cast("list[object]", found if isinstance(found, list) else [found])
    first = next((name for name in names if isinstance(name, str)), None)
    return None if first is None else first.rpartition(".")[2]
