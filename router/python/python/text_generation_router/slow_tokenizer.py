"""Tokenizers without a `tokenizer.json`, converted once at start."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from collections.abc import Callable


def convert(folder: str) -> str:
    """Return the text of a `tokenizer.json` for the model in `folder`.

    Nothing is downloaded and no code of the model runs.

    Raises:
        ImportError: `transformers` is not installed.
        OSError, ValueError: the folder has no tokenizer that can be converted.

    """
    # Takes seconds, and most models do not need it.
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    load = cast("Callable[..., object]", AutoTokenizer.from_pretrained)  # pyright: ignore[reportUnknownMemberType]
    tokenizer = load(folder, local_files_only=True, trust_remote_code=False)
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise ValueError(f"{type(tokenizer).__name__} has no fast version")
    return tokenizer.backend_tokenizer.to_str()
