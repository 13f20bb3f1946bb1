"""Seeded random draws, and a tenth of the combinations kept away from training."""

import random
import zlib
from collections.abc import Callable
from typing import TypedDict, TypeVar

T = TypeVar("T")


class Message(TypedDict, total=False):
    """One message of a conversation, as the chat template takes it."""

    role: str
    content: str
    tool_calls: list[dict[str, object]]


def said(role: str, content: str) -> Message:
    """A message of text."""
    return {"role": role, "content": content}


class Conversation(TypedDict):
    """Messages and the tools that are offered, in the form of OpenAI's API."""

    messages: list[Message]
    tools: list[dict[str, object]]


def held_out(key: str) -> bool:
    """Whether a combination is kept for measuring: a function of its text alone, true for one in ten."""
    return zlib.crc32(key.encode()) % 10 == 0


def draw(rng: random.Random, make: Callable[[random.Random], T], key: Callable[[T], str], held: bool) -> T:
    """The first thing made whose key is held out, or is not, as `held` asks."""
    while True:
        made = make(rng)
        if held_out(key(made)) == held:
            return made


def an(phrase: str) -> str:
    """The phrase with its indefinite article."""
    return ("an " if phrase[0].lower() in "aeiou" else "a ") + phrase


def plural(noun: str) -> str:
    """The plural of an animal of the word lists."""
    odd = {"mouse": "mice", "deer": "deer", "fox": "foxes", "pony": "ponies", "puppy": "puppies", "sheep": "sheep"}
    return odd.get(noun, noun + "s")


def capital(text: str) -> str:
    """The text with a capital first letter."""
    return text[0].upper() + text[1:]


def listing(items: list[str]) -> str:
    """`a, b and c`."""
    return items[0] if len(items) == 1 else ", ".join(items[:-1]) + " and " + items[-1]


def made_up_word(rng: random.Random) -> str:
    """A word that no list holds, so that copying cannot be replaced by remembering."""
    starts = "b br c cl d dr f fl g gr h j k kr l m n p pl r s sh st t tr v w y z".split()
    ends = ["", "", "", "l", "m", "n", "r", "s", "t", "ck", "nd", "rk", "lyn", "ton", "ville", "burg"]
    count = rng.choice([1, 2, 2, 3])
    return "".join(rng.choice(starts) + rng.choice("aaeeiioouuy") for _ in range(count)) + rng.choice(ends)


def made_up_name(rng: random.Random) -> str:
    """One or two such words, each with a capital."""
    return " ".join(capital(made_up_word(rng)) for _ in range(rng.choice([1, 1, 2])))
