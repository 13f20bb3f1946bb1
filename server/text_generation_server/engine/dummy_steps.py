"""Steps of requests that nobody has sent: they use every option, so that they reach every kernel and all memory."""

from collections.abc import Sequence

import numpy as np

from .replies import LaunchedStep
from .requests import (
    Chunk,
    MaskForm,
    MaskWrite,
    NextTokenChooserParameters,
    Request,
    SlotRange,
    StepMasks,
    StepPlan,
)
from .runner import StepRunner

_EVERYTHING = NextTokenChooserParameters(
    temperature=0.9,
    top_k=10,
    top_p=0.9,
    typical_p=0.9,
    min_p=0.01,
    do_sample=True,
    repetition_penalty=1.2,
    frequency_penalty=0.1,
    presence_penalty=0.1,
    logit_bias=((0, 1.0),),
    watermark=True,
)


def run_step(
    runner: StepRunner,
    lengths: Sequence[int],
    decodes: int = 0,
    scored: bool = False,
    constrained: bool = False,
    adapter: int = 0,
    width: int = 1,
) -> LaunchedStep:
    """Runs one step with a chunk of each of these lengths, whole prompts of requests that use every option, and so many
    decodes, whose windows have `width` tokens, and frees their rows. With `scored`, requests ask for log-probabilities
    of their prompts; with `constrained`, all sample under a mask. All use `adapter`.
    """
    rows = list(range(len(lengths), len(lengths) + decodes))
    slot = sum(lengths)
    at_once = runner.checker.max_batch_prefill_tokens
    for first in range(0, decodes, at_once):
        part = rows[first : first + at_once]
        admit = [_dummy(row, 1, slot + 2 * (row - len(lengths)), 2, False, adapter) for row in part]
        runner.launch(StepPlan(0, admit=admit, chunks=[Chunk(row, 0, 1) for row in part]))
    admit, slot = [], 0
    for row, length in enumerate(lengths):
        admit.append(_dummy(row, length, slot, length, scored, adapter))
        slot += length
    chunks = [Chunk(row, 0, length) for row, length in enumerate(lengths)]
    choosing = [*rows, *range(len(lengths))] if constrained else []
    mask = MaskWrite(1, MaskForm.ONLY, np.zeros(1, dtype=np.int64))
    step = runner.launch(
        StepPlan(0, admit=admit, chunks=chunks, decode=rows, constrained=choosing, widths=[width] * len(rows)),
        lambda number: StepMasks(number, [mask], choosing, [1] * len(choosing)),
    )
    runner.launch(StepPlan(0, drop=range(len(lengths) + decodes)))
    return step


def _dummy(row: int, length: int, first_slot: int, num_slots: int, scored: bool, adapter: int) -> Request:
    return Request(
        id=row,
        row=row,
        input_ids=np.zeros(length, dtype=np.int64),
        parameters=_EVERYTHING,
        slots=(SlotRange(first_slot, num_slots),),
        prefill_logprobs=scored,
        top_n_tokens=5,
        adapter=adapter,
    )
