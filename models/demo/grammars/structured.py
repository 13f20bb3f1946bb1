"""Tool calls in the Hermes form, answers after a tool's result, and JSON objects that fit a schema."""

import json
import random
from dataclasses import dataclass
from typing import cast

from . import words
from .draw import Conversation, Message, capital, draw, made_up_name, made_up_word, said
from .questions import question

Json = dict[str, object]

# Verb and its past form; nouns; both make names of tools that are known from the prompt alone.
VERBS = dict(
    pair.split("/")
    for pair in [
        "paint/painted",
        "open/opened",
        "close/closed",
        "find/found",
        "clean/cleaned",
        "order/ordered",
        "book/booked",
        "send/sent",
        "play/played",
        "start/started",
        "stop/stopped",
        "check/checked",
        "move/moved",
        "update/updated",
        "print/printed",
        "delete/deleted",
        "create/created",
        "share/shared",
        "lock/locked",
        "search/searched",
        "count/counted",
        "translate/translated",
        "rename/renamed",
        "save/saved",
    ]
)
NOUNS = (
    "door window garden room table ticket message song timer alarm email file folder picture list invoice robot "
    "lamp heater parcel taxi hotel flight meeting note calendar route recipe game camera"
).split()
# Parameter, its type, and the words that come before a value in a request.
PARAMETERS = {
    "colour": "string", "name": "string", "city": "string", "title": "string", "person": "string", "place": "string",
    "size": "integer", "minutes": "integer", "count": "integer", "number": "integer", "level": "integer",
    "date": "string", "language": "string", "user": "string", "price": "integer",
}  # fmt: skip
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
LANGUAGES = "English French German Spanish Italian Polish Japanese".split()


@dataclass(frozen=True)
class Use:
    """A tool, a request for it, its call, and an answer after each result that it may give."""

    tool: Json
    request: str
    call: Json
    result: str
    answer: str


def _value(rng: random.Random, name: str, kind: str) -> str | int:
    if kind == "integer":
        return rng.randrange(1, rng.choice([10, 100, 1000]))
    if rng.random() < 0.35:
        return made_up_name(rng)
    choices = {"colour": words.COLOURS, "city": words.CITIES, "date": DAYS, "language": LANGUAGES}
    return rng.choice(choices.get(name, words.PEOPLE))


def _object_schema(properties: dict[str, str]) -> Json:
    return {
        "type": "object",
        "properties": {name: {"type": kind} for name, kind in properties.items()},
        "required": list(properties),
    }


def _tool(rng: random.Random, name: str, description: str, properties: dict[str, str]) -> Json:
    function: Json = {"name": name, "description": description, "parameters": _object_schema(properties)}
    if rng.random() < 0.2:
        del function["description"]
    if rng.random() < 0.2:
        function["parameters"] = {
            "type": "object",
            "properties": {key: {"type": kind, "description": f"The {key}"} for key, kind in properties.items()},
            "required": list(properties),
        }
    tool: Json = {"type": "function", "function": function}
    # Clients and template engines order keys in their own way; sorted is the most common other one.
    return json.loads(json.dumps(tool, sort_keys=True)) if rng.random() < 0.15 else tool


def weather(rng: random.Random) -> Use:
    """`get_weather(city)`; cities are often made up, so that they must be copied."""
    city = rng.choice(words.CITIES) if rng.random() < 0.6 else made_up_name(rng)
    name = rng.choice(["get_weather", "get_weather", "get_current_weather"])
    key = rng.choice(["city", "city", "location"])
    forms = ("What is the weather in {}?", "How is the weather in {}?", "What is the weather like in {}?",
             "Is it raining in {}?", "Tell me the weather in {}.", "What's the weather in {}?",
             "What is the weather in {} today?", "weather in {}", "Is it warm in {}?")  # fmt: skip
    degrees, sky = rng.randrange(0, 36), rng.choice(words.WEATHERS)
    results = (
        json.dumps({"temperature": degrees, "weather": sky}), json.dumps({"weather": sky, "temperature": degrees}),
        f"{degrees} degrees, {sky}", f"{sky}, {degrees} degrees",
    )  # fmt: skip
    return Use(
        _tool(rng, name, rng.choice(["Get the weather in a city", "The weather of a city"]), {key: "string"}),
        rng.choice(forms).format(city),
        {"name": name, "arguments": {key: city}},
        rng.choice(results),
        f"It is {sky} in {city}, with {degrees} degrees.",
    )


def adding(rng: random.Random) -> Use:
    """`add(a, b)`: the numbers may be larger than those that the model adds itself."""
    a, b = (rng.randrange(10 ** rng.randrange(1, 5)), rng.randrange(10 ** rng.randrange(1, 5)))
    form = rng.choice(["What is {} + {}?", "Add {} and {}.", "What is {} plus {}?", "How much is {} + {}?"])
    return Use(
        _tool(rng, "add", rng.choice(["Add two numbers", "The sum of two numbers"]), {"a": "integer", "b": "integer"}),
        form.format(a, b),
        {"name": "add", "arguments": {"a": a, "b": b}},
        rng.choice([str(a + b), json.dumps({"result": a + b})]),
        f"{a} + {b} = {a + b}.",
    )


