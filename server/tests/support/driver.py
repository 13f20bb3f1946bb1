"""A minimal engine: scattered slots and rows, a poisoned pool, greedy choice. Only for tests of models."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import torch

from text_generation_kernels import Chunks, Decodes, KvCache
from text_generation_server.distributed import TensorParallelGroup
from text_generation_server.engine.adapter_plans import AdapterChecker
from text_generation_server.engine.adapters import AdapterTables
from text_generation_server.layers.infer import (
    CacheShape,
    InferState,
    LayerState,
    SharedChunks,
    StateShape,
)
from text_generation_server.layers.weights import StepAdapters
from text_generation_server.models import CausalLM


class Driver:
    """Feeds requests to a model. Slots are handed out at random and never used twice.

    Whatever a forward pass must not read is poisoned: unused slots hold NaN, unused entries of the slot table name
    such slots.
    """

    def __init__(
        self,
        model: CausalLM,
        num_rows: int = 8,
        max_tokens: int = 128,
        seed: int = 0,
        group: TensorParallelGroup | None = None,
        adapters: Mapping[str, int] | None = None,
        checker: AdapterChecker | None = None,
        queried: Collection[str] = (),
    ) -> None:
        """`queried`: requests whose queries go to every rank, where ranks have some positions each. `group`: of the
        ranks that share the vocabulary, whose logits are put together. `adapters`: the adapter of each request that
        uses one, by its name, of those that `checker` has.
        """
        self.model = model
        self._adapters = adapters or {}
        self._tables_of = None
        if checker is not None and model.adapters is not None and model.adapters.pool is not None:
            self._tables_of = AdapterTables(checker, 1, True, model.adapters.pool.words)
        self._group = group
        self._queried = queried
        model.reserve_positions(max_tokens)
        generator = torch.Generator().manual_seed(seed)
        num_slots = num_rows * max_tokens + 1

        self._caches = [
            _poisoned(cache, cache.allocate(num_slots, model.dtype, model.device)) for cache in model.caches
        ]
        self._states = [_poisoned_rows(state, num_rows, model) for state in model.states]
        self._slot_table = torch.full((num_rows, max_tokens), num_slots - 1, dtype=torch.int32)
        self._free_slots = torch.randperm(num_slots - 1, generator=generator).tolist()
        self._free_rows = torch.randperm(num_rows, generator=generator).tolist()
        self._rows: dict[str, int] = {}
        self.ids: dict[str, list[int]] = {}
        """Prompt and chosen ids of every request, by name."""
        self._computed: dict[str, int] = {}

    def prefill(self, prompts: dict[str, list[int]], all_logits: bool = False) -> torch.Tensor:
        """Starts requests in one forward pass; returns logits of their last tokens, or of all."""
        for name, prompt in prompts.items():
            self._rows[name] = self._free_rows.pop()
            self.ids[name] = list(prompt)
            self._computed[name] = 0
        return self._forward([(name, len(prompt)) for name, prompt in prompts.items()], True, all_logits)

    def extend(self, name: str, num_tokens: int) -> torch.Tensor:
        """Computes the next tokens of a prompt that was registered with `register`, as a piece of it."""
        return self._forward([(name, num_tokens)], True, False)

    def register(self, name: str, prompt: list[int]) -> None:
        """Gives a request its row without computing anything."""
        self._rows[name] = self._free_rows.pop()
        self.ids[name] = list(prompt)
        self._computed[name] = 0

    def decode(self, names: Sequence[str]) -> torch.Tensor:
        """One step for some of the running requests, in this order."""
        return self._forward([(name, 1) for name in names], False, False)

    def append(self, names: Sequence[str], logits: torch.Tensor) -> None:
        """Takes the likeliest id of each row of logits as the request's next token."""
        for name, token in zip(names, logits.argmax(dim=-1).tolist(), strict=True):
            self.ids[name].append(token)

    def drop(self, name: str) -> None:
        """Forgets a request; its row may be used again, its slots stay as they are."""
        self._free_rows.append(self._rows.pop(name))

    def _forward(self, parts: list[tuple[str, int]], is_prefill: bool, all_logits: bool) -> torch.Tensor:
        ids: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        starts, kv_lens = [0], []
        for name, count in parts:
            first = self._computed[name]
            new = [self._free_slots.pop() for _ in range(count)]
            self._slot_table[self._rows[name], first : first + count] = torch.tensor(new, dtype=torch.int32)
            ids += self.ids[name][first : first + count]
            positions += range(first, first + count)
            slots += new
            starts.append(len(ids))
            kv_lens.append(first + count)
            self._computed[name] = first + count
        rows, lengths = torch.tensor([self._rows[name] for name, _ in parts]), torch.tensor(kv_lens, dtype=torch.int32)
        table, begins = self._slot_table, torch.tensor(starts, dtype=torch.int32)
        chunks = Chunks(table, rows, begins, lengths, max(count for _, count in parts))
        state = InferState(
            deterministic=False,
            positions=torch.tensor(positions),
            slots=torch.tensor(slots),
            decodes=None if is_prefill else Decodes(table, rows, lengths, max(kv_lens)),
            chunks=chunks if is_prefill else None,
            caches=self._caches,
            states=self._states,
            logit_tokens=None if all_logits or not is_prefill else torch.tensor(starts[1:]) - 1,
        )
        if is_prefill:
            state = replace(state, shared=self._shared(parts, kv_lens, starts))
        numbers = [self._adapters.get(name, 0) for name, count in parts for _ in range(count)]
        state = replace(state, adapters=self._tables(numbers))
        hidden = self.model.forward(torch.tensor(ids), state)
        wanted = numbers if state.logit_tokens is None else [numbers[token] for token in state.logit_tokens.tolist()]
        logits = self.model.logits(hidden, False, self._tables(wanted))
        if self._group is None or self.model.vocabulary.is_whole:
            return logits
        return self._group.all_gather(logits).transpose(0, 1).flatten(1)[:, : self.model.vocab_size]

    def _shared(self, parts: list[tuple[str, int]], kv_lens: list[int], starts: list[int]) -> SharedChunks:
        comes = [name not in self._queried for name, _ in parts]
        lengths = [kv_len if gathered else 0 for kv_len, gathered in zip(kv_lens, comes, strict=True)]
        spans = [range(*ends) for ends, gathered in zip(pairwise(starts), comes, strict=True) if not gathered]
        tokens = torch.tensor([token for span in spans for token in span], dtype=torch.int64)
        return SharedChunks(sum(lengths) + 3, torch.tensor(lengths, dtype=torch.int32), tokens, max(kv_lens))

    def _tables(self, numbers: Sequence[int]) -> StepAdapters | None:
        if self._tables_of is None or not any(numbers):
            return None
        return self._tables_of.of(np.array(numbers))


