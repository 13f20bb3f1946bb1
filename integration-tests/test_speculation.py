"""A server that drafts: its texts are those of `transformers.generate`, and of a server that does not."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from harness import Server, serving
from support.families import larger, write
from support.family_cases import CASES
from transformers import AutoTokenizer

NEW_TOKENS = 64


@pytest.fixture(scope="module")
def drafting(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    config = json.dumps({"method": "suffix", "num_speculative_tokens": 3})
    with serving(tiny_llama, tmp_path_factory.mktemp("drafting"), "--speculative-config", config) as server:
        yield server


def test_greedy_texts_are_those_of_transformers(
    drafting: Server, reference: Callable[[str, int], list[int]], prompts: list[str]
) -> None:
    def ids(prompt: str) -> list[int]:
        return drafting.ids(prompt, max_new_tokens=NEW_TOKENS)

    with ThreadPoolExecutor(4) as clients:
        found = list(clients.map(ids, prompts))
    assert found == [reference(prompt, NEW_TOKENS) for prompt in prompts]


def test_seeded_texts_are_those_without_drafts(server: Server, drafting: Server, prompts: list[str]) -> None:
    def ids(of: Server, prompt: str) -> list[int]:
        return of.ids(prompt, max_new_tokens=24, do_sample=True, seed=len(prompt), temperature=0.2, top_p=0.9)

    for prompt in prompts[:5]:
        assert ids(drafting, prompt) == ids(server, prompt)


def test_a_text_that_repeats_itself_is_the_one_without_drafts(server: Server, drafting: Server) -> None:
    """Every draft is right here; how many are checked depends on what steps cost on this machine."""

    def answer(of: Server) -> tuple[str, int]:
        body = {"model": "tgi", "prompt": "the dog ran", "max_tokens": NEW_TOKENS, "logit_bias": {"9": 100}}
        reply = of.client.post("/v1/completions", json=body).json()
        return reply["choices"][0]["text"], reply["usage"]["completion_tokens"]

    assert answer(drafting) == answer(server)
    assert answer(drafting)[1] == NEW_TOKENS


def test_predictions_right_and_wrong_change_no_text(
    drafting: Server, reference: Callable[[str, int], list[int]], prompts: list[str]
) -> None:
    for prompt in prompts[:5]:
        answer = reference(prompt, NEW_TOKENS)
        edited = [*answer[:9], 5, 6, *answer[12:30], *answer[33:]]
        for prediction in (answer, edited, answer[20:], [7] * 300, "the dog ran after the dog"):
            found = drafting.ids(prompt, max_new_tokens=NEW_TOKENS, prediction=prediction)
            assert found == answer, prediction


def test_answers_that_were_given_before_are_given_again(server: Server, drafting: Server, prompts: list[str]) -> None:
    """From the second time on they are drafts."""
    info = drafting.client.get("/info").json()
    how = {"method": "suffix", "widths": [2, 4], "answer_index_mib": 64}
    assert (info["speculate"], info["speculation"]) == (3, how)
    expected = server.ids(prompts[3], max_new_tokens=NEW_TOKENS)
    for _ in range(3):
        assert drafting.ids(prompts[3], max_new_tokens=NEW_TOKENS) == expected


def test_a_whole_model_drafts(
    tiny_llama: Path,
    tmp_path: Path,
    reference: Callable[[str, int], list[int]],
    prompts: list[str],
) -> None:
    """The model itself is one of the same vocabulary, and all its drafts are right."""
    config = json.dumps({"model": str(tiny_llama), "num_speculative_tokens": 3})
    with serving(tiny_llama, tmp_path, "--speculative-config", config) as server:
        assert server.client.get("/info").json()["speculation"]["method"] == "draft_model"
        with ThreadPoolExecutor(4) as clients:
            found = list(clients.map(lambda prompt: server.ids(prompt, max_new_tokens=NEW_TOKENS), prompts))
    assert found == [reference(prompt, NEW_TOKENS) for prompt in prompts]


def test_recurrent_layers_take_back_what_was_rejected(tiny_llama: Path, tmp_path: Path, prompts: list[str]) -> None:
    """Of a hybrid of gated delta nets and attention, with predictions that are right, edited and wrong."""
    model = larger("qwen3.5", 384)
    write(CASES["qwen3.5"], model, tmp_path / "model")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tiny_llama / name, tmp_path / "model" / name)
    tokenizer = AutoTokenizer.from_pretrained(tiny_llama)

    def reference(prompt: str) -> list[int]:
        ids = tokenizer(prompt, return_tensors="pt").input_ids
        made = model.generate(ids, max_new_tokens=NEW_TOKENS, do_sample=False, eos_token_id=None)
        return made[0, ids.shape[1] :].tolist()

    with serving(tmp_path / "model", tmp_path, "--speculate", "3") as server:
        for prompt in prompts[:4]:
            answer = reference(prompt)
            for prediction in (answer, [*answer[:9], 5, 6, *answer[12:30], *answer[33:]], [7] * 300):
                options = {"max_new_tokens": NEW_TOKENS, "ignore_eos": True, "prediction": prediction}
                assert server.ids(prompt, **options) == answer, prediction


SCHEMA = {
    "type": "object",
    "properties": {
        "first_name": {"type": "string", "pattern": "^[a-z]{2,4}$"},
        "favourite_colour": {"enum": ["yellow", "violet"]},
        "number_of_children": {"type": "integer", "minimum": 0, "maximum": 9},
    },
    "required": ["first_name", "favourite_colour", "number_of_children"],
    "additionalProperties": False,
}


def test_answers_under_grammars_are_those_without_drafts(server: Server, drafting: Server, prompts: list[str]) -> None:
    """What the schema forces comes several tokens a step, also under penalties and beside those that are free."""
    json_schema, regex = {"type": "json", "value": SCHEMA}, {"type": "regex", "value": "(the dog ran )+and slept"}
    settings = [
        {"grammar": json_schema},
        {"grammar": json_schema, "do_sample": True, "seed": 3, "temperature": 1.2, "top_p": 0.9},
        {"grammar": json_schema, "repetition_penalty": 1.3, "frequency_penalty": 0.5},
        {"grammar": regex, "do_sample": True, "seed": 4},
        {"do_sample": True, "seed": 5, "temperature": 0.2},
    ]

    def answers(of: Server) -> list[list[int]]:
        def ids(number: int) -> list[int]:
            return of.ids(prompts[number], max_new_tokens=100, **settings[number])

        with ThreadPoolExecutor(5) as clients:
            return list(clients.map(ids, range(5)))

    def accepted() -> float:
        lines = drafting.client.get("/metrics").text.splitlines()
        return sum(float(line.split()[1]) for line in lines if line.startswith("tgi_speculation_accepted "))

    expected, before = answers(server), accepted()
    assert answers(drafting) == expected
    assert accepted() > before
    # Earlier answers are drafts by now.
    assert answers(drafting) == expected