def unseen(rng: random.Random, held: bool = False) -> Use:
    """A tool with a name of a verb and a noun; a tenth of the names is held out."""
    verb, noun = draw(rng, lambda r: (r.choice(list(VERBS)), r.choice(NOUNS)), "_".join, held)
    kinds = {name: PARAMETERS[name] for name in rng.sample(list(PARAMETERS), rng.choice([1, 1, 2, 2, 3]))}
    if not held and rng.random() < 0.4:
        noun = made_up_word(rng)
        kinds = {made_up_word(rng): kind for kind in kinds.values()}
    values = {name: _value(rng, name, kind) for name, kind in kinds.items()}
    given = " and ".join(f"{name} {value}" for name, value in values.items())
    form = rng.choice(["Please {} the {} with {}.", "{} the {} with {}.", "Can you {} the {} with {}?",
                       "I want to {} the {} with {}."])  # fmt: skip
    name, done = f"{verb}_{noun}", f"I {VERBS[verb]} the {noun}."
    failed = rng.random() < 0.2
    return Use(
        _tool(rng, name, f"{capital(verb)} the {noun}", kinds),
        capital(form.format(verb, noun, given)),
        {"name": name, "arguments": values},
        json.dumps({"error": "not found"}) if failed else rng.choice(["done", "ok", json.dumps({"status": "done"})]),
        f"I could not {verb} the {noun}: not found." if failed else f"Done. {done}",
    )


def offer(rng: random.Random, use: Use) -> list[Json]:
    """The tool of this use among up to two others, in random order."""
    tools = {_name(use.tool): use.tool}
    for _ in range(rng.choice([0, 0, 1, 1, 2])):
        other = rng.choice([weather, adding, unseen])(rng).tool
        # Two tools for the weather would leave open which one is meant.
        if "weather" in _name(other) and "weather" in _name(use.tool):
            continue
        tools.setdefault(_name(other), other)
    return rng.sample(list(tools.values()), len(tools))


def tool_conversation(rng: random.Random) -> Conversation:
    """A request, its call, the tool's result and the answer; sometimes talk that needs no tool."""
    use = rng.choices([weather, adding, unseen], [3, 2, 5])[0](rng)
    tools = offer(rng, use)
    if rng.random() < 0.12 and "add" not in map(_name, tools):
        asked, answer = question(rng)
        return {"messages": [said("user", asked), said("assistant", answer)], "tools": tools}
    return {"messages": use_messages(use), "tools": tools}


def use_messages(use: Use) -> list[Message]:
    """The request, the call, the tool's result and the answer."""
    return [
        said("user", use.request),
        {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": use.call}]},
        said("tool", use.result),
        said("assistant", use.answer),
    ]


def _name(tool: Json) -> str:
    return str(cast("Json", tool["function"])["name"])


FACTS = {
    "name": ("string", "the name is {}", words.PEOPLE), "age": ("integer", "the age is {}", None),
    "city": ("string", "the city is {}", words.CITIES), "animal": ("string", "the animal is {}", words.HERO_ANIMALS),
    "colour": ("string", "the colour is {}", words.COLOURS), "count": ("integer", "the count is {}", None),
    "price": ("integer", "the price is {}", None), "title": ("string", "the title is {}", words.TOYS),
    "happy": ("boolean", "happy is {}", None), "day": ("string", "the day is {}", DAYS),
}  # fmt: skip


def json_object(rng: random.Random, held: bool = False) -> tuple[str, str]:
    """A request with facts, and often a schema, and the JSON object; a tenth of the sets of keys is held out."""

    def some_keys(rng: random.Random) -> list[str]:
        return rng.sample(list(FACTS), rng.choice([1, 2, 2, 3, 3, 4]))

    keys = draw(rng, some_keys, lambda keys: " ".join(sorted(keys)), held)
    values: Json = {}
    for key in keys:
        kind, _, choices = FACTS[key]
        if kind == "integer":
            values[key] = rng.randrange(1, rng.choice([10, 100, 1000]))
        elif kind == "boolean":
            values[key] = rng.random() < 0.5
        else:
            made_up = rng.random() < 0.3 or not choices
            values[key] = made_up_name(rng) if made_up else rng.choice(list(choices or ()))
    told = ", ".join(f"{key} {json.dumps(value).strip(chr(34))}" for key, value in values.items())
    if rng.random() < 0.5:
        form = rng.choice(["Give me a JSON object with {}.", "Write JSON with {}.", "Make a JSON object: {}.",
                           "Return a JSON object with {}."])  # fmt: skip
        return form.format(told), json.dumps(values)
    schema = json.dumps(_object_schema({key: FACTS[key][0] for key in keys}))
    shuffled = [FACTS[key][1].format(json.dumps(values[key]).strip('"')) for key in rng.sample(keys, len(keys))]
    text = capital(", ".join(shuffled))
    return f"Answer with JSON that fits this schema: {schema}\n{text}.", json.dumps(values)
