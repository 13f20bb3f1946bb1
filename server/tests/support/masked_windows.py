"""Requests that choose under masks and get windows of several tokens, run to their ends in lockstep."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from support.router import mask_write
from support.windows import NEW_TOKENS, Reader, request
from text_generation_server.engine.engine import Engine
from text_generation_server.engine.requests import Chunk, Hint, MaskForm, Request, StepMasks, StepPlan

VOCAB = 64
PROMPTS = [[5, 6, 7, 8, 1], [1, 2, 3], [9, 8, 7, 6, 3, 4], [60, 1, 33], [7, 7, 7, 7, 7, 7]]
SETTINGS: list[dict[str, Any]] = [
    {},
    {"do_sample": True, "seed": 7, "temperature": 0.7},
    {"do_sample": True, "seed": 11, "temperature": 1.5, "top_p": 0.9, "top_k": 20},
    {"repetition_penalty": 1.3, "frequency_penalty": 0.7, "presence_penalty": 0.4},
    {},
]
FREE = 4
"""The row without masks."""
Guess = Callable[[int, Sequence[int]], Sequence[int]]
"""What may follow the tokens of a row."""


def allowed(tokens: Sequence[int]) -> list[int]:
    """Every third token is forced; others have a remainder that their place says."""
    place = len(tokens)
    return [(7 * place) % VOCAB] if place % 3 == 0 else [token for token in range(VOCAB) if token % 5 == place % 5]


def nothing(row: int, tokens: Sequence[int]) -> Sequence[int]:
    return []


def asked() -> list[Request]:
    return [request(row, PROMPTS[row], **settings) for row, settings in enumerate(SETTINGS)]


def masks_of(number: int, rows: Sequence[int], texts: dict[int, list[int]], drafts: dict[int, list[int]]) -> StepMasks:
    """Masks of the next token of rows, and of those behind each draft that is allowed where it stands."""
    writes, slots, counts = [], [], []
    for row in rows:
        text, first = list(texts[row]), len(slots)
        for draft in [*drafts.get(row, []), None]:
            slots.append(1 + len(writes))
            writes.append(mask_write(slots[-1], allowed(text), MaskForm.ONLY))
            if draft is None or draft not in allowed(text):
                break
            text.append(draft)
        counts.append(len(slots) - first)
    return StepMasks(number, writes, rows, slots, counts)


class MaskedReader(Reader):
    """It knows how many steps of decodes had masks."""

    masked_steps = 0


def run(engine: Engine, width: int, guess: Guess = nothing, beside_prompts: bool = False) -> MaskedReader:
    """With `beside_prompts`, the requests come one after the other, each in a step of its own."""
    engine.clear_cache(None)
    waiting, found, number = asked(), MaskedReader(), 0
    started: list[int] = []
    while waiting or any(len(found.ids[row]) < NEW_TOKENS for row in started):
        left = [row for row in started if len(found.ids[row]) < NEW_TOKENS]
        admit = waiting[: 1 if beside_prompts else None]
        del waiting[: len(admit)]
        started += [each.row for each in admit]
        found.ids |= {each.row: [] for each in admit}
        masked = [row for row in [*left, *(each.row for each in admit)] if row != FREE]
        found.masked_steps += any(row != FREE for row in left)
        drafts = {row: list(guess(row, found.ids[row]))[: width - 1] for row in left if row != FREE}
        hints = [
            Hint(row, len(PROMPTS[row]) + len(found.ids[row]), np.array(ids)) for row, ids in drafts.items() if ids
        ]
        masks = masks_of(number, masked, found.ids, drafts)
        widths = [width] * len(left) if width > 1 else []
        chunks = [Chunk(each.row, 0, len(each.input_ids)) for each in admit]
        plan = StepPlan(number, admit=admit, chunks=chunks, decode=left, widths=widths, constrained=masked, hints=hints)
        found.read(engine.step(plan, lambda _, masks=masks: masks).result())
        number += 1
    return found
