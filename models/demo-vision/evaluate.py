"""Measures the demo model for images on pictures that training held out, with `transformers` and greedy choice.

python evaluate.py --model <folder>
"""

import argparse
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from conversations import IMAGE, Documents, asked, render
from numpy.typing import NDArray
from pictures import Picture, draw, make_picture
from questions import WHAT, described, questions
from tokenizers import Tokenizer
from transformers import LlavaForConditionalGeneration

COUNT = 500
AT_ONCE = 100
NEW_TOKENS = 32


class Answers:
    """The model's greedy answers to many prompts."""

    def __init__(self, folder: Path) -> None:
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._model: Any = LlavaForConditionalGeneration.from_pretrained(folder, dtype=torch.float32)
        vision = self._model.config.vision_config
        self._documents = Documents(self._tokenizer, (vision.image_size // vision.patch_size) ** 2)

    def __call__(self, asked: Sequence[tuple[str, NDArray[np.uint8]]]) -> list[str]:
        """The answers without the tokens that end them, to prompts with one picture each, [side, side, 3]."""
        answers: list[str] = []
        for first in range(0, len(asked), AT_ONCE):
            some = asked[first : first + AT_ONCE]
            prompts = [self._documents.ids(prompt) for prompt, _ in some]
            longest = max(map(len, prompts))
            ids = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in prompts])
            mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
            pixels = torch.from_numpy(np.stack([picture for _, picture in some])).permute(0, 3, 1, 2) / 127.5 - 1
            with torch.inference_mode():
                made = self._model.generate(
                    input_ids=ids,
                    attention_mask=mask,
                    pixel_values=pixels,
                    max_new_tokens=NEW_TOKENS,
                    do_sample=False,
                )
            answers += self._tokenizer.decode_batch(made[:, longest:].tolist(), skip_special_tokens=True)
        return answers


def evaluate(folder: Path, count: int = COUNT) -> dict[str, float]:
    """Shares of exact answers: descriptions of one and of two things, also without a chat template, and other
    questions.
    """
    rng = random.Random("held out")
    prompts: list[tuple[str, NDArray[np.uint8]]] = []
    wanted: list[tuple[str, str]] = []
    for _ in range(count):
        picture = make_picture(rng, held=True)
        pixels = draw(picture, rng).pixels
        question, answer = next(pair for pair in questions(rng, picture, 2) if pair[0] not in WHAT)
        for name, prompt, wanted_answer in (
            (f"described_{_kind(picture)}", render([asked(rng.choice(WHAT), image=True)]), described(picture)),
            ("other_questions", render([asked(question, image=True)]), answer),
            ("described_without_a_template", IMAGE, described(picture)),
        ):
            prompts.append((prompt, pixels))
            wanted.append((name, wanted_answer))
    right: dict[str, list[bool]] = {}
    for (name, answer), said in zip(wanted, Answers(folder)(prompts), strict=True):
        right.setdefault(name, []).append(said == answer)
    return {name: round(sum(each) / len(each), 4) for name, each in sorted(right.items())}


def _kind(picture: Picture) -> str:
    return "two_things" if len(picture) == 2 else "digit" if picture[0].is_digit else "shape"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=Path(__file__).parent)
    parser.add_argument("--count", type=int, default=COUNT)
    arguments = parser.parse_args()
    print(json.dumps(evaluate(arguments.model, arguments.count), indent=2))
