"""Tokenizers that have no `tokenizer.json` give the ids of the library that their model was made with."""

from __future__ import annotations

import base64
import io
import json
import unicodedata
from typing import TYPE_CHECKING, Any

import pytest
import sentencepiece
import tiktoken
from tokenizers import Tokenizer

from text_generation_router.published_tokenizers import READERS
from text_generation_router.slow_tokenizer import convert

if TYPE_CHECKING:
    from pathlib import Path

TEXTS = ["The quick brown fox", "  two  spaces \n", "naïve café, 12345", "x = [i\t* 2]\r\n", "你好世界 🙂", " ", ""]
CORPUS = ["the quick brown fox jumps over the lazy dog", "naïve café", "你好世界", "for i in range(10): print(i)"] * 9


def sentencepiece_model(folder: Path, *, begins: bool, collapses: bool, **options: Any) -> Any:
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS),
        model_writer=written,
        model_type="bpe",
        vocab_size=340,
        byte_fallback=True,
        normalization_rule_name="identity",
        add_dummy_prefix=begins,
        remove_extra_whitespaces=collapses,
        minloglevel=2,
        **options,
    )
    (folder / "tokenizer.model").write_bytes(written.getvalue())
    return sentencepiece.SentencePieceProcessor(model_proto=written.getvalue())


def settings(folder: Path, own_class: str | None = None, **values: object) -> None:
    tokens = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "add_bos_token": False}
    own = {"auto_map": {"AutoTokenizer": [f"theirs.{own_class}", None]}} if own_class else {}
    (folder / "tokenizer_config.json").write_text(json.dumps({**tokens, **own, **values}))
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
    (folder / "theirs.py").write_text("raise SystemExit('was run')")


def byte_pairs(folder: Path, name: str) -> dict[bytes, int]:
    """Ranks of all bytes and some words, in tiktoken's file."""
    words = [b"he", b" t", b" th", b" the", b"qu", b"qui", b"12", "é".encode(), "你".encode()[:2], "你".encode()]
    ranks = {token: rank for rank, token in enumerate([*(bytes([value]) for value in range(256)), *words])}
    lines = (base64.b64encode(token) + b" %d" % rank for token, rank in ranks.items())
    (folder / name).write_bytes(b"\n".join(lines))
    return ranks


def ids(converted: str, text: str) -> list[int]:
    return Tokenizer.from_str(converted).encode(text, add_special_tokens=False).ids


def test_a_sentencepiece_model_of_a_known_class(tmp_path: Path) -> None:
    original = sentencepiece_model(tmp_path, begins=True, collapses=False)
    settings(tmp_path, tokenizer_class="LlamaTokenizer", add_bos_token=True)
    converted = convert(str(tmp_path))
    for text in ("The quick brown fox", "naïve café, 12345", "你好世界 🙂"):
        assert ids(converted, text) == original.encode(text)
        assert Tokenizer.from_str(converted).encode(text).ids == [1, *original.encode(text)]


@pytest.mark.parametrize("begins", [False, True])
@pytest.mark.parametrize("collapses", [False, True])
@pytest.mark.parametrize("own_class", ["BaichuanTokenizer", "InternLM2Tokenizer"])
def test_a_sentencepiece_model_that_code_of_the_model_reads(
    tmp_path: Path, own_class: str, begins: bool, collapses: bool
) -> None:
    original = sentencepiece_model(tmp_path, begins=begins, collapses=collapses)
    settings(tmp_path, own_class, tokenizer_class=own_class, add_bos_token=True)
    converted = convert(str(tmp_path))
    for text in TEXTS:
        assert ids(converted, text) == original.encode(text)
        assert Tokenizer.from_str(converted).decode(original.encode(text)) == original.decode(original.encode(text))
    assert Tokenizer.from_str(converted).encode("fox").ids == [1, *original.encode("fox")]


@pytest.mark.parametrize("begins", [False, True])
def test_tokens_of_chats_that_are_pieces_are_found_in_prompts(tmp_path: Path, *, begins: bool) -> None:
    """As in those of Baichuan, which its chat template writes."""
    marks = ["<reserved_106>", "<reserved_107>"]
    original = sentencepiece_model(tmp_path, begins=begins, collapses=False, user_defined_symbols=marks)
    settings(tmp_path, "BaichuanTokenizer", tokenizer_class="BaichuanTokenizer")
    user, assistant = map(original.piece_to_id, marks)
    prompt = "<reserved_106>the fox<reserved_107>the dog</s><reserved_106>"
    expected = [user, *original.encode("the fox"), assistant, *original.encode("the dog"), 2, user]
    assert ids(convert(str(tmp_path)), prompt) == expected


