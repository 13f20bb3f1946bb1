"""Beam search equals that of `transformers.generate`: texts, their order, their scores."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from harness import Server, serving, wait_for
from transformers import AutoModelForCausalLM, AutoTokenizer

NEW_TOKENS = 16
PAD = -1


@dataclass(frozen=True)
class Search:
    """What is asked for, in the words of this server."""

    beam_width: int
    length_penalty: float = 1.0
    early_stopping: bool | str = False
    min_new_tokens: int = 0
    stop_token_ids: tuple[int, ...] = ()


@dataclass(frozen=True)
class Found:
    ids: list[int]
    score: float


class Oracle:
    """Beam search of transformers with the checkpoint of a folder."""

    def __init__(self, folder: Path) -> None:
        self._tokenizer = AutoTokenizer.from_pretrained(folder)
        self._model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)

    def __call__(self, prompt: str, search: Search) -> list[Found]:
        inputs = self._tokenizer(prompt, return_tensors="pt")
        eos = self._model.generation_config.eos_token_id
        eos = [eos] if isinstance(eos, int) else eos
        with torch.inference_mode():
            answer = self._model.generate(
                **inputs,
                num_beams=search.beam_width,
                num_return_sequences=search.beam_width,
                length_penalty=search.length_penalty,
                early_stopping=search.early_stopping,
                min_new_tokens=search.min_new_tokens,
                max_new_tokens=NEW_TOKENS,
                eos_token_id=[*eos, *search.stop_token_ids],
                do_sample=False,
                pad_token_id=PAD,
                return_dict_in_generate=True,
                output_scores=True,
            )
        new = answer.sequences[:, inputs["input_ids"].shape[1] :]
        scores = answer.sequences_scores.tolist()
        texts = zip(new.tolist(), scores, strict=True)
        return [Found([token for token in ids if token != PAD], score) for ids, score in texts]


@pytest.fixture(scope="module")
def oracle(tiny_llama: Path) -> Oracle:
    return Oracle(tiny_llama)


def searched(server: Server, prompt: str, search: Search) -> list[Found]:
    details = server.generate(
        prompt,
        max_new_tokens=NEW_TOKENS,
        beam_width=search.beam_width,
        length_penalty=search.length_penalty,
        early_stopping=search.early_stopping,
        min_new_tokens=search.min_new_tokens,
        stop_token_ids=list(search.stop_token_ids),
    )["details"]
    texts = [details, *details.get("best_of_sequences", [])]
    return [Found([token["id"] for token in text["tokens"]], text["beam_score"]) for text in texts]


def agree(found: list[Found], expected: list[Found], what: object) -> None:
    assert [text.ids for text in found] == [text.ids for text in expected], what
    assert [text.score for text in found] == pytest.approx([text.score for text in expected], rel=5e-5), what


SEARCHES = [
    Search(2),
    Search(4),
    Search(8, early_stopping=True),
    Search(3, early_stopping="never"),
    Search(4, length_penalty=0.0),
    Search(4, length_penalty=2.0, early_stopping="never"),
    Search(4, length_penalty=-1.0, early_stopping="never"),
    Search(4, length_penalty=0.6, early_stopping=True),
    Search(4, min_new_tokens=8),
]


@pytest.mark.parametrize("search", SEARCHES, ids=str)
def test_texts_and_scores(server: Server, oracle: Oracle, prompts: list[str], search: Search) -> None:
    for prompt in prompts[::3]:
        agree(searched(server, prompt, search), oracle(prompt, search), prompt)


@pytest.fixture(scope="module")
def terse(
    tiny_llama: Path, oracle: Oracle, prompts: list[str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Server, Oracle]]:
    """A model of which many tokens that it likes end a text, and its oracle."""
    tokens = Counter(token for prompt in prompts for text in oracle(prompt, Search(4)) for token in text.ids[2:])
    folder = tmp_path_factory.mktemp("terse") / "model"
    shutil.copytree(tiny_llama, folder)
    for name in ("config.json", "generation_config.json"):
        file = folder / name
        config = json.loads(file.read_text())
        config["eos_token_id"] = [token for token, _ in tokens.most_common(6)]
        file.write_text(json.dumps(config))
    with serving(folder, tmp_path_factory.mktemp("serving-terse")) as server:
        yield server, Oracle(folder)


@pytest.mark.parametrize("search", SEARCHES, ids=str)
def test_texts_that_end(terse: tuple[Server, Oracle], prompts: list[str], search: Search) -> None:
    server, oracle = terse
    ended = 0
    for prompt in prompts[::3]:
        found = searched(server, prompt, search)
        agree(found, oracle(prompt, search), prompt)
        ended += sum(len(text.ids) < NEW_TOKENS for text in found)
    # Of long texts the longest score best.
    assert ended or search.length_penalty > 1


def test_tokens_that_a_request_ends_with(server: Server, oracle: Oracle, prompts: list[str]) -> None:
    for prompt in prompts[::5]:
        plain = oracle(prompt, Search(3))
        search = Search(3, length_penalty=0.5, stop_token_ids=tuple({text.ids[4] for text in plain}))
        found = searched(server, prompt, search)
        agree(found, oracle(prompt, search), prompt)
        assert any(text.ids[-1] in search.stop_token_ids for text in found)


def test_completions_have_the_same_texts(server: Server, prompts: list[str]) -> None:
    for prompt in prompts[::7]:
        body = {
            "prompt": prompt,
            "max_tokens": NEW_TOKENS,
            "use_beam_search": True,
            "n": 2,
            "best_of": 4,
            "return_token_ids": True,
        }
        reply = server.client.post("/v1/completions", json=body)
        assert reply.status_code == 200, reply.text
        choices = reply.json()["choices"]
        found = [Found(choice["token_ids"], choice["beam_score"]) for choice in choices]
        agree(found, searched(server, prompt, Search(4))[:2], prompt)


def test_searches_side_by_side(server: Server, oracle: Oracle, prompts: list[str]) -> None:
    search = Search(4, early_stopping="never")
    with ThreadPoolExecutor(8) as pool:
        answers = pool.map(lambda prompt: searched(server, prompt, search), prompts[:8])
        for prompt, found in zip(prompts, answers, strict=False):
            agree(found, oracle(prompt, search), prompt)
    wait_for(lambda: server.metric("tgi_kv_slots_used") == 0, "all slots free again")
