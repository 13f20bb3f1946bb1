"""Times whole answers through HTTP, without streams: adapters, windows of drafts, and whether texts are equal.

    python3 benchmark/answers.py adapters FOLDER ADAPTERS --adapter-pages 72
    python3 benchmark/answers.py windows FOLDER --load-format dummy
    python3 benchmark/answers.py texts models/demo --drafting "--speculate 4"

Each starts the launcher, drives it and prints a table; flags that this program does not know go to the launcher.
`windows` and `texts` start it without and with the flags of each argument of `--drafting`. ADAPTERS is a folder that
`benchmark/models/adapters.py` has filled, FOLDER one of `make.py`, with weights (`weights.py`) for adapters.

A token's time is that of an answer less that of its first token, over the tokens after the first: the median of the
requests, the better of two runs. Prompts are cached.
"""

import argparse
import json
import os
import random
import shlex
import statistics
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import compact
from bars import RESPONSE_FORMAT, URL, metrics, served

Body = dict[str, Any]
LIKELY, UNLIKELY = "20", "21"
"""Ids that a bias makes likely."""
FIELDS = ("ID", "KEY", "NAME", "UNIT", "CODE", "DATE")
"""Capitals have tokens of one letter alone in the vocabularies of `make.py`: as many as real names have tokens."""
RECORDS: Body = {
    "type": "array",
    "minItems": 100,
    "items": {
        "type": "object",
        "properties": {name: {"type": "string", "pattern": "^[a-z]{4,8}$"} for name in FIELDS},
        "required": FIELDS,
        "additionalProperties": False,
    },
}
KINDS: dict[str, Body] = {
    "random": {},
    "same": {"logit_bias": {LIKELY: 100}},
    # ln 4 apart: four times as likely as the other.
    "mixed": {"logit_bias": {LIKELY: 100, UNLIKELY: 98.614}, "temperature": 1},
    "schema": {"response_format": RESPONSE_FORMAT},
    "records": {"response_format": {"type": "json_schema", "json_schema": {"name": "records", "schema": RECORDS}}},
}
"""Greedy text that nobody can draft; one token again and again; drafts that are as often right as a head's; JSON of one
long string; JSON of which names and quotes are known beforehand.
"""
SETTINGS: list[Body] = [
    {},
    {"repetition_penalty": 1.2},
    {"frequency_penalty": 0.3},
    *({"do_sample": True, "temperature": each} for each in (0.3, 0.7, 1.0, 1.5)),
    {"do_sample": True, "top_p": 0.9},
    {"do_sample": True, "top_k": 5},
    {"do_sample": True, "top_k": 50, "top_p": 0.8},
    {"do_sample": True, "typical_p": 0.9},
    {"watermark": True},
    {"do_sample": True, "watermark": True},
    {"do_sample": True, "temperature": 0.8, "repetition_penalty": 1.1},
    {"stop": ["."]},
    {"do_sample": True, "stop": [" the", ","]},
    {"top_n_tokens": 3},
    {"do_sample": True, "top_n_tokens": 2},
    {"max_new_tokens": 7},
    {"do_sample": True, "temperature": 0.5, "top_p": 0.95, "repetition_penalty": 1.05, "frequency_penalty": 0.1},
]
WORDS = ["Once", "upon", "a", "time", "there", "was", "the", "red", "bird", "who", "met", "king", "and", "3", "rain"]


@dataclass
class Table:
    """What was measured; each row is printed as it comes."""

    rows: list[dict[str, Any]] = field(default_factory=list)

    def note(self, **row: Any) -> None:
        """Adds a row."""
        self.rows.append(row)
        shown = {key: f"{value:.3f}" if isinstance(value, float) else value for key, value in row.items()}
        print("  ".join(f"{key} {value}" for key, value in shown.items()), flush=True)


def answer(route: str, body: Body) -> tuple[float, Body]:
    """Sends a request. Returns the seconds until the whole answer was here, and the answer."""
    request = urllib.request.Request(f"{URL}{route}", json.dumps(body).encode(), {"Content-Type": "application/json"})
    started = time.perf_counter()
    try:
        with urllib.request.urlopen(request, timeout=300) as reply:
            text = reply.read()
    except urllib.error.HTTPError as error:
        raise SystemExit(f"{route} answered {error.code}: {error.read().decode()[:500]}") from error
    return time.perf_counter() - started, json.loads(text)


def at_once(bodies: Sequence[Body], streams: int, route: str = "/v1/completions") -> list[tuple[float, Body]]:
    """The answers, in order, with so many requests at a time."""
    with ThreadPoolExecutor(streams) as pool:
        return list(pool.map(partial(answer, route), bodies))


