"""Questions and answers of the chat: greetings, sums, counting, colours, animals, and what this server is."""

import random
from collections.abc import Callable

from . import words
from .draw import an, capital, draw, listing, made_up_name, plural

Pair = tuple[str, str]

CALL = (
    "Send a POST request to /generate: curl http://127.0.0.1:3000/generate -H 'Content-Type: application/json' "
    '-d \'{"inputs": "Once upon a time", "parameters": {"max_new_tokens": 60}}\''
)

# What may be asked | what is answered; the questions of one answer are separated by slashes.
FIXED = tuple(
    (tuple(questions.split("/")), answer)
    for questions, answer in (
        ("Hello/Hi/Hello!/Hi!/Hey/Hello there/Hi there!", "Hello! How can I help you?"),
        ("Good morning/Good morning!", "Good morning! How can I help you?"),
        ("Good evening/Good evening!", "Good evening! How can I help you?"),
        ("How are you?/How are you today?/Hello, how are you?/Hi, how are you?", "I am fine, thank you. How are you?"),
        ("Thank you/Thanks/Thank you!/Thanks a lot!/Thank you very much.", "You are welcome!"),
        ("Bye/Goodbye/Goodbye!/See you later/Good night", "Goodbye! Have a nice day."),
        ("Who are you?/What are you?/What is your name?/Tell me about yourself.",
         "I am the demo model of text-generation, a very small language model."),
        ("What can you do?/How can you help me?/What do you know?/Help",
         "I can tell short stories, add small numbers, count, talk about colours and animals, call tools and "
         "write JSON."),
        ("Who made you?/Who trained you?/How were you trained?",
         "I was trained in a few minutes on text that the project text-generation composed itself."),
        ("Are you a large language model?/How big are you?/How many parameters do you have?",
         "No, I am a very small model with fewer than three million parameters."),
        ("What is this server?/What is this?/What is text-generation?/What server is this?/What are you running on?",
         "This is text-generation, an inference server for large language models. It has a launcher and a router "
         "written in Rust and model shards written in Python."),
        ("How do I call you?/How do I call this server?/How can I use this server?/How do I send a request?/"
         "Show me a curl command.", CALL),
        ("How do I stream?/How can I stream the answer?/Can you stream tokens?",
         "Send the same request to /generate_stream. The tokens come as server-sent events."),
        ("How do I chat with this server?/Is there a chat API?/Do you have an OpenAI API?",
         "Send a POST request with your messages to /v1/chat/completions."),
        ("Where is the documentation?/Where are the docs?/Is there documentation?",
         "The API is documented at /docs on this server."),
        ("Which port do you use?/What is the default port?/Which port does the server use?",
         "The default port is 3000."),
        ("How do I start the server?/How do I run the server?", "Type make run in the folder of the project."),
        ("Is the server healthy?/How do I check the health?", "Ask GET /health. It answers 200 when all is well."),
        ("Where are the metrics?/How do I see metrics?", "Ask GET /metrics. The format is that of Prometheus."),
        ("Can I run another model?/How do I use another model?/How do I load a different model?",
         "Yes. Type make run MODEL_ID= with the folder or hub id of the model."),
        ("What is deep learning?/What is Deep Learning?/Explain deep learning.",
         "Deep learning is a way to learn from data with neural networks that have many layers."),
        ("What is a language model?/What is a large language model?",
         "A language model is a program that predicts the next token of a text."),
        ("What is a token?/What are tokens?", "A token is a piece of text, often a word or a part of a word."),
        ("What is machine learning?", "Machine learning is how a computer learns from examples instead of rules."),
        ("What are the colours of the rainbow?/Which colours does a rainbow have?",
         "Red, orange, yellow, green, blue, indigo and violet."),
        ("What are the days of the week?/Name the days of the week.",
         "Monday, Tuesday, Wednesday, Thursday, Friday, Saturday and Sunday."),
        ("Tell me a joke./Tell me a joke!/Do you know a joke?",
         "Why did the duck cross the road? To show the hen that it can be done."),
        ("What is two plus two?", "2 + 2 = 4."),
        ("Say hello./Say hello", "Hello!"),
        ("Are you a robot?/Are you human?/Are you alive?", "I am a small computer program."),
        ("What are the seasons?/Name the four seasons.", "Spring, summer, autumn and winter."),
    )
)  # fmt: skip

