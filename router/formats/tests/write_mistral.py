"""Writes `mistral.json`: answers as Mistral's own tokenizers encode them, cut where their tokens end.

    pip install 'mistral-common[sentencepiece]==1.13.1' && python router/formats/tests/write_mistral.py

The test that reads the file needs neither. The package has the files of tokenizers up to v7; those of v11 and v13 are
made of its Tekken vocabulary, with the special tokens that these versions have.
"""

import codecs
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import mistral_common
from mistral_common.protocol.instruct.chunk import TextChunk, ThinkChunk
from mistral_common.protocol.instruct.messages import AssistantMessage
from mistral_common.protocol.instruct.tool_calls import FunctionCall, ToolCall
from mistral_common.tokens.tokenizers import instruct
from mistral_common.tokens.tokenizers.base import SpecialTokenPolicy, SpecialTokens, TokenizerVersion
from mistral_common.tokens.tokenizers.sentencepiece import SentencePieceTokenizer
from mistral_common.tokens.tokenizers.tekken import SpecialTokenInfo, Tekkenizer

DATA = Path(mistral_common.__file__).parent / "data"
TEKKEN = DATA / "tekken_240911.json"
ADDED = {32: SpecialTokens.args, 33: SpecialTokens.call_id, 34: SpecialTokens.begin_think, 35: SpecialTokens.end_think}

WEATHER = {
    "city": 'Zürich "x"\n',
    "days": 3,
    "exact": True,
    "note": None,
    "limits": {"low": -1.5},
    "tags": ["a", "[TOOL_CALLS]"],
}
ANSWERS: list[dict[str, Any]] = [
    {"calls": [("get_weather", {"city": "Basel"})]},
    {"calls": [("get_weather", WEATHER)]},
    {"calls": [("get_weather", {"city": "Zürich 你好 🙂"}), ("ping", {})]},
    {"calls": [("get_weather", {"city": '{[( </x> )]}, k=1 "[ARGS]'})]},
    {"content": "I will look.", "calls": [("ping", {})]},
    {"content": "It is 3 < 4, {not} a [call]."},
]
THOUGHT = {"reasoning": "Where is it? In [Basel].", "calls": [("get_weather", {"city": "Basel"})]}


def tekken(version: TokenizerVersion) -> Tekkenizer:
    """Tekken with the special tokens of a later version."""
    file = json.loads(TEKKEN.read_text())
    config = file["config"]
    count = config["default_num_special_tokens"]
    names = [str(token["token_str"]) for token in Tekkenizer.DEPRECATED_SPECIAL_TOKENS]
    special = [
        SpecialTokenInfo(rank=rank, token_str=str(getattr(name, "value", name)), is_control=True)
        for rank, name in enumerate([*names, *(f"<SPECIAL_{rank}>" for rank in range(len(names), count))])
    ]
    for rank, token in ADDED.items():
        special[rank] = SpecialTokenInfo(rank=rank, token_str=token.value, is_control=True)
    size = config["default_vocab_size"]
    return Tekkenizer(file["vocab"], special, config["pattern"], size, count, version)


def tekken_bytes(tokenizer: Tekkenizer) -> Callable[[int], bytes]:
    return lambda token: tokenizer.id_to_byte_piece(token, SpecialTokenPolicy.KEEP)


def sentencepiece_bytes(tokenizer: SentencePieceTokenizer) -> Callable[[int], bytes]:
    def piece(token: int) -> bytes:
        text = tokenizer.id_to_piece(token)
        if text.startswith("<0x") and text.endswith(">"):
            return bytes([int(text[3:-1], 16)])
        return text.replace("▁", " ").encode()

    return piece


def pieces(encoded: list[int], to_bytes: Callable[[int], bytes]) -> list[str]:
    """The text as a server passes it on: what a token adds, once its characters are whole."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    return [text for token in encoded if (text := decoder.decode(to_bytes(token)))]


def records() -> Iterator[dict[str, Any]]:
    old = {
        "v3": SentencePieceTokenizer(DATA / "mistral_instruct_tokenizer_240323.model.v3"),
        "v7": SentencePieceTokenizer(DATA / "mistral_instruct_tokenizer_241114.model.v7"),
    }
    tokenizers = [
        ("sentencepiece v3", "mistral_v3", instruct.InstructTokenizerV3(old["v3"]), sentencepiece_bytes(old["v3"])),
        ("sentencepiece v7", "mistral_v3", instruct.InstructTokenizerV7(old["v7"]), sentencepiece_bytes(old["v7"])),
    ]
    for version, encoder, name in [
        (TokenizerVersion.v3, instruct.InstructTokenizerV3, "mistral_v3"),
        (TokenizerVersion.v11, instruct.InstructTokenizerV11, "mistral"),
        (TokenizerVersion.v13, instruct.InstructTokenizerV13, "mistral"),
    ]:
        made = Tekkenizer.from_file(TEKKEN) if version is TokenizerVersion.v3 else tekken(version)
        tokenizers.append((f"tekken {version.value}", name, encoder(made), tekken_bytes(made)))
    for tokenizer, name, encoder, to_bytes in tokenizers:
        answers = [*ANSWERS, THOUGHT] if tokenizer == "tekken v13" else ANSWERS
        for number, answer in enumerate(answers):
            if tokenizer.endswith("v3") and {"content", "calls"} <= answer.keys():
                # This version knows no such message.
                continue
            encoded = encoder.encode_assistant_message(message(answer, number), False)
            assert encoded.pop() == encoder.tokenizer.eos_id
            yield {"tokenizer": tokenizer, "format": name, **answer, "pieces": pieces(encoded, to_bytes)}


def message(answer: dict[str, Any], number: int) -> AssistantMessage:
    calls = [
        ToolCall(id=f"call{number}{index:04}", function=FunctionCall(name=name, arguments=json.dumps(arguments)))
        for index, (name, arguments) in enumerate(answer.get("calls", []))
    ]
    content = answer.get("content")
    if "reasoning" in answer:
        content = [ThinkChunk(thinking=answer["reasoning"]), *([TextChunk(text=content)] if content else [])]
    return AssistantMessage(content=content, tool_calls=calls or None)


def main() -> None:
    lines = ",\n".join(json.dumps(record, ensure_ascii=False) for record in records())
    Path(__file__).with_name("mistral.json").write_text(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    main()
