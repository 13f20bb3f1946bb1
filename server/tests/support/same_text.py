"""Compares answers of servers that draft with those of one that does not, bit by bit: `python -m support.same_text`.

The model is the demo model, on a GPU where there is one. Requests come a few at a time, so that windows stand beside
prompts in chunks; each has one of twenty settings, and each drafter its turn. It prints a line of JSON for each round,
and ends with status 1 at the first answer that differs.
"""

import argparse
import itertools
import json
import random
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from support.engine_driver import engine_with
from support.gpu_engine import build
from support.loading import load
from support.windows import request, run, run_arriving
from text_generation_server.engine.engine import Engine
from text_generation_server.engine.options import EngineOptions
from text_generation_server.engine.requests import Request, WarmupLimits

DEMO = Path(__file__).parents[3] / "models" / "demo"
ADAPTERS = sorted(each for each in (DEMO / "adapters").iterdir() if each.is_dir())[:1]
ROWS, ROOM, NEW_TOKENS, DRAFTS = 24, 96, 24, 7
LIMITS = WarmupLimits(
    max_batch_prefill_tokens=ROWS * ROOM, max_batch_size=ROWS, max_batch_total_tokens=ROWS * ROOM, prefill_chunking=True
)
_SAMPLED = {"do_sample": True}
SETTINGS: tuple[dict[str, Any], ...] = (
    {},
    {"repetition_penalty": 1.3},
    {"frequency_penalty": 0.7, "presence_penalty": 0.4},
    {"repetition_penalty": 1.1, "penalize_output_only": True},
    {"min_new_tokens": 8},
    {"logit_bias": ((30, 2.0), (41, -3.0))},
    {"watermark": True},
    {**_SAMPLED, "temperature": 0.2},
    {**_SAMPLED, "temperature": 0.7},
    {**_SAMPLED},
    {**_SAMPLED, "temperature": 1.5},
    {**_SAMPLED, "top_k": 20},
    {**_SAMPLED, "top_p": 0.9},
    {**_SAMPLED, "typical_p": 0.8},
    {**_SAMPLED, "min_p": 0.05},
    {**_SAMPLED, "temperature": 0.8, "top_k": 40, "top_p": 0.95},
    {**_SAMPLED, "repetition_penalty": 1.2, "top_p": 0.9},
    {**_SAMPLED, "watermark": True, "frequency_penalty": 0.5},
    {**_SAMPLED, "min_new_tokens": 8, "logit_bias": ((30, 2.0),)},
    {**_SAMPLED, "temperature": 1.5, "presence_penalty": 1.0, "min_p": 0.02},
)
DRAFTERS: dict[str, Path | None] = {"ngram": None, "eagle3": DEMO / "drafter", "draft_model": DEMO}


@dataclass(frozen=True)
class Round:
    """What one round has compared."""

    drafter: str
    width: int
    answers: int
    different: int
    steps: int
    """Of the server that drafts; the other one has taken `plain_steps`."""
    plain_steps: int


def engine_of(drafter: Path | None, speculate: int, cuda: bool) -> Engine:
    options: dict[str, Any] = {"deterministic": True, "speculate": speculate}
    if cuda:
        return build(DEMO, torch.bfloat16, LIMITS, adapters=ADAPTERS, drafter=drafter, **options)
    model = load(DEMO, drafter=drafter)
    return engine_with(model, LIMITS, ADAPTERS, options=EngineOptions(**options), eos_token_ids=[])


def requests_of(number: int, vocab_size: int) -> list[Request]:
    """As many as there are rows, which follow from the number of the round: texts that repeat a part of themselves."""
    chance, found = random.Random(number), list[Request]()
    for row in range(ROWS):
        settings = SETTINGS[(number * ROWS + row) % len(SETTINGS)]
        part = [chance.randrange(4, vocab_size) for _ in range(chance.randint(1, 24))]
        prompt = (part * 3)[: chance.randint(1, ROOM - NEW_TOKENS)]
        seed = {"seed": chance.randrange(1 << 32)} if settings.get("do_sample") else {}
        each = request(row, prompt, NEW_TOKENS, ROOM, **settings, **seed)
        found.append(replace(each, adapter=chance.randrange(len(ADAPTERS) + 1)))
    return found


def rounds(answers: int, drafters: Sequence[str], cuda: bool = False) -> Iterator[Round]:
    """Compares at least so many answers."""
    plain = engine_of(None, 0, cuda)
    served = {name: engine_of(DRAFTERS[name], DRAFTS, cuda) for name in drafters}
    compared, names = 0, itertools.cycle(drafters)
    for number in itertools.count():
        if compared >= answers:
            return
        name, width = next(names), (2, 4, 8)[number // len(drafters) % 3]
        requests = requests_of(number, plain.info.vocab_size)
        expected = run(plain, requests, 1, ADAPTERS)
        chunk = random.Random(number).choice((3, 16, 64))
        found = run_arriving(served[name], requests, width, chunk, ADAPTERS, seed=number, together=6)
        different = sum(
            (found.ids[row], found.logprobs[row]) != (expected.ids[row], expected.logprobs[row]) for row in range(ROWS)
        )
        compared += ROWS
        yield Round(name, width, ROWS, different, found.steps, expected.steps)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--answers", type=int, default=10_000, help="how many answers are compared, at least")
    parser.add_argument("--drafter", action="append", choices=DRAFTERS, help="default: each in turn")
    asked = parser.parse_args()
    started, compared = time.monotonic(), 0
    for each in rounds(asked.answers, asked.drafter or list(DRAFTERS), torch.cuda.is_available()):
        compared += each.answers
        print(
            json.dumps({**vars(each), "compared": compared, "seconds": round(time.monotonic() - started)}), flush=True
        )
        if each.different:
            sys.exit(1)


if __name__ == "__main__":
    main()