UNKNOWN = (
    "Who won the game last night?|What is the meaning of life?|Who is the president?|What time is it?|"
    "Write a program that sorts {0}.|How do I cook {0}?|Who wrote the book about the {0}?|Why is the sea salty?|"
    "Translate {0} into French.|What is the price of a {0}?|How far away is {1}?|Who discovered {1}?|"
    "Can you write a poem about {1}?|What is quantum physics?|Explain how a {0} works.|Who invented the {0}?|"
    "When was {1} founded?|What is the history of {1}?|How many people live in {1}?|Why do we need a {0}?|"
    "What is the best {0} in {1}?|Write a haiku.|Write an essay about {1}.|Tell me about {1}.|Who is {1}?|"
    "Who was {1}?|What is {1}?|What do you think about {1}?|Describe a {0}.|"
    "Write a poem.|Sing a song.|Who was the first king of {1}?|How old is {1}?"
).split("|")
THINGS = "telephone car train bridge computer camera rocket soup engine violin clock lamp ship radio bicycle".split()
NOT_KNOWN = "I do not know that. I am only a small demo model."


def sum_operands(rng: random.Random, held: bool = False) -> tuple[int, int]:
    """Two numbers below 100; a tenth of the unordered pairs is held out."""

    def pair(rng: random.Random) -> tuple[int, int]:
        limit = rng.choice([10, 20, 100, 100])
        return rng.randrange(limit), rng.randrange(limit)

    return draw(rng, pair, lambda ab: f"{min(ab)} + {max(ab)}", held)


def addition(rng: random.Random, held: bool = False) -> Pair:
    """A sum of two numbers, asked in one of several ways."""
    a, b = sum_operands(rng, held)
    if not held and rng.random() < 0.05:
        large = rng.sample([a, b, rng.randrange(100, 10_000)][rng.randrange(2) :], 2)
        if max(large) > 99:
            return f"What is {large[0]} + {large[1]}?", "I can only add numbers below 100."
    if a > 1 and rng.random() < 0.15:
        name, fruit = rng.choice(words.PEOPLE), rng.choice(words.FRUITS)
        he = "she" if name in words.GIRLS else "he"
        asked = f"{name} has {a} {fruit} and gets {b} more. How many {fruit} does {he} have?"
        return asked, f"{a} + {b} = {a + b}, so {name} has {a + b} {fruit}."
    forms = (
        "What is {a} + {b}?", "What is {a} plus {b}?", "{a} + {b}", "{a} + {b} =", "What is the sum of {a} and {b}?",
        "How much is {a} + {b}?", "How much is {a} plus {b}?", "Add {a} and {b}.", "Can you add {a} and {b}?",
        "Please calculate {a} + {b}.", "what is {a}+{b}?", "{a}+{b}", "Hello, what is {a} + {b}?",
    )  # fmt: skip
    return rng.choice(forms).format(a=a, b=b), f"{a} + {b} = {a + b}."


def counting(rng: random.Random) -> Pair:
    """Counting up or down, and neighbours of a number."""
    start, length = rng.randrange(0, 60), rng.randrange(2, 12)
    up = ", ".join(map(str, range(start, start + length))) + "."
    kind = rng.randrange(6)
    if kind == 0:
        end = rng.randrange(2, 31)
        return rng.choice(["Count to {}.", "Please count to {}.", "Count from 1 to {}."]).format(end), (
            ", ".join(map(str, range(1, end + 1))) + "."
        )
    if kind == 1:
        down = ", ".join(map(str, range(start + length - 1, start - 1, -1))) + "."
        return f"Count down from {start + length - 1} to {start}.", down
    if kind == 2:
        return f"What comes after {start}?", f"After {start} comes {start + 1}."
    if kind == 3:
        return f"What comes before {start + 1}?", f"Before {start + 1} comes {start}."
    return rng.choice(["Count from {} to {}.", "Please count from {} to {}."]).format(start, start + length - 1), up


def colours(rng: random.Random) -> Pair:
    """Colours of things and what mixed paint gives."""
    word = rng.choice(["colour", "color"])
    chance = rng.random()
    if chance < 0.1:
        return f"Name three {word}s.", capital(listing(rng.sample(words.COLOURS, 3))) + "."
    if chance < 0.5:
        thing, colour = rng.choice(list(words.THING_COLOURS.items()))
        return f"What {word} is {thing}?", f"{capital(thing)} is {colour}."
    (one, two), mixed = rng.choice(list(words.MIXES.items()))
    one, two = rng.sample([one, two], 2)
    form = rng.choice(["What {0} do you get when you mix {1} and {2}?", "Which {0} do {1} and {2} make?"])
    return form.format(word, one, two), f"{capital(one)} and {two} make {mixed}."


