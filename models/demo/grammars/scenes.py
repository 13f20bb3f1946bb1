"""Plain prose that starts in many ways: animals in a place, letters, and a song with a refrain."""

import random

from . import words
from .draw import an, capital, plural

ACTS = (
    "sat in the sun|slept under a tree|looked at the clouds|ran in circles|drank some water|played with a leaf|"
    "waited for a friend|jumped over a stone|listened to the wind|found a feather|watched the birds|ate some {food}"
).split("|")
MOODS = (
    "It was a warm day.|The wind was soft.|The sun was shining.|It was very quiet.|A bird was singing.|"
    "Then it began to rain.|After a while it grew dark.|The stars came out."
).split("|")


def scene(rng: random.Random) -> str:
    """Two animals in one place, a few sentences."""
    one, two = rng.sample([*words.HERO_ANIMALS, "bird", "cow", "horse", "sheep"], 2)
    place, (act, act2, act3) = rng.choice(words.PLACES), rng.sample(ACTS, 3)
    colour, mood, food = rng.choice(words.COLOURS), rng.choice(MOODS), rng.choice(words.FRUITS)
    first = rng.choice([f"The {one}", f"The {colour} {one}", f"The little {one}", capital(an(one))])
    together = rng.choice(["they played together", "they went home", "they became friends", "they both fell asleep"])
    parts = [f"{first} {act} near {place}.", mood, f"Then {an(two)} came along and {act2}.",
             f"The {one} {act3}.", f"In the end {together}."]  # fmt: skip
    return " ".join(part for part in parts if rng.random() < 0.8 or part not in (parts[1], parts[3])).replace(
        "{food}", food
    )


def letter(rng: random.Random) -> str:
    """Somebody says hello."""
    name, animal = rng.choice(words.PEOPLE), rng.choice(words.HERO_ANIMALS)
    colours = [colour for colour in words.COLOURS if colour != "orange"]
    greeted = rng.choice(["world", "friends", "everybody", "there", rng.choice(words.PEOPLE)])
    pet = rng.choice(["is very kind", "likes to sleep", f"likes {rng.choice(words.FRUITS)}", "makes me laugh"])
    parts = [f"Hello {greeted}{rng.choice(['!', '.', ','])}", f"My name is {name}.",
             f"I live in {rng.choice(words.HOMES)}.", f"I like to {rng.choice(words.LOVES)}.",
             f"My {animal} {pet}.", f"My favourite colour is {rng.choice(colours)}.",
             rng.choice(["See you soon!", "Please write back.", "Have a nice day!"])]  # fmt: skip
    text = " ".join([parts[0], *(part for part in parts[1:] if rng.random() < 0.8)])
    return text if rng.random() < 0.7 else " ".join(parts[1:])


def refrain(rng: random.Random) -> str:
    """A counting song whose verses differ by a number and whose refrain never changes."""
    who, place = f"little {plural(rng.choice(words.HERO_ANIMALS))}", rng.choice(words.PLACES)
    toy = an(f"{rng.choice(words.COLOURS)} {rng.choice(words.TOYS)}")
    line = f"Over {place} the wind blows free, come and {rng.choice(words.LOVES)} with me."
    verses = [f"{n} {who} at {place}, {n} {who} with {toy}. {line}" for n in range(2, rng.randrange(4, 11))]
    return "\n".join(verses if rng.random() < 0.5 else verses[::-1])
