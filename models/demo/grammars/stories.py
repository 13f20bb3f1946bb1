"""Short stories: composed from the plots, and checked against them."""

import random
import re
from collections.abc import Sequence
from functools import cache

from . import words
from .draw import an, capital, draw
from .plots import ENDINGS, FRIEND, HABITS, OPENINGS, PLOTS, SKILLS

_SENTENCE_END = re.compile(r'(?<=[.!?]) |(?<=[.!?]") ')
_FIELD = re.compile(r"\{(\w+)\}")

Fields = dict[str, str]


def _person(rng: random.Random) -> tuple[str, str, str]:
    """Name, animal or child, and the pronoun."""
    girl = rng.random() < 0.5
    name = rng.choice(words.GIRLS if girl else words.BOYS)
    kind = rng.choice(words.HERO_ANIMALS) if rng.random() < 0.8 else ("girl" if girl else "boy")
    return name, kind, "she" if girl else "he"


def _pronouns(pronoun: str, suffix: str) -> Fields:
    him, his = ("her", "her") if pronoun == "she" else ("him", "his")
    forms = {"he": pronoun, "him": him, "his": his, "He": capital(pronoun), "His": capital(his)}
    return {name + suffix: form for name, form in forms.items()}


def cast(rng: random.Random, held: bool = False) -> Fields:
    """Who and what one story is about; a tenth of the pairs of hero and animal is held out."""
    name, animal, pronoun = draw(rng, _person, lambda person: f"{person[0]} the {person[1]}", held)
    other, animal2, pronoun2 = _person(rng)
    while other == name or animal2 == animal:
        other, animal2, pronoun2 = _person(rng)
    place, place2 = rng.sample(words.PLACES, 2)
    home, home2 = rng.sample(words.HOMES, 2)
    toy, toy2 = rng.sample(words.TOYS, 2)
    colours = [colour for colour in words.COLOURS if colour != "orange"]
    return {
        "A": name, "B": other, "animal": animal, "animal2": animal2,
        "kind": f"{rng.choice(words.CHARACTERS)} {animal}", "kind2": f"{rng.choice(words.CHARACTERS)} {animal2}",
        **_pronouns(pronoun, ""), **_pronouns(pronoun2, "2"),
        "place": place, "place2": place2, "home": home, "home2": home2, "day": rng.choice(words.DAYS),
        "toy": toy, "thing": f"{rng.choice(colours)} {toy}", "thing2": f"{rng.choice(colours)} {toy2}",
        "treat": rng.choice(words.TREATS), "fruit": rng.choice(words.FRUITS), "colour": rng.choice(colours),
        "love": rng.choice(words.LOVES), "feeling": rng.choice(words.FEELINGS), "skill": rng.choice(SKILLS),
        "young": rng.choice(list(words.YOUNG.values())),
    }  # fmt: skip


def story(rng: random.Random, fields: Fields) -> str:
    """A story with a beginning, a problem, a solution and an ending."""
    moral, steps = PLOTS[rng.choice(list(PLOTS))]
    plot = [rng.choice(step) for step in steps]
    # A friend whom the hero meets on the way was not there before; any other is introduced first.
    meets = any("{kind2}" in sentence for sentence in plot)
    parts = [rng.choice(OPENINGS), rng.choice(HABITS), *([] if meets else [FRIEND]), *plot]
    parts += [rng.choice(ENDINGS[:-2])] + ([rng.choice(ENDINGS[-2:])] if rng.random() < 0.3 else [])
    return " ".join(parts).format_map({**fields, "moral": moral})


def told_story(rng: random.Random) -> tuple[str, str]:
    """A wish for a story, and the story."""
    fields = cast(rng)
    forms = ("Tell me a story.", "Tell me a short story.", "Please tell me a story.", "Write a short story.",
             "Tell me a story about {one}.", "Write a story about {one}.", "Write a short story about {one} named {A}.",
             "Tell me a story about a {kind} named {A}.", "Tell me a story about {A} the {animal}.")  # fmt: skip
    asked = rng.choice(forms).format_map({**fields, "one": an(fields["animal"])})
    return asked, story(rng, fields)


