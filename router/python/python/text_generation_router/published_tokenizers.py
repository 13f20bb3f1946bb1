"""Tokenizers that models bring as code of their own, made from their files alone.

What is made is compared with the library that the code of the model calls.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

_SAMPLES = (
    "Hello world",
    " two  spaces before and after  ",
    "lines\n\nand\ttabs\r\n",
    "def f(x):\n    return x[1] != 12345.678",
    "Grüße, naïve café, 日本語の文字, 中文。 🙂",
)
_QWEN_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", *(f"<|extra_{index}|>" for index in range(205)))


def _sentencepiece(folder: Path) -> str:
    """Return one that does what sentencepiece does, with special tokens and BOS as the settings of the folder say."""
    import sentencepiece
    from tokenizers import Regex, Tokenizer, decoders, normalizers
    from transformers import LlamaTokenizer

    path = folder / "tokenizer.model"
    original: Any = sentencepiece.SentencePieceProcessor(model_file=str(path))
    # The one class of transformers that reads such a file as pairs to be merged.
    load = cast("Callable[..., Any]", LlamaTokenizer.from_pretrained)  # pyright: ignore[reportUnknownMemberType]
    tokenizer = Tokenizer.from_str(load(str(folder), local_files_only=True).backend_tokenizer.to_str())
    begins = original.normalize("a").startswith("▁")
    steps: list[Any] = [normalizers.Replace(" ", "▁")]
    if begins:
        steps.insert(0, normalizers.Prepend("▁"))
    if original.normalize("a  b") == original.normalize("a b"):
        steps[:0] = [normalizers.Replace(Regex(r"\A +| +\z"), ""), normalizers.Replace(Regex(" {2,}"), " ")]
    tokenizer.normalizer = normalizers.Sequence(steps)
    tokenizer.pre_tokenizer = None  # pyright: ignore[reportAttributeAccessIssue]
    joined: list[Any] = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*joined, *([decoders.Strip(" ", 1, 0)] if begins else [])])
    _compare(tokenizer, original.encode, path)
    return tokenizer.to_str()


def _qwen(folder: Path) -> str:
    """Return that of Qwen 1, whose pattern and special tokens are in its code."""
    import tiktoken
    from tiktoken.load import load_tiktoken_bpe
    from tokenizers import normalizers
    from transformers.convert_slow_tokenizer import TikTokenConverter

    path = next(folder.glob("*.tiktoken"), folder / "qwen.tiktoken")
    converter: Any = TikTokenConverter(str(path), _QWEN_PATTERN, extra_special_tokens=list(_QWEN_SPECIAL))
    tokenizer = converter.converted()
    tokenizer.normalizer = normalizers.NFC()
    ranks = load_tiktoken_bpe(str(path))
    special = {token: len(ranks) + index for index, token in enumerate(_QWEN_SPECIAL)}
    original = tiktoken.Encoding("qwen", pat_str=_QWEN_PATTERN, mergeable_ranks=ranks, special_tokens=special)
    _compare(tokenizer, original.encode_ordinary, path)
    return tokenizer.to_str()


def _compare(tokenizer: Any, encode: Callable[[str], list[int]], path: Path) -> None:
    """Raise ValueError where ids of some text are not those of the library."""
    for text in _SAMPLES:
        if tokenizer.encode(text, add_special_tokens=False).ids != encode(text):
            raise ValueError(f"{path} has a form that is not read right: put a tokenizer.json into its folder")


READERS: Mapping[str, Callable[[Path], str]] = {
    "BaichuanTokenizer": _sentencepiece,
    "InternLM2Tokenizer": _sentencepiece,
    "InternLM3Tokenizer": _sentencepiece,
    "InternLMTokenizer": _sentencepiece,
    "QWenTokenizer": _qwen,
    "YiTokenizer": _sentencepiece,
}
"""By the class that `tokenizer_config.json` names."""
