"""Runs the steps that need the most memory, before the pool exists, so that the pool can take exactly what is left."""

import torch

from ..config.server import WatermarkConfig
from ..models.base import CausalLM
from .batches import RunningRequest
from .kv_pool import KVPool, allocate_pool, bytes_per_slot
from .replies import last_token_logits, prompt_tokens
from .requests import (
    NextTokenChooserParameters,
    Request,
    SlotRange,
    StoppingCriteriaParameters,
    WarmupLimits,
)
from .rows import RowTable
from .sampling import Sampler
from .sampling_state import SamplingState
from .steps import prefill_inputs

_EVERYTHING = NextTokenChooserParameters(
    temperature=0.9,
    top_k=10,
    top_p=0.9,
    typical_p=0.9,
    do_sample=True,
    repetition_penalty=1.2,
    frequency_penalty=0.1,
    watermark=True,
)


def run_largest_steps(model: CausalLM, limits: WarmupLimits, longest: int) -> int:
    """A full prefill with log-probabilities of every prompt token, then full-batch sampling with every operator.

    Returns the bytes of pool and rows that the probe itself held, which serving will not need.
    """
    num_tokens = limits.max_batch_prefill_tokens
    lengths = _split(num_tokens, limits.max_input_tokens or longest - 1)
    pool = allocate_pool(model, num_tokens)
    _prefill(model, pool, lengths)
    num_rows = limits.max_batch_size
    table = RowTable(num_rows, 1, model.device)
    running = [_dummy(row, 1, 0) for row in range(num_rows)]
    rows = table.index(running)
    table.open(running, rows, torch.zeros_like(rows), rows)
    logits = torch.zeros(num_rows, model.vocab_size, dtype=torch.float32, device=model.device)
    _sample(logits, running, table)
    return num_tokens * bytes_per_slot(model) + len(lengths) * RowTable.bytes_per_row(max(lengths))


def _prefill(model: CausalLM, pool: KVPool, lengths: list[int]) -> None:
    table = RowTable(len(lengths), max(lengths), model.device)
    running, start = [], 0
    for row, length in enumerate(lengths):
        running.append(_dummy(row, length, start))
        start += length
    rows = table.index(running)
    input_ids, state = prefill_inputs(running, rows, table, pool)
    logits = model.forward(input_ids, state)
    prompt_tokens(logits, running, rank=0, world_size=1)
    _sample(last_token_logits(logits, running), running, table)


def _sample(logits: torch.Tensor, running: list[RunningRequest], table: RowTable) -> None:
    state = SamplingState(table.num_rows, logits.shape[1], logits.device, ())
    state.admit([r.row for r in running], [r.request for r in running])
    Sampler(state, WatermarkConfig())(logits, table.index(running), table.last_token, table.generated)


def _split(total: int, largest: int) -> list[int]:
    """`total` as a sum of parts of at most `largest`."""
    full, rest = divmod(total, largest)
    return [largest] * full + ([rest] if rest else [])


def _dummy(row: int, length: int, first_slot: int) -> RunningRequest:
    request = Request(
        id=row,
        input_ids=(0,) * length,
        parameters=_EVERYTHING,
        stopping_parameters=StoppingCriteriaParameters(max_new_tokens=1),
        slots=(SlotRange(first_slot, length),),
        prefill_logprobs=True,
        top_n_tokens=5,
    )
    return RunningRequest(request, row, num_slots=0, length=length)
