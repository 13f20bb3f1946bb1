"""Conversations about pictures as tokens, and which of these the demo model for images learns."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import jinja2
import torch
from pictures import draw, make_picture
from questions import NO_PICTURE, any_question, described, questions
from tokenizers import Tokenizer
from torch import Tensor

IMAGE = "<image>"
END_OF_TEXT, IM_END = "<|endoftext|>", "<|im_end|>"
SYSTEMS = ("You are a helpful assistant.", "Answer briefly.", "You are the demo model of text-generation.")
Message = Mapping[str, object]
"""As the chat template takes it."""


@dataclass(frozen=True)
class Document:
    """A conversation, or a picture and its description alone."""

    ids: Sequence[int]
    learned: Sequence[bool]
    """Whether the model learns to say a token: what the assistant says, and its end."""
    pixels: Tensor | None
    """[side, side, 3] uint8."""


@cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
    return environment.from_string((Path(__file__).parent / "chat_template.jinja").read_text())


def render(messages: Sequence[Message]) -> str:
    """The text of a conversation by the model's own chat template, up to the next answer."""
    return _template().render(messages=messages, add_generation_prompt=True)


def asked(question: str, image: bool = False, image_last: bool = False) -> Message:
    """A message of the user, with or without a picture."""
    text = {"type": "text", "text": question}
    parts = [{"type": "image"}] if image else []
    return {"role": "user", "content": [text, *parts] if image_last else [*parts, text]}


class Documents:
    """Makes documents."""

    def __init__(self, tokenizer: Tokenizer, rows: int) -> None:
        """`rows`: the tokens of a picture."""
        self._tokenizer, self._rows = tokenizer, rows
        self._image = tokenizer.token_to_id(IMAGE)

    def ids(self, text: str) -> list[int]:
        """Tokens, with those of each picture."""
        ids = self._tokenizer.encode(text).ids
        return [id for each in ids for id in [each] * (self._rows if each == self._image else 1)]

    def make(self, rng: random.Random) -> Document:
        """A new picture with questions and answers; now and then its description alone, or a question without it."""
        picture, kind = make_picture(rng), rng.random()
        if kind < 0.04:
            prompt = render([*_system(rng), asked(any_question(rng, picture))])
            return self._document([(prompt, NO_PICTURE + IM_END)], None)
        pixels = torch.from_numpy(draw(picture, rng).pixels)
        if kind < 0.08:
            return self._document([(IMAGE, described(picture) + END_OF_TEXT)], pixels)
        messages, turns, done = _system(rng), list[tuple[str, str]](), ""
        for index, (question, answer) in enumerate(questions(rng, picture, rng.choice([2, 2, 3]))):
            messages.append(asked(question, index == 0, rng.random() < 0.2))
            text = render(messages)
            turns.append((text.removeprefix(done), answer + IM_END))
            messages.append({"role": "assistant", "content": answer})
            done = text + answer + IM_END
        return self._document(turns, pixels)

    def _document(self, turns: list[tuple[str, str]], pixels: Tensor | None) -> Document:
        ids, learned = list[int](), list[bool]()
        for prompt, answer in turns:
            for text, is_learned in ((prompt, False), (answer, True)):
                piece = self.ids(text)
                ids += piece
                learned += [is_learned] * len(piece)
        return Document(ids, learned, pixels)


def _system(rng: random.Random) -> list[Message]:
    return [{"role": "system", "content": rng.choice(SYSTEMS)}] if rng.random() < 0.2 else []