def test_one_that_would_give_other_ids_is_refused(tmp_path: Path) -> None:
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS), model_writer=written, model_type="unigram", vocab_size=45, minloglevel=2
    )
    (tmp_path / "tokenizer.model").write_bytes(written.getvalue())
    settings(tmp_path, "InternLMTokenizer")
    with pytest.raises(ValueError, match=r"tokenizer\.model has a form that is not read right: put a tokenizer\.json"):
        convert(str(tmp_path))


def test_that_of_xcomposer_2_has_one_token_for_an_end_of_turn(tmp_path: Path) -> None:
    marks = ["[UNUSED_TOKEN_145]", "[UNUSED_TOKEN_146]"]
    original = sentencepiece_model(tmp_path, begins=False, collapses=False, user_defined_symbols=marks)
    settings(tmp_path, "InternLMXComposer2Tokenizer")
    converted = convert(str(tmp_path))
    text = "[UNUSED_TOKEN_146]user\nthe quick fox[UNUSED_TOKEN_145]\n"
    assert ids(converted, text) == original.encode(text)
    assert original.piece_to_id(marks[0]) in ids(converted, text)


def test_that_of_qwen_1(tmp_path: Path) -> None:
    ranks = byte_pairs(tmp_path, "qwen.tiktoken")
    settings(tmp_path, "QWenTokenizer")
    converted = convert(str(tmp_path))
    pattern = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    original = tiktoken.Encoding("qwen", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
    for text in [*TEXTS, "cafe\u0301"]:
        assert ids(converted, text) == original.encode_ordinary(unicodedata.normalize("NFC", text))
    special = Tokenizer.from_str(converted).encode("<|im_start|>user<|im_end|>").ids
    assert (special[0], special[-1]) == (len(ranks) + 1, len(ranks) + 2)
    assert Tokenizer.from_str(converted).token_to_id("<|endoftext|>") == len(ranks)
    assert Tokenizer.from_str(converted).token_to_id("<img>") is None


def test_that_of_qwen_vl_has_tokens_of_images_and_of_places(tmp_path: Path) -> None:
    ranks = byte_pairs(tmp_path, "qwen.tiktoken")
    settings(tmp_path, "QWenTokenizer")
    (tmp_path / "config.json").write_text(json.dumps({"visual": {"image_size": 448}}))
    converted = Tokenizer.from_str(convert(str(tmp_path)))
    found = converted.encode("<ref>fox</ref><box>(1,2)</box><img><imgpad></img>").ids
    # As published, where 151,643 ids stand before these.
    published = {"<ref>": 151851, "</quad>": 151856, "<img>": 151857, "</img>": 151858, "<imgpad>": 151859}
    for token, place in published.items():
        assert converted.token_to_id(token) == len(ranks) + place - 151643
    assert found[-3:] == [converted.token_to_id(token) for token in ("<img>", "<imgpad>", "</img>")]
    # Answers show what the model points at.
    assert converted.decode(found) == "<ref>fox</ref><box>(1,2)</box>"


GLM_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
GLM_TOKENS = ("<|endoftext|>", "[MASK]", "[gMASK]", "[sMASK]", "<sop>", "<eop>", "<|system|>", "<|user|>", "<|other|>")


@pytest.mark.parametrize("listed", [False, True])
def test_that_of_glm_4(tmp_path: Path, listed: bool) -> None:
    ranks = byte_pairs(tmp_path, "tokenizer.model")
    added = {str(len(ranks) + index): {"content": token} for index, token in enumerate(GLM_TOKENS)}
    settings(tmp_path, "ChatGLM4Tokenizer", **({"added_tokens_decoder": added} if listed else {}))
    converted = Tokenizer.from_str(convert(str(tmp_path)))
    original = tiktoken.Encoding("glm", pat_str=GLM_PATTERN, mergeable_ranks=ranks, special_tokens={})
    begins = [len(ranks) + 2, len(ranks) + 4]
    for text in TEXTS:
        assert converted.encode(text).ids == [*begins, *original.encode(text)]
        assert converted.decode(original.encode(text)) == text
    written = converted.encode("[gMASK]<sop><|user|>\nfox", add_special_tokens=False).ids
    assert written == [*begins, len(ranks) + 7, *original.encode("\nfox")]
    assert (converted.token_to_id("<|other|>") == len(ranks) + 8) == listed


def test_that_of_glm_4_with_ids_left_out_is_refused(tmp_path: Path) -> None:
    ranks = byte_pairs(tmp_path, "tokenizer.model")
    added = {str(len(ranks) + index): {"content": f"<{index}>"} for index in (0, 2)}
    settings(tmp_path, "ChatGLM4Tokenizer", added_tokens_decoder=added)
    with pytest.raises(ValueError, match=r"`added_tokens_decoder` in .* lacks ids: put a tokenizer\.json into"):
        convert(str(tmp_path))


def test_that_of_chatglm_2_and_3(tmp_path: Path) -> None:
    original = sentencepiece_model(tmp_path, begins=True, collapses=False)
    pieces = original.get_piece_size()
    # As published, those that chats are made of.
    added = {str(pieces + index): {"content": token} for index, token in ((1, "[gMASK]"), (3, "sop"), (6, "<|user|>"))}
    settings(tmp_path, "ChatGLMTokenizer", tokenizer_class="ChatGLMTokenizer", added_tokens_decoder=added)
    converted = Tokenizer.from_str(convert(str(tmp_path)))
    begins = [pieces + 1, pieces + 3]
    for text in [*TEXTS, "philosophy of people"]:
        assert converted.encode(text).ids == [*begins, *original.encode(text)]
        assert converted.decode(original.encode(text)) == original.decode(original.encode(text))
    written = converted.encode("[gMASK]sop<|user|>\n the fox<|assistant|>", add_special_tokens=False).ids
    assert written == [*begins, pieces + 6, *original.encode("\n the fox"), pieces + 7]
    assert converted.decode(written) == "\n the fox"


def test_that_of_chatglm_1_is_refused(tmp_path: Path) -> None:
    settings(tmp_path, "ChatGLMTokenizer")
    with pytest.raises(ValueError, match=r"no tokenizer\.model, which ChatGLM 2 and 3 have"):
        convert(str(tmp_path))


def test_that_of_llama_3_in_the_layout_of_tiktoken(tmp_path: Path) -> None:
    ranks = byte_pairs(tmp_path, "tokenizer.model")
    settings(tmp_path, tokenizer_class="PreTrainedTokenizerFast")
    assert ids(convert(str(tmp_path)), " the") == [ranks[b" the"]]


def test_that_of_mistral_in_the_layout_of_tekken(tmp_path: Path) -> None:
    special = [{"rank": rank, "token_str": token, "is_control": True} for rank, token in enumerate(("<unk>", "<s>"))]
    tekken = {
        "config": {"pattern": r"\p{L}+|.", "default_vocab_size": 258, "default_num_special_tokens": 2, "version": "v3"},
        "vocab": [
            {"rank": value, "token_bytes": base64.b64encode(bytes([value])).decode(), "token_str": None}
            for value in range(256)
        ],
        "special_tokens": special,
    }
    tekken["config"]["num_vocab_tokens"] = 256  # type: ignore[index]
    (tmp_path / "tekken.json").write_text(json.dumps(tekken))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "mistral"}))
    assert ids(convert(str(tmp_path)), "Hé") == [value + 2 for value in "Hé".encode()]


def test_code_of_the_model_that_is_not_known_is_named(tmp_path: Path) -> None:
    byte_pairs(tmp_path, "tiktoken.model")
    settings(tmp_path, "TikTokenTokenizer")
    assert "TikTokenTokenizer" not in READERS
    with pytest.raises(ValueError, match=r"code of the model \(TikTokenTokenizer\).*put a tokenizer\.json into"):
        convert(str(tmp_path))


def test_a_pointer_of_git_lfs_is_called_one(tmp_path: Path) -> None:
    settings(tmp_path, tokenizer_class="LlamaTokenizer")
    (tmp_path / "tokenizer.model").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    with pytest.raises(ValueError, match=r"tokenizer\.model is only a pointer of Git LFS"):
        convert(str(tmp_path))