def completion(which: object, length: int, vocab_size: int, **more: Any) -> Body:
    """A request with a prompt of random ids."""
    chance = random.Random(str(which))
    # The last ids of a vocabulary may be special.
    prompt = [chance.randrange(100, vocab_size - 512) for _ in range(length)]
    return {"prompt": prompt, "temperature": 0, "ignore_eos": True, **more}


def token_ms(bodies: Sequence[Body], tokens: int) -> float:
    """Milliseconds a token of requests that run at once."""
    first = [{**body, "max_tokens": 1} for body in bodies]
    whole = [{**body, "max_tokens": tokens} for body in bodies]
    at_once(first, len(first))
    runs = []
    for _ in range(2):
        short, long = (statistics.median(s for s, _ in at_once(each, len(each))) for each in (first, whole))
        runs.append(1e3 * (long - short) / (tokens - 1))
    return min(runs)


def first_ms(bodies: Iterable[Body]) -> float:
    """Milliseconds to the first token, one request after another."""
    return 1e3 * statistics.median(answer("/v1/completions", {**body, "max_tokens": 1})[0] for body in bodies)


def adapters(asked: argparse.Namespace, flags: list[str], table: Table) -> None:
    """Requests of the base, and of one to many adapters; first tokens; folders that nobody has read."""
    names = sorted((each.name for each in asked.adapters.iterdir() if each.name != asked.larger), key=int)
    make = partial(completion, vocab_size=of_text(asked.folder)["vocab_size"])
    many = asked.streams
    flags = ["--lora-dir", str(asked.adapters), "--adapter-host-mib", "20000", *flags]
    with server(asked.folder, flags, "adapters"):

        def note(length: int, count: int, distinct: int, **more: Any) -> None:
            models = [names[i % distinct] if distinct else None for i in range(count)]
            bodies = [make(i, length, **({"model": each} if each else {})) for i, each in enumerate(models)]
            ms = token_ms(bodies, asked.tokens)
            table.note(streams=count, length=length, adapters=distinct, ms_a_token=ms, **more)

        for length, count, kinds in ((512, 1, (0, 1, 0)), (asked.length, many, (0, 1, 8, many, 0))):
            for distinct in kinds:
                note(length, count, distinct)
        if asked.larger:
            at_once([make("larger", 16, model=asked.larger, max_tokens=4)], 1)
            note(asked.length, many, 8, beside=asked.larger)
        for adapter in (None, names[0]) * 2:
            model = {"model": adapter} if adapter else {}
            longest = [make(("first", time.time(), i), asked.longest, **model) for i in range(6)]
            table.note(length=asked.longest, adapter=adapter or "base", first_token_ms=first_ms(longest))
        warm = [make(("warm", i), 512, model=names[0]) for i in range(6)]
        cold = [make(("cold", i), 512, model=name) for i, name in enumerate(names[many : many + 6])]
        table.note(first_token_ms=first_ms(warm), of="an adapter on the device")
        if cold:
            table.note(first_token_ms=first_ms(cold), of="a folder that nobody has read")
        for label, chosen in (("as many as streams", names[:many]), ("all, by Zipf", names)):
            weights = [1 / (1 + rank) for rank in range(len(chosen))]
            picked = random.Random(1).choices(chosen, weights, k=8 * many)
            bodies = [make(("zipf", i), 256, model=each, max_tokens=64) for i, each in enumerate(picked)]
            started = time.perf_counter()
            at_once(bodies, many)
            table.note(adapters=label, of=len(chosen), tokens_per_s=64 * len(bodies) / (time.perf_counter() - started))


def windows(asked: argparse.Namespace, flags: list[str], table: Table) -> None:
    """Texts that can be drafted and others, without and with the flags that draft."""
    make = partial(completion, vocab_size=of_text(asked.folder)["vocab_size"])
    for label in drafting_servers(asked, flags):
        for kind in asked.kinds.split(","):
            body = {**KINDS[kind], **(compact_json() if kind == "records" else {})}
            for case in asked.cases.split(","):
                streams, length = map(int, case.split("x"))
                bodies = [make(i, length, seed=i, **body) for i in range(streams)]
                before = drafts()
                ms = token_ms(bodies, asked.tokens)
                checked, right = (now - then for now, then in zip(drafts(), before, strict=True))
                table.note(drafts=label, text=kind, case=case, ms_a_token=ms, checked=checked, right=right)


