"""Puts steps on the device: from rows to chosen tokens, and on to the rows' next state, without waiting for either."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from ..kernels import advance_state
from ..kernels.logprobs import token_logprobs
from ..models.base import CausalLM
from .batches import RunningRequest
from .clock import Mark, StepTime
from .graphs import DecodeGraphs, PrefillGraphs
from .kv_pool import KVPool
from .requests import Tokens
from .rows import RowTable
from .sampling import SampledTokens, Sampler
from .sampling_state import SamplingState
from .steps import PackedPrompts, decode_input, prefill_input
from .transfer import Readback, upload, upload_parts

_SCORED_AT_ONCE = 512
"""Prompt tokens whose logits over the whole vocabulary exist at the same time."""


@dataclass(frozen=True, eq=False)
class QueuedStep:
    """A step on the device. `deliver` waits for it; the rest is read afterwards."""

    running: Sequence[RunningRequest]
    time: StepTime
    _record: Readback
    _prompts: Readback | None = None
    _scored: Sequence[RunningRequest] = ()

    def deliver(self) -> None:
        """Waits for the choices and adds each to its request, unless that was released meanwhile."""
        choices = SampledTokens(self._record.wait()).choices()
        for running, choice in zip(self.running, choices, strict=True):
            if not running.released:
                running.arrived.append(choice)

    def prompts(self) -> dict[int, Tokens]:
        """By request id: prompts with log-probabilities, of those that wanted them. The first token has none (NaN)."""
        if self._prompts is None:
            return {}
        logprobs = self._prompts.wait().split([len(r.request.input_ids) for r in self._scored])
        return {
            r.id: Tokens(r.request.input_ids, (float("nan"), *values[:-1].tolist()))
            for r, values in zip(self._scored, logprobs, strict=True)
        }


class StepRunner:
    """One rank's model with its rows, pool and sampler. Owned by the engine thread."""

    def __init__(
        self,
        model: CausalLM,
        table: RowTable,
        pool: KVPool,
        sampling: SamplingState,
        sampler: Sampler,
        deterministic: bool = False,
    ) -> None:
        self.table = table
        self._model = model
        self._pool = pool
        self._sampling = sampling
        self._sampler = sampler
        self._deterministic = deterministic
        device = model.device
        self._decodes = DecodeGraphs(
            lambda rows: self.decode_rows(rows, table.max_total_tokens), table.num_rows, device
        )
        self._prefills = PrefillGraphs(self._forward_prompts, table.num_rows, device)
        self._previous_end: Mark | None = None

    def capture(self, decodes: Sequence[int], prefills: Sequence[int]) -> None:
        """Captures a decode step for each batch size of `decodes`, and a prefill for each number of tokens of
        `prefills`; others run without a graph. All requests must have ended.
        """
        if not decodes and not prefills:
            return
        # One step runs at a time, so all may use the same memory.
        memory = torch.cuda.graph_pool_handle()
        self._prefills.capture(prefills, memory)
        self._decodes.capture(decodes, memory)

    def prefill(self, running: Sequence[RunningRequest]) -> QueuedStep:
        """Computes the prompts of new requests, whose rows it opens, and samples one token each."""
        device = self._model.device
        self.table.open(running)
        self.table.grant([(r, r.request.slots) for r in running])
        self._sampling.admit([r.row for r in running], [r.request for r in running])
        rows = upload(np.array([r.row for r in running]), device)
        prompts = PackedPrompts.of(running)
        step = self._prefills.prepare(prompts)
        if step is None:
            step = partial(self._forward_prompts, upload_parts(prompts.parts, device), int(prompts.lengths.max()))
        begin = Mark(device)
        hidden = step()[: len(prompts.logit_indices)]
        sampled = self._choose(hidden[: len(running)], rows)
        scored = [r for r in running if r.copy_of is None and r.request.prefill_logprobs]
        scores = self._score(scored, hidden[len(running) :]) if scored else None
        end = Mark(device)
        self._previous_end = None
        for r in running:
            r.launched = 1
        return QueuedStep(running, StepTime(begin, end, None), Readback(sampled.record), scores, scored)

    def decode(self, running: Sequence[RunningRequest]) -> QueuedStep:
        """One token for each of `running`, whose newest token has a slot."""
        rows = [r.row for r in running]
        device = self._model.device
        step = self._decodes.prepare(rows)
        if step is None:
            on_device = upload(np.array(rows), device)
            longest = max(len(r.request.input_ids) + r.launched for r in running)
            step = partial(self.decode_rows, on_device, longest)
        begin = Mark(device)
        sampled = step()
        end = Mark(device)
        time = StepTime(begin, end, self._previous_end)
        self._previous_end = end
        return QueuedStep(running, time, Readback(sampled.record[: len(rows)]))

    def decode_rows(self, rows: Tensor, max_kv_len: int) -> SampledTokens:
        """The step itself. `rows` int64 [B], may hold the padding row; none is longer than `max_kv_len`."""
        input_ids, state = decode_input(rows, self.table, self._pool, max_kv_len, self._deterministic)
        return self._choose(self._model.forward(input_ids, state), rows)

    def _forward_prompts(self, parts: Sequence[Tensor], max_length: int) -> Tensor:
        """`parts` of `PackedPrompts`. Returns [N, hidden]: the tokens whose logits are wanted."""
        return self._model.forward(*prefill_input(parts, max_length, self.table, self._pool, self._deterministic))

    def _choose(self, hidden: Tensor, rows: Tensor) -> SampledTokens:
        """Samples from the last hidden states and moves the rows on."""
        table, sampling = self.table, self._sampling
        sampled = self._sampler(
            self._model.logits(hidden, self._deterministic), rows, table.last_token, table.generated
        )
        advance_state(
            sampled.tokens, rows, table.last_token, table.length, table.generated, sampling.ints, sampling.counts
        )
        return sampled

    def _score(self, scored: Sequence[RunningRequest], hidden: Tensor) -> Readback:
        """Log-probabilities, from the raw logits, of the token after each token of the prompts of `scored`."""
        ids = np.concatenate([np.array(r.request.input_ids, dtype=np.int64) for r in scored])
        # The target of a prompt's last token does not exist; what is computed for it is not used.
        targets = upload(np.roll(ids, -1), hidden.device)
        parts = zip(hidden.split(_SCORED_AT_ONCE), targets.split(_SCORED_AT_ONCE), strict=True)
        return Readback(
            torch.cat([token_logprobs(self._model.logits(h, self._deterministic).float(), t) for h, t in parts])
        )