def animals(rng: random.Random) -> Pair:
    """Sounds, legs, food, homes and young of animals."""
    kind = rng.randrange(7)
    if kind == 6:
        return about(rng)
    if kind == 0:
        animal, sound = rng.choice(list(words.SOUNDS.items()))
        form = rng.choice(["What sound does {} make?", "What does {} say?", "Which sound does {} make?"])
        return form.format(an(animal)), f"{capital(an(animal))} says {sound}."
    if kind == 1:
        animal, legs = rng.choice(list(words.LEGS.items()))
        answer = f"{capital(an(animal))} has {legs or 'no'} legs."
        return f"How many legs does {an(animal)} have?", answer
    if kind == 2:
        animal, food = rng.choice(list(words.FOODS.items()))
        return f"What does {an(animal)} eat?", f"{capital(an(animal))} eats {food}."
    if kind == 3:
        animal, place = rng.choice(list(words.DWELLINGS.items()))
        return f"Where does {an(animal)} live?", f"{capital(an(animal))} lives {place}."
    if kind == 4:
        animal, young = rng.choice(list(words.YOUNG.items()))
        return f"What is a young {animal} called?", f"A young {animal} is called {an(young)}."
    count = rng.randrange(2, 6)
    numbers = ["two", "three", "four", "five"]
    names = capital(listing(rng.sample(list(words.LEGS), count))) + "."
    return f"Name {numbers[count - 2]} animals.", names


def about(rng: random.Random) -> Pair:
    """All that is known of one animal."""
    animal, food = rng.choice(list(words.FOODS.items()))
    told = [f"{capital(an(animal))} eats {food}."]
    if animal in words.LEGS:
        told.append(f"It has {words.LEGS[animal]} legs.")
    if animal in words.SOUNDS:
        told.append(f"It says {words.SOUNDS[animal]}.")
    form = rng.choice(["Tell me about {}.", "What do you know about {}?", "What can you tell me about {}?"])
    return form.format(plural(animal) if rng.random() < 0.7 else an(animal)), " ".join(told)


def facts(rng: random.Random) -> Pair:
    """Capitals, and what the model is and does not know."""
    chance = rng.random()
    if chance < 0.2:
        country, city = rng.choice(list(words.CAPITALS.items()))
        return f"What is the capital of {country}?", f"The capital of {country} is {city}."
    if chance < 0.28:
        thing, place = rng.choice(THINGS), made_up_name(rng) if chance < 0.24 else rng.choice(words.CITIES)
        return rng.choice(UNKNOWN).format(thing, place), NOT_KNOWN
    questions, answer = rng.choice(FIXED)
    return rng.choice(questions), answer


def introduction(rng: random.Random, name: str) -> Pair:
    """Somebody says a name and is greeted by it."""
    form = rng.choice(["My name is {}.", "I am {}.", "Hello, I am {}.", "Hi, my name is {}."])
    return form.format(name), f"Hello {name}! How can I help you?"


def repetition(rng: random.Random) -> Pair:
    """Text to be given back: as it was, several times, or with a name changed."""
    a, b = rng.sample(words.PEOPLE, 2)
    animal, place, toy = rng.choice(words.HERO_ANIMALS), rng.choice(words.PLACES), rng.choice(words.TOYS)
    lines = [f"{{0}} the {animal} went to {place}.", f"{{0}} had {an(rng.choice(words.COLOURS))} {toy}.",
             f"{{0}} liked to {rng.choice(words.LOVES)}.", f"Everybody near {place} knew {{0}}."]  # fmt: skip
    text = " ".join(rng.sample(lines, rng.randrange(1, 5)))
    kind = rng.randrange(3)
    if kind == 0:
        return rng.choice(["Repeat: {}", "Say this again: {}", "Repeat after me: {}"]).format(text.format(a)), (
            text.format(a)
        )
    if kind == 1:
        times = rng.randrange(2, 6)
        line = rng.choice(lines).format(a)
        return f"Say this {times} times: {line}", " ".join([line] * times)
    return f"Write this with {b} instead of {a}: {text.format(a)}", text.format(b)


TOPICS: tuple[tuple[float, Callable[[random.Random], Pair]], ...] = (
    (0.36, addition), (0.08, counting), (0.08, colours), (0.16, animals), (0.2, facts),
    (0.02, lambda rng: introduction(rng, rng.choice(words.PEOPLE))),
    (0.1, repetition),
)  # fmt: skip


def typed(rng: random.Random, text: str) -> str:
    """The text as people type it: sometimes without a capital or the mark at the end."""
    if rng.random() < 0.15:
        text = text[0].lower() + text[1:]
    return text.rstrip("?.!") if rng.random() < 0.15 and len(text) > 3 else text


def question(rng: random.Random) -> Pair:
    """One question and its answer."""
    weights = [weight for weight, _ in TOPICS]
    return rng.choices([topic for _, topic in TOPICS], weights)[0](rng)
