"""Builds what the model's forward pass reads from rows: packed ids, positions, slots and borders."""

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor

from ..layers.infer.state import InferState
from .batches import RunningRequest
from .kv_pool import KVPool
from .rows import RowTable


def prefill_inputs(
    running: Sequence[RunningRequest], rows: Tensor, table: RowTable, pool: KVPool
) -> tuple[Tensor, InferState]:
    """Opens the rows of new requests and packs their prompts one behind the other, without padding.

    Logits are asked for at the last token of each prompt, and at all of its tokens where log-probabilities are wanted.
    Returns input ids int64 [T] and the state.
    """
    device = rows.device
    lengths = [len(r.request.input_ids) for r in running]
    starts = [0, *accumulate(lengths)]
    b_length = torch.tensor(lengths, device=device)
    positions = torch.cat([torch.arange(length, device=device) for length in lengths])
    token_rows = rows.repeat_interleave(b_length)
    input_ids = table.open(running, rows, positions, token_rows)
    wanted = [
        index
        for r, start, end in zip(running, starts[:-1], starts[1:], strict=True)
        for index in range(start if r.request.prefill_logprobs else end - 1, end)
    ]
    state = InferState(
        is_prefill=True,
        positions=positions,
        slots=table.slot_table[token_rows, positions].to(torch.int64),
        b_row=rows,
        b_q_start=torch.tensor(starts, dtype=torch.int32, device=device),
        b_kv_len=b_length.to(torch.int32),
        max_q_len=max(lengths),
        max_kv_len=max(lengths),
        slot_table=table.slot_table,
        k_cache=pool.k_cache,
        v_cache=pool.v_cache,
        logit_indices=torch.tensor(wanted, device=device),
    )
    return input_ids, state


def decode_inputs(
    running: Sequence[RunningRequest], rows: Tensor, table: RowTable, pool: KVPool
) -> tuple[Tensor, InferState]:
    """One token a row: the newest one, whose KV this step computes. Returns input ids int64 [B] and the state."""
    length = table.length[rows]
    positions = length - 1
    one_each = torch.arange(len(running) + 1, device=rows.device)
    state = InferState(
        is_prefill=False,
        positions=positions,
        slots=table.slot_table[rows, positions].to(torch.int64),
        b_row=rows,
        b_q_start=one_each.to(torch.int32),
        b_kv_len=length.to(torch.int32),
        max_q_len=1,
        max_kv_len=max(r.length for r in running),
        slot_table=table.slot_table,
        k_cache=pool.k_cache,
        v_cache=pool.v_cache,
        logit_indices=one_each[:-1],
    )
    return table.last_token[rows], state
