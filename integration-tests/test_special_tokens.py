"""Where texts begin and end: BOS is there once, whoever writes it, and each id that a model names ends an answer."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import Server, serving
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing

BOS, END, LAST, OTHER = 1, 2, 3, 40
TEMPLATE = "{{ bos_token }}{% for message in messages %}{{ message.content }}{% endfor %}"


@pytest.fixture(scope="module")
def special(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Its tokenizer puts BOS before texts, its template before chats; END and LAST end texts."""
    folder = Path(shutil.copytree(tiny_llama, tmp_path_factory.mktemp("special") / "model"))
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", BOS)])
    tokenizer.save(str(folder / "tokenizer.json"))
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "chat_template": TEMPLATE}))
    assert json.loads((folder / "generation_config.json").read_text())["eos_token_id"] == [END, LAST]
    with serving(folder, tmp_path_factory.mktemp("server"), "--enable-prefill-logprobs") as server:
        yield server


def test_a_prompt_has_one_bos(special: Server) -> None:
    details = special.generate("Hello", max_new_tokens=1, decoder_input_details=True)["details"]
    ids = [token["id"] for token in details["prefill"]]
    assert (ids[0], ids.count(BOS)) == (BOS, 1)


def test_a_chat_has_one_bos(special: Server) -> None:
    chat = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1}
    usage = special.client.post("/v1/chat/completions", json=chat).json()["usage"]
    prompt = special.generate("Hello", max_new_tokens=1, decoder_input_details=True)["details"]["prefill"]
    assert usage["prompt_tokens"] == len(prompt)
    tokens = special.client.post("/chat_tokenize", json=chat).json()["tokenize_response"]
    assert [token["id"] for token in tokens] == [token["id"] for token in prompt]


@pytest.mark.parametrize(("token", "reason"), [(END, "stop"), (LAST, "stop"), (OTHER, "length")])
def test_each_end_of_text_ends_an_answer(special: Server, token: int, reason: str) -> None:
    body = {"model": "x", "prompt": "Hello", "max_tokens": 3, "logit_bias": {str(token): 100}}
    reply = special.client.post("/v1/completions", json=body).json()
    assert reply["choices"][0]["finish_reason"] == reason
    assert reply["usage"]["completion_tokens"] == (1 if reason == "stop" else 3)
