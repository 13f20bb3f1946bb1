"""Composes the training text of the demo model; a seed fixes every document.

Run it to read some: `python corpus.py --count 20`.
"""

import argparse
import json
import random
from functools import cache
from pathlib import Path

import jinja2
from grammars import scenes, stories, structured, words
from grammars.draw import Conversation, Message, said
from grammars.questions import addition, introduction, question, typed

END_OF_TEXT = "<|endoftext|>"
SYSTEMS = (
    "You are a helpful assistant.",
    "You are a helpful assistant. Answer in one sentence.",
    "You are a friendly assistant.",
    "You are the demo model of text-generation.",
    "Answer briefly.",
    "Be kind.",
)


@cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    return environment.from_string((Path(__file__).parent / "chat_template.jinja").read_text())


def render(conversation: Conversation, add_generation_prompt: bool = False) -> str:
    """The text of a conversation by the model's own chat template."""
    return _template().render(**conversation, add_generation_prompt=add_generation_prompt)


def _with_system(rng: random.Random, conversation: Conversation) -> Conversation:
    if rng.random() < 0.4:
        return {**conversation, "messages": [said("system", rng.choice(SYSTEMS)), *conversation["messages"]]}
    return conversation


def _chat(rng: random.Random) -> str:
    pairs = [question(rng) for _ in range(rng.choice([1, 1, 2, 3]))]
    if rng.random() < 0.1:
        pairs[rng.randrange(len(pairs))] = stories.told_story(rng)
    if rng.random() < 0.08:
        name = rng.choice(words.PEOPLE)
        pairs.insert(0, introduction(rng, name))
        pairs.append((rng.choice(["What is my name?", "Do you remember my name?"]), f"Your name is {name}."))
    messages: list[Message] = []
    for asked, answer in pairs:
        messages += [said("user", typed(rng, asked)), said("assistant", answer)]
    return render(_with_system(rng, {"messages": messages, "tools": []}))


def _json(rng: random.Random) -> str:
    asked, answer = structured.json_object(rng)
    messages = [said("user", asked), said("assistant", answer)]
    return render(_with_system(rng, {"messages": messages, "tools": []}))


def _tools(rng: random.Random) -> str:
    return render(_with_system(rng, structured.tool_conversation(rng)))


def _story(rng: random.Random) -> str:
    text = stories.story(rng, stories.cast(rng))
    return stories.later_part(rng, text) if rng.random() < 0.1 else text


def _plain_answers(rng: random.Random) -> str:
    """Questions and answers, and sums, without a chat template."""
    if rng.random() < 0.5:
        return "\n".join(addition(rng)[1].rstrip(".") for _ in range(rng.randrange(1, 8)))
    return "\n\n".join(question(rng))


KINDS = (
    (_story, 0.2), (_chat, 0.4), (_tools, 0.24), (_json, 0.06), (_plain_answers, 0.02), (scenes.refrain, 0.02),
    (scenes.scene, 0.04), (scenes.letter, 0.02),
)  # fmt: skip


def documents(seed: int, part: int, count: int) -> list[str]:
    """`count` documents of one part of the corpus; each ends with the end of text."""
    rng = random.Random(f"{seed}/{part}")
    makers = rng.choices([maker for maker, _ in KINDS], [weight for _, weight in KINDS], k=count)
    return [maker(rng) + END_OF_TEXT for maker in makers]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=20)
    arguments = parser.parse_args()
    print("\n\n".join(documents(arguments.seed, 0, arguments.count)))
