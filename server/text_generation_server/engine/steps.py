"""Builds what the model's forward pass reads from rows: packed ids, positions, slots and borders."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

from ..layers.infer.state import InferState
from .batches import RunningRequest
from .kv_pool import KVPool
from .rows import RowTable
from .transfer import upload_parts


@dataclass(frozen=True)
class PrefillInput:
    """A packed prefill. Copies have no tokens of their own; they sample from the prompt that they copy."""

    input_ids: Tensor
    """[T] int64: the prompts, one behind the other, without padding."""
    state: InferState
    """Its `logit_indices` are the last token of the prompt of each request, then every token of the prompts whose
    log-probabilities are wanted."""
    rows: Tensor
    """[N] int64: of all requests, copies too."""
    scored: Sequence[RunningRequest]
    """The requests that want log-probabilities of their prompt."""
    scored_ids: Tensor
    """int64: the prompts of `scored`, one behind the other."""


def prefill_input(
    running: Sequence[RunningRequest], table: RowTable, pool: KVPool, deterministic: bool
) -> PrefillInput:
    """`running`: new requests whose rows are open, each copy after what it copies. One copy to the device."""
    device = table.slot_table.device
    leads = [r for r in running if r.copy_of is None]
    scored = [r for r in leads if r.request.prefill_logprobs]
    lengths = [len(r.request.input_ids) for r in leads]
    starts = [0, *accumulate(lengths)]
    span = {id(r): (start, end) for r, start, end in zip(leads, starts[:-1], starts[1:], strict=True)}
    wanted = [np.array([span[id(r.copy_of or r)][1] - 1 for r in running])]
    wanted += [np.arange(*span[id(r)]) for r in scored]
    parts = [
        np.concatenate([np.array(r.request.input_ids, dtype=np.int64) for r in leads]),
        np.concatenate([np.arange(length) for length in lengths]),
        np.repeat(np.array([r.row for r in leads]), lengths),
        np.array([r.row for r in leads]),
        np.array([r.row for r in running]),
        np.array(starts),
        np.array(lengths),
        np.concatenate(wanted),
    ]
    input_ids, positions, token_rows, b_row, rows, b_q_start, b_kv_len, logit_indices = upload_parts(parts, device)
    state = InferState(
        is_prefill=True,
        deterministic=deterministic,
        positions=positions,
        slots=table.slot_table[token_rows, positions].to(torch.int64),
        b_row=b_row,
        b_q_start=b_q_start.to(torch.int32),
        b_kv_len=b_kv_len.to(torch.int32),
        # It chooses tiles, so it must be the same whatever else is in the batch.
        max_q_len=table.max_total_tokens if deterministic else max(lengths),
        max_kv_len=max(lengths),
        slot_table=table.slot_table,
        k_cache=pool.k_cache,
        v_cache=pool.v_cache,
        logit_indices=logit_indices,
    )
    return PrefillInput(input_ids, state, rows, scored, input_ids[logit_indices[len(running) :]])


def decode_input(
    rows: Tensor, table: RowTable, pool: KVPool, max_kv_len: int, deterministic: bool
) -> tuple[Tensor, InferState]:
    """One token a row: the newest one, whose KV this step computes. Returns input ids int64 [B] and the state.

    `rows` int64 [B] may hold the padding row several times. No value is read by the host: a captured graph can replay
    this for other contents of `rows`. `max_kv_len`: at least the longest of them.
    """
    length = table.length[rows]
    positions = (length - 1).clamp_(min=0)
    one_each = torch.arange(rows.shape[0] + 1, device=rows.device)
    state = InferState(
        is_prefill=False,
        deterministic=deterministic,
        positions=positions,
        slots=table.slot_table[rows, positions].to(torch.int64),
        b_row=rows,
        b_q_start=one_each.to(torch.int32),
        b_kv_len=length.to(torch.int32),
        max_q_len=1,
        max_kv_len=max_kv_len,
        slot_table=table.slot_table,
        k_cache=pool.k_cache,
        v_cache=pool.v_cache,
        logit_indices=one_each[:-1],
    )
    return table.last_token[rows], state
