"""The demo model of the repository: our greedy ids are those of transformers, and its snapshots are true."""

import json
import math
from pathlib import Path

import pytest
import torch
from support.driver import Driver
from support.loading import load
from support.oracle import oracle
from transformers import AutoTokenizer

FOLDER = Path(__file__).parents[3] / "models" / "demo"
SNAPSHOTS = json.loads((FOLDER / "snapshots.json").read_text())


@pytest.fixture(scope="module")
def answers() -> list[tuple[list[int], list[int]]]:
    """Ids of each prompt and of what `transformers.generate` answers, its end included."""
    tokenizer, model = AutoTokenizer.from_pretrained(FOLDER), oracle(FOLDER)
    found = []
    for snapshot in SNAPSHOTS:
        inputs = tokenizer(snapshot["prompt"], return_tensors="pt")
        ids = model.generate(**inputs, max_new_tokens=snapshot["max_new_tokens"], do_sample=False)[0].tolist()
        length = inputs["input_ids"].shape[1]
        found.append((ids[:length], ids[length:]))
    return found


def test_snapshots_are_what_transformers_answers(answers: list[tuple[list[int], list[int]]]) -> None:
    tokenizer = AutoTokenizer.from_pretrained(FOLDER)
    texts = [tokenizer.decode(answer, skip_special_tokens=True) for _, answer in answers]
    assert texts == [snapshot["text"] for snapshot in SNAPSHOTS]


def test_our_ids_are_those_of_transformers(answers: list[tuple[list[int], list[int]]]) -> None:
    driver = Driver(load(FOLDER), num_rows=len(answers), max_tokens=512)
    names = [str(number) for number in range(len(answers))]
    # All in one batch: each must come out as it does alone.
    driver.append(names, driver.prefill({name: prompt for name, (prompt, _) in zip(names, answers, strict=True)}))
    for _ in range(max(len(answer) for _, answer in answers) - 1):
        driver.append(names, driver.decode(names))
    for name, (prompt, answer) in zip(names, answers, strict=True):
        assert driver.ids[name][len(prompt) :][: len(answer)] == answer


@pytest.mark.parametrize("quantize", ["fp8", "w8a8", "eetq"])
def test_8_bits_cost_less_than_a_hundredth_of_the_perplexity(
    quantize: str, answers: list[tuple[list[int], list[int]]]
) -> None:
    def perplexity(quantize: str | None) -> float:
        driver = Driver(load(FOLDER, quantize=quantize), num_rows=len(answers), max_tokens=512)
        logs: list[torch.Tensor] = []
        for number, (prompt, answer) in enumerate(answers):
            ids = [*prompt, *answer]
            found = driver.prefill({str(number): ids}, all_logits=True).log_softmax(-1)
            logs.append(found[:-1].gather(1, torch.tensor(ids[1:])[:, None]))
        return math.exp(-torch.cat(logs).mean().item())

    exact, rounded = perplexity(None), perplexity(quantize)
    assert abs(rounded / exact - 1) < 0.01


def test_chat_prompts_are_rendered_by_the_template() -> None:
    tokenizer = AutoTokenizer.from_pretrained(FOLDER)
    chats = [snapshot for snapshot in SNAPSHOTS if "messages" in snapshot]
    assert chats
    for chat in chats:
        rendered = tokenizer.apply_chat_template(
            chat["messages"], tools=chat.get("tools"), tokenize=False, add_generation_prompt=True
        )
        assert rendered == chat["prompt"]


def test_any_bytes_survive_the_tokenizer() -> None:
    tokenizer = AutoTokenizer.from_pretrained(FOLDER)
    text = "日本語 naïve 🙂\x00\t 12+345 \u202e <tool_call>{}"
    assert tokenizer.decode(tokenizer.encode(text)) == text
