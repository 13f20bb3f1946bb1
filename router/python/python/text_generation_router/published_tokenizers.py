"""Tokenizers that models bring as code of their own, made from their files alone.

What is made is compared with the library that the code of the model calls.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_SAMPLES = (
    "Hello world",
    " two  spaces before and after  ",
    "lines\n\nand\ttabs\r\n",
    "def f(x):\n    return x[1] != 12345.678",
    "Grüße, naïve café, 日本語の文字, 中文。 🙂",
)
_REMEDY = "put a tokenizer.json into its folder"
_QWEN_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", *(f"<|extra_{index}|>" for index in range(205)))
_QWEN_PLACES = ("<ref>", "</ref>", "<box>", "</box>", "<quad>", "</quad>")
"""By which Qwen-VL points at things in its answers, so they are no special tokens, which answers leave out."""
_QWEN_IMAGES = ("<img>", "</img>", "<imgpad>")
_GLM_PATTERN = _QWEN_PATTERN.replace(r"\p{N}| ?", r"\p{N}{1,3}| ?")
_GLM_ROLES = ("<|system|>", "<|user|>", "<|assistant|>", "<|observation|>")
_GLM_SPECIAL = (
    *("<|endoftext|>", "[MASK]", "[gMASK]", "[sMASK]", "<sop>", "<eop>"),
    *_GLM_ROLES,
    *("<|begin_of_image|>", "<|end_of_image|>", "<|begin_of_video|>", "<|end_of_video|>"),
)
_CHATGLM_SPECIAL = ("[MASK]", "[gMASK]", "[sMASK]", "sop", "eop", *_GLM_ROLES)
"""Of version 3; version 2 has no roles, and rows of its embedding in their place that it never reads."""


def _sentencepiece(folder: Path) -> str:
    """Return one that does what sentencepiece does, with special tokens and BOS as the settings of the folder say."""
    return _of_pieces(folder).to_str()


def _of_pieces(folder: Path) -> Any:
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
    return tokenizer


def _chatglm(folder: Path) -> str:
    """Return that of ChatGLM 2 and 3, whose code puts its special tokens behind the pieces of sentencepiece.

    "sop" and "eop" are special where they stand alone: they occur in words.
    """
    from tokenizers import AddedToken

    path = folder / "tokenizer.model"
    if not path.is_file():
        raise ValueError(f"{folder} has no tokenizer.model, which ChatGLM 2 and 3 have; ChatGLM 1 is not served")
    # Settings of the folder have some of these tokens, whose numbers would not stay.
    with tempfile.TemporaryDirectory() as apart:
        shutil.copy(path, apart)
        tokenizer = _of_pieces(Path(apart))
    pieces = tokenizer.get_vocab_size(with_added_tokens=False)
    tokenizer.add_special_tokens(
        [AddedToken(token, single_word=token.isalpha(), normalized=False) for token in _CHATGLM_SPECIAL]
    )
    if tokenizer.token_to_id(_CHATGLM_SPECIAL[0]) != pieces:
        raise ValueError(f"{path} has special tokens of ChatGLM among its pieces: {_REMEDY}")
    _begin(tokenizer, ("[gMASK]", "sop"))
    return tokenizer.to_str()


def _glm(folder: Path) -> str:
    """Return that of GLM-4 9B, whose pattern is in its code; special tokens are those of its settings."""
    tokenizer = _of_ranks(folder / "tokenizer.model", _GLM_PATTERN, _added_tokens(folder) or _GLM_SPECIAL)
    _begin(tokenizer, ("[gMASK]", "<sop>"))
    return tokenizer.to_str()


def _qwen(folder: Path) -> str:
    """Return that of Qwen 1 and Qwen-VL, whose pattern and special tokens are in their code."""
    from tokenizers import AddedToken, normalizers

    path = next(folder.glob("*.tiktoken"), folder / "qwen.tiktoken")
    tokenizer = _of_ranks(path, _QWEN_PATTERN, _QWEN_SPECIAL, normalizers.NFC())
    config = folder / "config.json"
    if config.is_file() and "visual" in json.loads(config.read_text(encoding="utf-8")):
        tokenizer.add_tokens([AddedToken(token, normalized=False) for token in _QWEN_PLACES])
        tokenizer.add_special_tokens(list(_QWEN_IMAGES))
    return tokenizer.to_str()


def _of_ranks(path: Path, pattern: str, special_tokens: Sequence[str], normalizer: Any = None) -> Any:
    """Return one that does what tiktoken does, with special tokens after those of the file."""
    import tiktoken
    from tiktoken.load import load_tiktoken_bpe
    from transformers.convert_slow_tokenizer import TikTokenConverter

    converter: Any = TikTokenConverter(str(path), pattern, extra_special_tokens=list(special_tokens))
    tokenizer = converter.converted()
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    ranks = load_tiktoken_bpe(str(path))
    special = {token: len(ranks) + index for index, token in enumerate(special_tokens)}
    original = tiktoken.Encoding(path.stem, pat_str=pattern, mergeable_ranks=ranks, special_tokens=special)
    _compare(tokenizer, original.encode_ordinary, path)
    return tokenizer


def _added_tokens(folder: Path) -> list[str]:
    """Return the special tokens of `tokenizer_config.json` in the order of their ids, which have no gaps."""
    settings: Any = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    added: dict[str, Any] = settings.get("added_tokens_decoder") or {}
    ids = sorted(map(int, added))
    if ids and ids != list(range(ids[0], ids[0] + len(ids))):
        raise ValueError(f"`added_tokens_decoder` in {folder / 'tokenizer_config.json'} lacks ids: {_REMEDY}")
    return [str(added[str(each)]["content"]) for each in ids]


def _begin(tokenizer: Any, tokens: Sequence[str]) -> None:
    """Let every text begin with these special tokens."""
    from tokenizers import processors

    special = [(token, tokenizer.token_to_id(token)) for token in tokens]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=[*tokens, "$A"], pair=[*tokens, "$A", "$B"], special_tokens=special
    )


def _compare(tokenizer: Any, encode: Callable[[str], list[int]], path: Path) -> None:
    """Raise ValueError where ids of some text are not those of the library."""
    for text in _SAMPLES:
        if tokenizer.encode(text, add_special_tokens=False).ids != encode(text):
            raise ValueError(f"{path} has a form that is not read right: {_REMEDY}")


READERS: Mapping[str, Callable[[Path], str]] = {
    "BaichuanTokenizer": _sentencepiece,
    "ChatGLM4Tokenizer": _glm,
    "ChatGLMTokenizer": _chatglm,
    "InternLM2Tokenizer": _sentencepiece,
    "InternLM3Tokenizer": _sentencepiece,
    "InternLMTokenizer": _sentencepiece,
    "InternLMXComposer2Tokenizer": _sentencepiece,
    "QWenTokenizer": _qwen,
    "YiTokenizer": _sentencepiece,
}
"""By the class that `tokenizer_config.json` names."""
