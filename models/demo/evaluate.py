"""Measures the demo model on what the corpus held out, with `transformers` and greedy choice.

python evaluate.py --model <folder>
"""

import argparse
import json
import random
from pathlib import Path
from typing import Any

import torch
from corpus import render
from grammars import stories, structured
from grammars.draw import said
from grammars.questions import addition
from transformers import AutoTokenizer, LlamaForCausalLM

COUNT = 500


class Answers:
    """The model's greedy answers to many prompts."""

    def __init__(self, folder: Path, device: torch.device) -> None:
        self._tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
        self._model: Any = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
        self._model.to(device)

    def __call__(self, prompts: list[str], max_new_tokens: int) -> list[str]:
        """The answers without the tokens that end them."""
        inputs = self._tokenizer(prompts, return_tensors="pt", padding=True).to(self._model.device)
        inputs.pop("token_type_ids", None)
        with torch.inference_mode():
            ids = self._model.generate(**inputs, max_new_tokens=max_new_tokens, do_sample=False)
        return self._tokenizer.batch_decode(ids[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)


def _asked(question: str) -> str:
    return render({"messages": [said("user", question)], "tools": []}, add_generation_prompt=True)


def _share(right: list[bool]) -> float:
    return round(sum(right) / len(right), 4)


def sums(answers: Answers, rng: random.Random) -> dict[str, float]:
    """Pairs of numbers that no training document adds."""
    pairs = [addition(rng, held=True) for _ in range(COUNT)]
    said = answers([_asked(question) for question, _ in pairs], 40)
    return {"sums": _share([text == expected for text, (_, expected) in zip(said, pairs, strict=True)])}


def _until(use: structured.Use, count: int, tools: list[structured.Json]) -> str:
    messages = structured.use_messages(use)[:count]
    return render({"messages": messages, "tools": tools}, add_generation_prompt=True)


def _is_call(text: str, call: dict[str, object]) -> bool:
    body = text.strip().removeprefix("<tool_call>").removesuffix("</tool_call>")
    try:
        return json.loads(body) == call and body != text.strip()
    except ValueError:
        return False


def tools(answers: Answers, rng: random.Random) -> dict[str, float]:
    """Calls of tools whose names no training document has, of get_weather with made-up cities, and of add."""
    results: dict[str, float] = {}
    makers = {"unseen tools": lambda: structured.unseen(rng, held=True), "get_weather": lambda: structured.weather(rng),
              "add": lambda: structured.adding(rng)}  # fmt: skip
    for name, make in makers.items():
        uses = [make() for _ in range(COUNT)]
        offers = [structured.offer(rng, use) for use in uses]
        calls = answers([_until(use, 1, tools) for use, tools in zip(uses, offers, strict=True)], 80)
        results[f"calls: {name}"] = _share([_is_call(text, use.call) for text, use in zip(calls, uses, strict=True)])
        said = answers([_until(use, 3, tools) for use, tools in zip(uses, offers, strict=True)], 40)
        results[f"answers: {name}"] = _share([text == use.answer for text, use in zip(said, uses, strict=True)])
    return results


def _valid(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False


def objects(answers: Answers, rng: random.Random) -> dict[str, float]:
    """JSON objects with sets of keys that no training document asks for."""
    pairs = [structured.json_object(rng, held=True) for _ in range(COUNT)]
    said = answers([_asked(question) for question, _ in pairs], 64)
    right = [
        _valid(text) and json.loads(text) == json.loads(wanted) for text, (_, wanted) in zip(said, pairs, strict=True)
    ]
    return {"JSON valid": _share([_valid(text) for text in said]), "JSON right": _share(right)}


def tales(answers: Answers, rng: random.Random) -> dict[str, float]:
    """Stories continued from a first sentence whose hero no training document has."""
    openings = [stories.opening(stories.cast(rng, held=True)) for _ in range(COUNT)]
    told = [start + text for start, text in zip(openings, answers(openings, 320), strict=True)]
    accepted = [stories.accepts(sentence) for text in told for sentence in stories.sentences(text)]
    return {
        "story sentences of the grammar": _share(accepted),
        "whole stories of the grammar, with one hero and pronoun": _share([stories.agrees(text) for text in told]),
    }


def evaluate(folder: Path, device: torch.device) -> dict[str, float]:
    """Shares of right answers by name, from 0 to 1."""
    answers, rng = Answers(folder, device), random.Random("held out")
    results: dict[str, float] = {}
    for measure in (sums, tools, objects, tales):
        results |= measure(answers, rng)
    return results


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=Path(__file__).parent)
    print(json.dumps(evaluate(parser.parse_args().model, torch.device("cpu")), indent=2))
