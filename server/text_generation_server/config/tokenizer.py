"""Whether a model has a tokenizer: the router reads `tokenizer.json`, or makes one of other files."""

from pathlib import Path
from typing import cast

from ..errors import ModelFilesError
from .json_object import JsonObject

_FILES = ("tokenizer.json", "tekken.json", "*.model", "*.tiktoken", "vocab.json", "vocab.txt")
_READ = (
    "BaichuanTokenizer",
    "InternLM2Tokenizer",
    "InternLM3Tokenizer",
    "InternLMTokenizer",
    "QWenTokenizer",
    "YiTokenizer",
)
"""Classes of models' own code that are known to the router (`published_tokenizers.py`)."""


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