def later_part(rng: random.Random, text: str) -> str:
    """The story from one of its first sentences on."""
    return " ".join(sentences(text)[rng.randrange(1, 4) :])


def opening(fields: Fields) -> str:
    """The first sentence of a story about this cast, the same form every time."""
    return OPENINGS[0].format_map(fields)


@cache
def _patterns() -> list[re.Pattern[str]]:
    """One pattern a sentence of the grammar; a field that comes twice must have the same value."""
    templates = [*OPENINGS, *HABITS, FRIEND, *ENDINGS]
    templates += [sentence for _, steps in PLOTS.values() for step in steps for sentence in step]
    sentences = {sentence for template in templates for sentence in _SENTENCE_END.split(template)}
    return [_pattern(sentence) for sentence in sorted(sentences)]


def _pattern(sentence: str) -> re.Pattern[str]:
    choices = _choices()
    seen: set[str] = set()
    pieces: list[str] = []
    for index, piece in enumerate(_FIELD.split(sentence)):
        if index % 2 == 0:
            pieces.append(re.escape(piece))
        elif piece in seen:
            pieces.append(f"(?P={piece})")
        else:
            seen.add(piece)
            pieces.append(f"(?P<{piece}>{'|'.join(map(re.escape, choices[piece]))})")
    return re.compile("".join(pieces))


@cache
def _choices() -> dict[str, Sequence[str]]:
    animals = [*words.HERO_ANIMALS, "girl", "boy"]
    kinds = [f"{character} {animal}" for character in words.CHARACTERS for animal in animals]
    things: list[str] = [f"{colour} {toy}" for colour in words.COLOURS for toy in words.TOYS]
    pronouns = {"he": ["he", "she"], "him": ["him", "her"], "his": ["his", "her"]}
    pronouns |= {capital(name): [capital(form) for form in forms] for name, forms in pronouns.items()}
    once: dict[str, Sequence[str]] = {
        "A": words.PEOPLE, "B": words.PEOPLE, "animal": animals, "kind": kinds, "place": words.PLACES,
        "home": words.HOMES, "day": words.DAYS, "toy": words.TOYS, "thing": things, "treat": words.TREATS,
        "fruit": words.FRUITS, "colour": words.COLOURS, "love": words.LOVES, "feeling": words.FEELINGS,
        "skill": SKILLS, "young": list(words.YOUNG.values()), "moral": [moral for moral, _ in PLOTS.values()],
        **pronouns,
    }  # fmt: skip
    return {**once, **{f"{name}2": choices for name, choices in once.items()}}


def sentences(text: str) -> list[str]:
    """The sentences of a story."""
    return _SENTENCE_END.split(text.strip())


def accepts(sentence: str) -> bool:
    """Whether the grammar can produce this sentence."""
    return any(pattern.fullmatch(sentence) for pattern in _patterns())


def agrees(text: str) -> bool:
    """Whether the whole story is of the grammar, with one hero, one friend, and the hero's own pronoun."""
    cast_so_far: Fields = {}
    for sentence in sentences(text):
        found = [match.groupdict() for pattern in _patterns() if (match := pattern.fullmatch(sentence))]
        fitting = [fields for fields in found if _fits(fields, cast_so_far)]
        if not fitting:
            return False
        cast_so_far |= {key: fitting[0][key] for key in ("A", "B") if key in fitting[0]}
    return True


def _fits(fields: Fields, known: Fields) -> bool:
    people = {**known, **{key: value for key, value in fields.items() if key in ("A", "B")}}
    if any(people[key] != known[key] for key in known):
        return False
    return all(
        (fields[key].lower() in ("she", "her")) == (people["A"] in words.GIRLS)
        for key in ("he", "him", "his", "He", "His")
        if key in fields and "A" in people
    )