def _poisoned(shape: CacheShape, cache: KvCache) -> KvCache:
    """NaN in every place. Codes have it in their scales, or, where those are given, are the largest there are: 0x7f is
    NaN where codes are floats.
    """
    if shape.codes is None:
        cache.k.fill_(float("nan"))
        cache.v.fill_(float("nan"))
        return cache
    for codes in (cache.k, cache.v):
        codes.view(torch.uint8).fill_(0x7F)
    if cache.scales is not None and not cache.scales_given:
        cache.scales.fill_(float("nan"))
    return cache


def _poisoned_rows(shape: StateShape, num_rows: int, model: CausalLM) -> LayerState:
    """NaN in every place: what begins a request must not read it."""
    state = shape.allocate(num_rows, model.dtype, model.device)
    state.inputs.fill_(float("nan"))
    state.state.fill_(float("nan"))
    return state


def greedy_by_turns(driver: Driver, prompts: Sequence[list[int]], steps: int) -> list[list[int]]:
    """Generates `steps` tokens for each prompt while requests join and leave a running batch.

    The second half of the prompts joins after a third of the steps; requests leave when they are done, and the order
    within the batch turns with every step.
    """
    names = [f"request {index}" for index in range(len(prompts))]
    waiting = dict(zip(names, prompts, strict=True))
    half = names[: (len(names) + 1) // 2]
    for joining in (half, [name for name in names if name not in half]):
        if joining:
            driver.append(joining, driver.prefill({name: waiting.pop(name) for name in joining}))
        for _ in range(steps // 3 if waiting else steps):
            running = [n for n in names if n in driver.ids and _generated(driver, n, prompts[names.index(n)]) < steps]
            if not running:
                break
            running = running[1:] + running[:1]
            driver.append(running, driver.decode(running))
    return [driver.ids[name][len(prompt) :] for name, prompt in zip(names, prompts, strict=True)]


def _generated(driver: Driver, name: str, prompt: list[int]) -> int:
    return len(driver.ids[name]) - len(prompt)
