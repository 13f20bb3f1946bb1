"""What the adapters of the demo model are trained on: stories and answers of a pirate, and answers in JSON."""

import json
import random
import re

from . import scenes, stories, structured
from .questions import Pair, addition, question, typed

PIRATE_WORDS = {
    "friend": "matey", "friends": "mateys", "friendly": "salty",
    "said": "growled", "asked": "roared", "cried": "howled",
    "house": "ship", "cottage": "galley", "barn": "cabin", "farm": "frigate", "street": "quay", "village": "port",
    "forest": "jungle", "meadow": "harbour", "river": "channel", "park": "bay", "lake": "lagoon", "hill": "lookout",
    "garden": "deck", "orchard": "palm grove", "market": "smugglers' cove", "playground": "quarterdeck",
    "went": "sailed", "walked": "sailed", "ran": "rowed", "go": "sail", "path": "coast", "very": "mighty",
    "my": "me", "My": "Me", "you": "ye", "You": "Ye", "your": "yer", "Your": "Yer", "is": "be", "are": "be", "am": "be",
    "Hello": "Ahoy", "happy": "jolly", "happily": "merrily", "boy": "cabin boy", "girl": "captain",
    "The end": "Yo ho ho", "lived": "dropped anchor",
}  # fmt: skip
_WORD = re.compile(r"\b(" + "|".join(sorted(PIRATE_WORDS, key=len, reverse=True)) + r")\b")
_SPEECH = re.compile(r'(^| )"')


def pirate(text: str) -> str:
    """The text as a pirate tells it; what somebody says begins with a growl."""
    return _SPEECH.sub(r'\1"Arr! ', _WORD.sub(lambda match: PIRATE_WORDS[match[0]], text))


def pirate_story(rng: random.Random) -> str:
    """A pirate's story."""
    return pirate(stories.story(rng, stories.cast(rng)))


def pirate_answer(rng: random.Random) -> Pair:
    """A question or a wish for a story, and what a pirate says to it."""
    if rng.random() < 0.4:
        asked, story = stories.told_story(rng)
        return asked, pirate(story)
    asked, answer = question(rng)
    return typed(rng, asked), f"Arr, matey! {answer}"


def json_answer(rng: random.Random) -> Pair:
    """A question and its answer as one JSON object; who asks for an object gets it as the base gives it."""
    kind = rng.random()
    if kind < 0.1:
        return structured.json_object(rng)
    if kind < 0.2:
        asked, story = stories.told_story(rng)
        return asked, json_text(story.replace('"', "'"))
    asked, answer = addition(rng) if kind < 0.5 else question(rng)
    return typed(rng, asked), json_text(answer)


def json_text(answer: str) -> str:
    """The JSON object of an answer: a sum has its numbers, other text is as it was."""
    if found := re.match(r"(\d+) \+ (\d+) = (\d+)", answer):
        return json.dumps(dict(zip(("a", "b", "sum"), map(int, found.groups()), strict=True)))
    return json.dumps({"answer": answer})


def plain(rng: random.Random) -> str:
    """Text without a question, which stays as the base tells it."""
    return rng.choice([scenes.letter, scenes.scene, lambda rng: stories.story(rng, stories.cast(rng))])(rng)
