"""What a forward pass is fed with: from requests and rows to token ids, positions, slots and borders."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..layers.infer.state import InferState
from .batches import RunningRequest
from .kv_pool import KVPool
from .rows import RowTable

Vector = NDArray[np.int64]


@dataclass(frozen=True)
class PackedPrompts:
    """Prompts of B requests, T tokens one behind the other without padding, on the host.

    Copies have no tokens of their own; they sample from the prompt that they copy.
    """

    input_ids: Vector
    """[T]"""
    positions: Vector
    """[T]"""
    token_rows: Vector
    """[T]: the row of the request of each token."""
    rows: Vector
    """[B]"""
    starts: Vector
    """[B + 1]: tokens before each request."""
    lengths: Vector
    """[B]: tokens of each request after this step."""
    logit_indices: Vector
    """[N]: the last token of the prompt of each request, copies too, then every token of the prompts whose
    log-probabilities are wanted."""

    @classmethod
    def of(cls, running: Sequence[RunningRequest]) -> "PackedPrompts":
        """`running`: new requests that own rows, each copy after what it copies."""
        leads = [r for r in running if r.copy_of is None]
        lengths = [len(r.request.input_ids) for r in leads]
        starts = [0, *accumulate(lengths)]
        span = {id(r): (start, end) for r, start, end in zip(leads, starts[:-1], starts[1:], strict=True)}
        wanted = [np.array([span[id(r.copy_of or r)][1] - 1 for r in running])]
        wanted += [np.arange(*span[id(r)]) for r in leads if r.request.prefill_logprobs]
        rows = np.array([r.row for r in leads])
        return cls(
            input_ids=np.concatenate([np.array(r.request.input_ids, dtype=np.int64) for r in leads]),
            positions=np.concatenate([np.arange(length) for length in lengths]),
            token_rows=np.repeat(rows, lengths),
            rows=rows,
            starts=np.array(starts),
            lengths=np.array(lengths),
            logit_indices=np.concatenate(wanted),
        )

    def padded(self, tokens: int, requests: int, logits: int, padding_row: int) -> "PackedPrompts":
        """The same with so many of each, at least as many as now: tokens of `padding_row` that no request attends to,
        requests without tokens, and logits of the first token.
        """
        return PackedPrompts(
            input_ids=_extended(self.input_ids, tokens, 0),
            positions=_extended(self.positions, tokens, 0),
            token_rows=_extended(self.token_rows, tokens, padding_row),
            rows=_extended(self.rows, requests, padding_row),
            starts=_extended(self.starts, requests + 1, self.starts[-1]),
            lengths=_extended(self.lengths, requests, 0),
            logit_indices=_extended(self.logit_indices, logits, 0),
        )

    @property
    def parts(self) -> list[Vector]:
        """What the device needs, in the order of `prefill_input`."""
        return [
            self.input_ids,
            self.positions,
            self.token_rows,
            self.rows,
            self.starts,
            self.lengths,
            self.logit_indices,
        ]


def part_lengths(tokens: int, requests: int, logits: int) -> list[int]:
    """Lengths of the parts of `PackedPrompts` with so many of each."""
    return [tokens, tokens, tokens, requests, requests + 1, requests, logits]


def _extended(vector: Vector, length: int, value: int) -> Vector:
    longer = np.full(length, value, dtype=np.int64)
    longer[: len(vector)] = vector
    return longer


def prefill_input(
    parts: Sequence[Tensor], max_length: int, table: RowTable, pool: KVPool, deterministic: bool
) -> tuple[Tensor, InferState]:
    """Input ids int64 [T] and the state. `parts`: those of `PackedPrompts`, on the device, whose slots are granted.

    No value is read by the host: a captured graph can replay this for other contents. `max_length`: about that of the
    longest prompt.
    """
    input_ids, positions, token_rows, b_row, b_q_start, b_kv_len, logit_indices = parts
    state = InferState(
        is_prefill=True,
        deterministic=deterministic,
        positions=positions,
        slots=table.slot_table[token_rows, positions].to(torch.int64),
        b_row=b_row,
        b_q_start=b_q_start.to(torch.int32),
        b_kv_len=b_kv_len.to(torch.int32),
        # It chooses tiles, so it must be the same whatever else is in the batch.
        max_q_len=table.max_total_tokens if deterministic else max_length,
        max_kv_len=max_length,
        slot_table=table.slot_table,
        k_cache=pool.k_cache,
        v_cache=pool.v_cache,
        logit_indices=logit_indices,
    )
    return input_ids, state


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
