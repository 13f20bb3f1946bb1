"""A model that is cheap, exact and honest about its cache, for tests of everything around the forward pass.

It writes each token id into the KV cache at the slot it was given, and its logits are a hash of what it reads back
through the slot table. So a wrong slot, row, position or length changes the tokens or makes them NaN, and nothing else
does: the result of a request is bit for bit the same alone and in any batch.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from text_generation_server.distributed.group import NEVER_OVERLAPPED
from text_generation_server.drafters import Drafter
from text_generation_server.errors import EngineFailed
from text_generation_server.layers.infer import CacheShape, InferState, StateShape
from text_generation_server.layers.weights import PrefillCopies, StepAdapters, VocabularyShard
from text_generation_server.models.adapters import ModelAdapters
from text_generation_server.models.encoder import Encoder

_PRIME = 8191


class FakeModel:
    """Stands in for `models.base.CausalLM`."""

    caches = (CacheShape(kv_heads=1, head_dim=2, value_dim=2),)
    states: Sequence[StateShape] = ()
    bytes_per_position = 8
    """Cosines and sines of two elements in float32, as if it had a table."""
    dense_macs = 0
    encoder: Encoder | None = None
    adapters: ModelAdapters | None = None
    drafter: Drafter | None = None
    is_captured = True
    expert_pairs = None
    classes = 0
    dtype = torch.float32
    device = torch.device("cpu")

    vocab_size = 64
    vocabulary = VocabularyShard.of(vocab_size, rank=0, world_size=1)

    def __init__(self, max_context_length: int = 64) -> None:
        self.copies = PrefillCopies(self.dtype)
        self.max_context_length = max_context_length
        self.forwards = 0
        self.poison: set[int] = set()
        """Token ids after which every logit is NaN."""
        self.error: Exception | None = None
        """Raised by the next forward pass."""

    def forward(self, input_ids: Tensor, state: InferState) -> Tensor:
        self.forwards += 1
        if self.error is not None:
            error, self.error = self.error, None
            raise error
        assert input_ids.dtype == state.positions.dtype == state.slots.dtype == torch.int64
        state.caches[0].k[state.slots, 0, 0] = input_ids.float()
        state.caches[0].v[state.slots, 0, 0] = state.positions.float()
        owners, table = rows_of_tokens(state), slot_table_of(state)
        wanted = range(len(input_ids)) if state.logit_tokens is None else state.logit_tokens.tolist()
        rows = []
        for index in wanted:
            position = int(state.positions[index])
            slots = table[owners[index], : position + 1].long()
            # Warm-up times requests with positions that were never computed; anybody else fails by it.
            sound = state.caches[0].v[slots, 0, 0].tolist() == list(range(position + 1))
            tokens = [int(t) for t in state.caches[0].k[slots, 0, 0]]
            rows.append(self.logits_after(tokens) if sound else torch.full((self.vocab_size,), torch.nan))
        return torch.stack(rows)

    def reserve_positions(self, count: int) -> None:
        """It has no table of them."""

    def logits(self, hidden: Tensor, deterministic: bool = False, adapters: StepAdapters | None = None) -> Tensor:
        """The forward pass made them already."""
        return hidden.clone()

    def logits_after(self, tokens: list[int]) -> Tensor:
        """The oracle: logits float32 [vocab] after a sequence, from arithmetic on the sequence alone."""
        if tokens[-1] in self.poison:
            return torch.full((self.vocab_size,), float("nan"))
        state = 1
        for token in tokens:
            state = (state * 31 + token + 7) % _PRIME
        values = (torch.arange(1, self.vocab_size + 1) * (state * 131 + 17)) % _PRIME
        return values.float() / 1024.0


def slot_table_of(state: InferState) -> Tensor:
    """That of decodes and of chunks, which is one."""
    tables = [each.slot_table for each in (state.decodes, state.chunks) if each is not None]
    assert all(each is tables[0] for each in tables)
    return tables[0]


def rows_of_tokens(state: InferState) -> list[int]:
    """The row of each token, as attention is told; its borders and lengths must fit the positions."""
    rows: list[int] = []
    if state.decodes is not None:
        d = state.decodes
        rows += d.rows.tolist()
        padding, dummy = d.slot_table.shape[0] - 1, len(state.caches[0].k) - 1
        positions, slots = state.positions[: len(rows)].tolist(), state.slots[: len(rows)].tolist()
        # What is outside a window lies in the dummy slot, as padding does.
        attended = [
            0 if row == padding or slot == dummy else position + 1
            for row, position, slot in zip(rows, positions, slots, strict=True)
        ]
        assert d.kv_lens.tolist() == attended
        assert max(d.kv_lens.tolist(), default=0) <= d.max_kv_len
    if state.chunks is not None:
        starts = state.chunks.starts.tolist()
        assert starts[0] == len(rows), "chunks must follow the decodes"
        for row, start, end, kv_len in zip(
            state.chunks.rows.tolist(), starts, starts[1:], state.chunks.kv_lens.tolist(), strict=False
        ):
            rows += [row] * (end - start)
            assert state.positions[start:end].tolist() == list(range(kv_len - (end - start), kv_len))
    assert len(rows) == len(state.positions)
    return rows


class SingleGroup:
    """The group of one rank, or a stand-in for one rank of several that never waits."""

    def __init__(self, rank: int = 0, world_size: int = 1) -> None:
        self.rank = rank
        self.world_size = self.local_world_size = world_size
        self.lost = False
        """Whether another rank did not come."""
        self.overlapped_bytes = NEVER_OVERLAPPED

    def check(self) -> None:
        if self.lost:
            raise EngineFailed("timed out waiting")

    def limit_waits(self, seconds: float) -> None:
        return

    def min_int(self, value: int) -> int:
        return value

    def max_ints(self, values: Sequence[int]) -> list[int]:
        return list(values)

    def close(self) -> None:
        return
