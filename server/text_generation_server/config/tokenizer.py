"""Check of tokenizer files, without a tokenizer being made: the router reads `tokenizer.json`, or makes it of
others.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import cast

from ..errors import ModelFilesError
from .json_object import JsonObject

_FILES = ("tokenizer.json", "tekken.json", "*.model", "*.tiktoken", "vocab.json", "vocab.txt")
_READ = (
    "BaichuanTokenizer",
    "ChatGLM4Tokenizer",
    "ChatGLMTokenizer",
    "InternLM2Tokenizer",
    "InternLM3Tokenizer",
    "InternLMTokenizer",
    "InternLMXComposer2Tokenizer",
    "QWenTokenizer",
    "YiTokenizer",
)
"""Classes of models' own code that are known to the router (`published_tokenizers.py`)."""
_ENDS_OF_TURNS = ("<|user|>", "<|observation|>")
"""ChatGLM 3 ends its turn with the role of the next one; only code of the model says so."""


def check_tokenizer(folder: Path) -> None:
    """Raises ModelFilesError where there is none, or one that only code of the model can read."""
    if not any(next(folder.glob(pattern), None) for pattern in _FILES):
        raise ModelFilesError(
            f"{folder} has no tokenizer: none of {', '.join(_FILES)}; fetch the tokenizer.json of the model"
        )
    settings = folder / "tokenizer_config.json"
    if (folder / "tokenizer.json").is_file() or not settings.is_file():
        return
    found = JsonObject.from_file(settings).child("auto_map").plain().get("AutoTokenizer")
    names = cast("list[object]", found) if isinstance(found, list) else [found]
    own = next((name.rpartition(".")[2] for name in names if isinstance(name, str)), None)
    if own is not None and own not in _READ:
        raise ModelFilesError(
            f"{folder} has no tokenizer.json, and its tokenizer is code of the model ({own}), which is never run: put "
            "a tokenizer.json there, which a converted copy of the model may have"
        )


def eos_tokens(folder: Path) -> set[int]:
    """Ids of the tokens that end a text by the tokenizer's own files; none where they name none, or do not tell its id.
    Raises ModelFilesError for a `tokenizer_config.json` or `tokenizer.json` that cannot be read; of other files such a
    one tells nothing.
    """
    settings = _read(folder / "tokenizer_config.json")
    ends = _ENDS_OF_TURNS if settings.get("tokenizer_class") == "ChatGLMTokenizer" else ()
    tokens = (_eos_token(folder, settings), *ends)
    ids = (token_id(folder, token) for token in tokens if token is not None)
    return {found for found in ids if found is not None}


def token_id(folder: Path, token: str) -> int | None:
    """The id of a token by the tokenizer's own files; None where they do not tell it. Raises as `eos_tokens`."""
    settings = _read(folder / "tokenizer_config.json")
    ids = (found for found in _ids(folder, settings, token) if isinstance(found, int) and not isinstance(found, bool))
    return next((found for found in ids if found >= 0), None)


def _eos_token(folder: Path, settings: dict[str, object]) -> str | None:
    # Older models repeat their special tokens in the second file.
    for contents in (settings, _tell(folder / "special_tokens_map.json")):
        value = contents.get("eos_token")
        if isinstance(value, dict):
            value = _object(value).get("content")
        if isinstance(value, str):
            return value
    return None


def _ids(folder: Path, settings: dict[str, object], token: str) -> Iterator[object]:
    """What each of the files that list tokens has for this one. The largest come last and are seldom asked."""
    added = _object(settings.get("added_tokens_decoder"))
    yield from (int(key) for key in added if _is_id(key) and _object(added[key]).get("content") == token)
    tokenizer = _read(folder / "tokenizer.json")
    listed = map(_object, _list(tokenizer.get("added_tokens")))
    yield from (entry.get("id") for entry in listed if entry.get("content") == token)
    vocabulary = _object(tokenizer.get("model")).get("vocab")
    yield _object(vocabulary).get(token)
    # Pieces with their scores, in the order of their ids.
    yield from (index for index, piece in enumerate(_list(vocabulary)) if _list(piece)[:1] == [token])
    for name in ("added_tokens.json", "vocab.json"):
        yield _tell(folder / name).get(token)


def _is_id(key: str) -> bool:
    # Longer ones are no ids, and some are no numbers to Python.
    return key.isdecimal() and len(key) < 10


def _object(value: object) -> dict[str, object]:
    """Empty for other values."""
    return cast("dict[str, object]", value) if isinstance(value, dict) else {}


def _list(value: object) -> list[object]:
    """Empty for other values."""
    return cast("list[object]", value) if isinstance(value, list) else []


def _read(path: Path) -> dict[str, object]:
    """Empty where there is no such file."""
    return _object(JsonObject.from_file(path).plain()) if path.is_file() else {}


def _tell(path: Path) -> dict[str, object]:
    """Empty, too, where the file cannot be read."""
    try:
        return _read(path)
    except ModelFilesError:
        return {}
