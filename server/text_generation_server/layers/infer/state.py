"""The input of a forward pass, besides token ids and weights."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeVar, cast

import torch
from torch import Tensor

from text_generation_kernels import Chunks, Decodes, KvCache, Runs, bytes_of_head, scales_of_head

from ..weights import StepAdapters
from .layer_state import LayerState
from .media import MediaInput
from .state_windows import Recurrence, StateWindows

T = TypeVar("T")

LINEAR_BLOCK = 64
"""Tokens of one GEMM in deterministic mode. It is one number, so that a position gets the same bits in prefill and in
decode."""


SCALES_BLOCK = 16
"""The scales of a head take whole blocks of so many slots: for strides that 16 does not divide, Triton compiles another
specialisation, and the number of slots would decide which. Attention counts the stride in pairs of scales, one for each
slot."""


@dataclass(frozen=True)
class CacheShape:
    """What one layer keeps of each position on this rank."""

    kv_heads: int
    head_dim: int
    """Elements of a key."""
    value_dim: int
    """Elements of a value."""
    codes: torch.dtype | None = None
    """The type of keys and values of 8 or 4 bits (`text_generation_kernels/attention/kv_quantisation.py`); None: they
    have the model's type.
    """
    given_scales: Tensor | None = None
    """[kv_heads, 2] bfloat16, the scales of keys and values of all positions, where the checkpoint has them."""
    shared: bool = False
    """Whether values are the first elements of keys and take no room of their own. Such a cache is never quantised."""
    ranks: int = 1
    """Ranks that have some of the positions each (`context_parallel.py`): slot s is row s // ranks of rank s % ranks.
    Only for a `shared` cache.
    """
    readers: int = 0
    """Heads of all these ranks."""

    def bytes_per_slot(self, dtype: torch.dtype) -> int:
        """Returns the bytes of one position in a model of type `dtype`, with the scales that belong to it alone; of a
        position that one of several ranks has, the share of this rank.
        """
        if self.codes is None:
            elements = self.kv_heads * (self.head_dim + (0 if self.shared else self.value_dim))
            return -(-elements * dtype.itemsize // self.ranks)
        scales = 0 if self.given_scales is not None else self._scales(self.codes) * torch.bfloat16.itemsize
        return self.kv_heads * (sum(self._bytes(self.codes)) + scales)

    def _bytes(self, codes: torch.dtype) -> tuple[int, int]:
        """The bytes of the codes of a key and of a value."""
        return bytes_of_head(codes, self.head_dim), bytes_of_head(codes, self.value_dim)

    def _scales(self, codes: torch.dtype) -> int:
        """The numbers that each head has beside the codes of a key and a value."""
        return scales_of_head(codes, self.head_dim) + scales_of_head(codes, self.value_dim)

    def allocate(self, slots: int, dtype: torch.dtype, device: torch.device) -> KvCache:
        """Allocates so many positions, all zeros: an attention kernel may multiply a masked slot by 0, and 0 * NaN is
        NaN.
        """
        if self.shared:
            if self.ranks > 1:
                # The last row is for what other ranks keep.
                slots = -(-slots // self.ranks) + 1
            k = torch.zeros((slots, self.kv_heads, self.head_dim), dtype=dtype, device=device)
            return KvCache(k, k[..., : self.value_dim])
        sizes = (self.head_dim, self.value_dim) if self.codes is None else self._bytes(self.codes)
        shape, stored = (slots, self.kv_heads, sum(sizes)), self.codes or dtype
        k, v = torch.zeros(shape, dtype=stored, device=device).split(sizes, dim=-1)
        if self.codes is None:
            return KvCache(k, v)
        if self.given_scales is not None:
            return KvCache(k, v, self.given_scales.expand(slots, -1, -1), True)
        shape = (self.kv_heads, -(-slots // SCALES_BLOCK) * SCALES_BLOCK, self._scales(self.codes))
        return KvCache(k, v, torch.zeros(shape, dtype=torch.bfloat16, device=device)[:, :slots].transpose(0, 1))


@dataclass(frozen=True)
class SharedChunks:
    """How ranks that have some positions of a cache each attend with the chunks of a step (`context_parallel.py`)."""

    positions: int
    """The most positions of all contexts that come to every rank."""
    kv_lens: Tensor
    """[C] int32, those of `Chunks`; 0 for chunks whose queries go to every rank instead."""
    tokens: Tensor
    """[Q] int64, the tokens of those chunks."""
    longest: int
    """An upper bound of the positions that one of these tokens attends to."""


@dataclass(frozen=True)
class InferState:
    """One step with T new tokens: decodes, then chunks, without padding between them.

    All tensors are on the model's device and belong to the engine; a forward pass writes only to the caches, at
    `slots`, and to the states, at the rows of its requests.
    """

    deterministic: bool
    """Whether results of a request must not depend, to the bit, on what else is in the step or how its prompt is cut.
    """
    positions: Tensor
    """[T] int64, the position of each new token in its request."""
    slots: Tensor
    """[T] int64, the slot of the KV pool for K and V of each new token."""
    decodes: Decodes | None
    chunks: Chunks | None
    caches: Sequence[KvCache]
    """One cache for each layer with keys and values."""
    states: Sequence[LayerState]
    """One state for each recurrent layer."""
    logit_tokens: Tensor | None
    """[N] int64, the new tokens whose logits are wanted. None: all of them, in order."""
    made: dict[object, object] = field(default_factory=dict[object, object])
    """What the first layer of a kind has derived from the step, for the other layers of that kind."""
    rope_positions: Tensor | None = None
    """The rotary position of each new token where it is not `positions`: [T] int64, or along axes [3, T]."""
    media: MediaInput | None = None
    """None: no token reads the media pool."""
    adapters: StepAdapters | None = None
    """None: all tokens are the base's."""
    shared: SharedChunks | None = None
    """None: the step has no chunks, or no cache whose positions ranks share."""
    dummy_slot: int = -1
    """The slot of tokens that belong to no request, as they pad graphs. -1: there are none."""
    windows: StateWindows | None = None
    """How recurrent layers compute windows of drafted tokens. None: the step has none, or the model no such layers."""

    def once(self, key: object, make: Callable[[], T]) -> T:
        """Returns what `make`, which never returns None, made for the first layer of the step with this key."""
        if (made := self.made.get(key)) is None:
            made = self.made[key] = make()
        return cast("T", made)

    @cached_property
    def _runs(self) -> list[Runs]:
        """The new tokens of all requests of the step: decodes, then chunks."""
        runs: list[Runs] = []
        if (d := self.decodes) is not None:
            runs.append(Runs(d.rows, None, d.kv_lens, 1))
        if (c := self.chunks) is not None:
            runs.append(Runs(c.rows, c.starts, c.kv_lens, c.max_len))
        return runs

    def recurrences(self, layer: int) -> list[Recurrence]:
        """Returns the new tokens of the step, and the states of a recurrent layer that they advance."""
        states = self.states[layer]
        if self.windows is not None:
            return self.windows.begin(states)
        return [Recurrence(runs, states) for runs in self._runs]

    def keep(self, layer: int, *read: Tensor) -> None:
        """Keeps what the recurrence of a layer reads, [T, ...] each, of tokens that may turn out to be wrong."""
        if self.windows is not None:
            self.windows.keep(layer, read)

    @property
    def linear_block(self) -> int | None:
        """Tokens of one GEMM where results must not depend on the step; see `Linear.apply`."""
        return LINEAR_BLOCK if self.deterministic else None