def texts(asked: argparse.Namespace, flags: list[str], table: Table) -> None:
    """Answers in many settings, without and with the flags that draft, in deterministic mode."""
    chance = random.Random(3)
    bodies: list[Body] = []
    for number in range(asked.answers):
        parameters = {"max_new_tokens": chance.randrange(8, 70), "details": True, **SETTINGS[number % len(SETTINGS)]}
        if parameters.get("do_sample"):
            parameters["seed"] = number
        if number % 5 == 4:
            parameters["prediction"] = " ".join(chance.choices(WORDS, k=12))
        bodies.append({"inputs": " ".join(chance.choices(WORDS, k=chance.randrange(1, 12))), "parameters": parameters})
    found: list[list[Any]] = []
    for label in drafting_servers(asked, ["--deterministic", *flags]):
        answers = [each for _, each in at_once(bodies, 64, "/generate")]
        found.append([(each["generated_text"], each["details"]["tokens"]) for each in answers])
        table.note(drafts=label, answers=len(answers), checked=drafts()[0], right=drafts()[1])
    for drafting, other in zip(asked.drafting, found[1:], strict=True):
        equal = sum(one == same for one, same in zip(found[0], other, strict=True))
        table.note(drafts=drafting, answers=len(bodies), equal=equal)


def drafting_servers(asked: argparse.Namespace, flags: list[str]) -> Iterator[str]:
    """Serves without drafts, then with the flags of each argument of `--drafting`, and yields what these are."""
    for number, drafting in enumerate(["", *asked.drafting]):
        with server(asked.folder, [*flags, *shlex.split(drafting)], f"{asked.command}-{number}"):
            yield drafting or "none"


def compact_json() -> Body:
    """What keeps random weights from writing white space again and again, which JSON allows and models do not do."""
    spaces = [answer("/tokenize", {"inputs": each})[1] for each in " \n\t\r"]
    return {"logit_bias": {str(token["id"]): -100 for tokens in spaces for token in tokens}}


def drafts() -> tuple[int, int]:
    """Drafts that the server has checked, and those that were right."""
    found = metrics(("tgi_speculation",))
    checked, right = (found.get(f"tgi_speculation_{name}", 0.0) for name in ("drafts", "accepted"))
    return int(checked), int(right)


def of_text(folder: Path) -> dict[str, Any]:
    """The configuration of the model of text in a folder."""
    config = json.loads((folder / "config.json").read_text())
    return config.get("text_config", config)


def server(folder: Path, flags: list[str], name: str) -> AbstractContextManager[float]:
    """A server for requests of up to 16,384 tokens, or as many as the model has positions; it logs under this name."""
    log = Path(os.environ.get("OUT", tempfile.gettempdir())) / f"{name}.log"
    return served(folder, flags, log, min(16384, of_text(folder)["max_position_embeddings"]))


COMMANDS: dict[str, Callable[[argparse.Namespace, list[str], Table], None]] = {
    "adapters": adapters,
    "windows": windows,
    "texts": texts,
}


def main() -> None:
    """Runs what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, command in COMMANDS.items():
        each = commands.add_parser(name, help=command.__doc__)
        each.add_argument("folder", type=Path)
        each.add_argument("--output-json", type=Path)
    of_adapters, of_windows, of_texts = (commands.choices[name] for name in COMMANDS)
    of_adapters.add_argument("adapters", type=Path)
    of_adapters.add_argument("--streams", type=int, default=64)
    of_adapters.add_argument("--length", type=int, default=2048)
    of_adapters.add_argument("--longest", type=int, default=8000)
    of_adapters.add_argument("--tokens", type=int, default=256)
    of_adapters.add_argument("--larger", help="one of ADAPTERS with a larger rank, to load beside the others")
    of_windows.add_argument("--kinds", default=",".join(KINDS), help=f"of {', '.join(KINDS)}")
    of_windows.add_argument("--cases", default="1x512,8x2048,64x2048", help="streams x tokens of context")
    of_windows.add_argument("--tokens", type=int, default=192)
    of_texts.add_argument("--answers", type=int, default=10_000)
    for each in (of_windows, of_texts):
        each.add_argument(
            "--drafting",
            nargs="+",
            default=["--speculate 3"],
            help="flags of the launcher, in one argument a server",
        )
    asked, flags = parser.parse_known_args()
    table = Table()
    COMMANDS[asked.command](asked, flags, table)
    if asked.output_json:
        asked.output_json.write_text(compact.dumps({"command": " ".join(sys.argv), "rows": table.rows}))


if __name__ == "__main__":
    main()
