"""Comparison of two models' vocabularies by their tokenizers' files, without a tokenizer being made."""

from collections.abc import Mapping
from pathlib import Path
from typing import cast

from ..errors import ConfigurationError
from .json_object import JsonObject

_MAIN = "tokenizer.json"
_OTHERS = ("tekken.json", "*.model", "*.tiktoken", "vocab.json", "vocab.txt")


def check_same_vocabulary(folder: Path, other: Path, flag: str) -> None:
    """Raises `ConfigurationError` where ids mean other texts to the model in `folder`, which `flag` names, than to the
    one in `other`, or where their files do not tell. Tokens that were added to a vocabulary may differ. Raises
    ModelFilesError for a tokenizer.json that cannot be read.
    """
    if folder == other or _have_same_file(folder, other):
        return
    for each in (folder, other):
        if not (each / _MAIN).is_file():
            raise ConfigurationError(
                f"{each} has no {_MAIN}, so the vocabularies of the model and of what {flag} names cannot be compared: "
                "put one there, which a converted copy of the model may have"
            )
    own, theirs = _tokens(folder), _tokens(other)
    wrong = next((id_ for id_ in sorted(own.keys() | theirs.keys()) if own.get(id_) != theirs.get(id_)), None)
    if wrong is not None:
        raise ConfigurationError(
            f"{folder / _MAIN}: id {wrong} is {_shown(own.get(wrong))}, and of the model {_shown(theirs.get(wrong))}: "
            f"{flag} names a model with another vocabulary: name one of the same family"
        )


def _have_same_file(folder: Path, other: Path) -> bool:
    """Whether both have the same file of a tokenizer."""
    names = {path.name for pattern in (_MAIN, *_OTHERS) for path in folder.glob(pattern) if path.is_file()}
    both = [name for name in sorted(names) if (other / name).is_file()]
    return any((folder / name).read_bytes() == (other / name).read_bytes() for name in both)


def _tokens(folder: Path) -> Mapping[int, str]:
    """The tokens of a vocabulary by id, without those that were added to it."""
    vocabulary = JsonObject.from_file(folder / _MAIN).child("model").plain().get("vocab")
    if isinstance(vocabulary, dict):
        pairs = cast("dict[str, object]", vocabulary).items()
        return {id_: token for token, id_ in pairs if isinstance(id_, int)}
    # Pieces with their scores, in the order of their ids.
    pieces = cast("list[object]", vocabulary) if isinstance(vocabulary, list) else []
    firsts = (cast("list[object]", piece)[:1] if isinstance(piece, list) else [] for piece in pieces)
    return {id_: str(first[0]) for id_, first in enumerate(firsts) if first}


def _shown(token: str | None) -> str:
    return "nothing" if token is None else repr(token[:40])
