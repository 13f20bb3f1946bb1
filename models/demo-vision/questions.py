"""What is asked about a picture, and the answers: the corpus of the demo model for images."""

import random
from collections.abc import Callable

from outlines import SHAPES
from pictures import COLOURS, Picture, Thing

Pair = tuple[str, str]
NO_PICTURE = "I see no picture."
"""The answer where there is none."""
WHAT = (
    "What is in the picture?", "What do you see?", "Describe the picture.", "What does the picture show?",
    "What is in this image?", "Describe this image.", "What is this?", "What can you see in the picture?",
)  # fmt: skip


def named(thing: Thing) -> str:
    """`an orange star`."""
    return f"{'an' if thing.colour[0] in 'aeiou' else 'a'} {thing.colour} {thing.kind}"


def described(picture: Picture) -> str:
    """The answer to `WHAT`."""
    text = " and ".join(f"{named(thing)} {thing.place}" for thing in picture)
    return f"{text[0].upper()}{text[1:]}."


def _what(rng: random.Random, picture: Picture) -> Pair:
    return rng.choice(WHAT), described(picture)


def _kind(rng: random.Random, picture: Picture) -> Pair:
    thing = rng.choice(picture)
    where = "" if len(picture) == 1 else f" {thing.place}"
    if thing.is_digit:
        asked = rng.choice(["Which digit is it", "What number is it", "Which digit do you see"])
        return f"{asked}{where}?", thing.kind
    article = "An" if thing.kind[0] in "aeiou" else "A"
    asked = rng.choice(["What shape is it", "Which shape is it", "Which shape do you see"])
    return f"{asked}{where}?", f"{article} {thing.kind}."


def _colour(rng: random.Random, picture: Picture) -> Pair:
    thing = rng.choice(picture)
    if len(picture) == 1:
        asked = rng.choice(["What colour is it?", f"What colour is the {thing.kind}?", "Which colour do you see?"])
    elif picture[0].kind == picture[1].kind:
        asked = f"What colour is the {thing.kind} {thing.place}?"
    else:
        asked = f"What colour is the {thing.kind}?"
    return asked, f"{thing.colour.capitalize()}."


def _place(rng: random.Random, picture: Picture) -> Pair:
    thing = rng.choice(picture)
    return f"Where is the {thing.colour} {thing.kind}?", f"{thing.place[0].upper()}{thing.place[1:]}."


def _count(rng: random.Random, picture: Picture) -> Pair:
    asked = ["How many things are there?", "How many things do you see?", "How many things are in the picture?"]
    return rng.choice(asked), ("One.", "Two.")[len(picture) - 1]


def _is_there(rng: random.Random, picture: Picture) -> Pair:
    kind = rng.choice(picture).kind if rng.random() < 0.5 else rng.choice(list(SHAPES))
    found = next((thing for thing in picture if thing.kind == kind), None)
    answer = "No." if found is None else f"Yes, {named(found)} {found.place}."
    return rng.choice([f"Is there a {kind}?", f"Do you see a {kind}?"]), answer


def _is_colour(rng: random.Random, picture: Picture) -> Pair:
    colour = rng.choice(picture).colour if rng.random() < 0.5 else rng.choice(list(COLOURS))
    found = next((thing for thing in picture if thing.colour == colour), None)
    return f"Is anything {colour}?", "No." if found is None else f"Yes, the {found.kind}."


KINDS: tuple[tuple[Callable[[random.Random, Picture], Pair], float], ...] = (
    (_what, 0.4), (_kind, 0.15), (_colour, 0.15), (_place, 0.12), (_count, 0.04), (_is_there, 0.08),
    (_is_colour, 0.06),
)  # fmt: skip


def questions(rng: random.Random, picture: Picture, count: int) -> list[Pair]:
    """Several about one picture, each of another kind."""
    chosen: dict[Callable[[random.Random, Picture], Pair], Pair] = {}
    while len(chosen) < count:
        make = rng.choices([make for make, _ in KINDS], [weight for _, weight in KINDS])[0]
        chosen.setdefault(make, make(rng, picture))
    return list(chosen.values())


def any_question(rng: random.Random, picture: Picture) -> str:
    """One question, for prompts that lack the picture."""
    return questions(rng, picture, 1)[0][0]
