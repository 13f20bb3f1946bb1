"""Puts steps on the device: from a plan to chosen tokens and the rows' next state, waiting for nothing."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from ..kernels import advance_state
from ..layers.infer.state import LINEAR_BLOCK
from ..models.base import CausalLM
from .clock import Mark, StepTime
from .graphs import ChunkGraphs, DecodeGraphs
from .kv_pool import KVPool
from .replies import LaunchedStep
from .requests import StepPlan
from .rows import RowTable
from .running import CheckedPlan, PlanChecker
from .sampling import SampledTokens, Sampler
from .sampling_state import SamplingState
from .scoring import ScoredTokens, score
from .steps import Extents, InputBuilder, StepInput, StepSize, pack
from .transfer import Readback, upload

Computation = Callable[[], tuple[SampledTokens | None, ScoredTokens | None]]
"""What is left to be put on the device: what samples and what scores come of it, where there are any."""


@dataclass(frozen=True)
class RunnerOptions:
    """`deterministic`: as in `EngineOptions`. `alone`: as in `InputBuilder`. `details`: as in `LaunchedStep`."""

    deterministic: bool = False
    alone: bool = True
    details: bool = True


class StepRunner:
    """One rank's model with its rows, pool and sampler. Owned by the engine thread."""

    def __init__(
        self,
        model: CausalLM,
        checker: PlanChecker,
        table: RowTable,
        pool: KVPool,
        sampling: SamplingState,
        sampler: Sampler,
        options: RunnerOptions,
    ) -> None:
        self.checker = checker
        self.table = table
        self._model = model
        self._sampling = sampling
        self._sampler = sampler
        self._options = options
        self._input = InputBuilder(table, pool, options.deterministic, options.alone)
        self._decode_graphs = DecodeGraphs(table.padding_row, model.device)
        self._chunk_graphs = ChunkGraphs(table.padding_row, model.device)
        self._previous_end: Mark | None = None
        self.compiled_before = 0
        """Kernels compiled before serving."""

    @property
    def graph_tokens(self) -> list[int]:
        """Sizes of the graphs of steps with chunks, ascending."""
        return self._chunk_graphs.sizes

    def capture(self, decodes: Sequence[int], tokens: Sequence[int]) -> None:
        """Captures a graph for each batch size of `decodes`, and for steps with chunks one for each number of `tokens`;
        others run without a graph. No request may be running.
        """
        if not decodes and not tokens:
            return
        # One step runs at a time, so all may use the same memory.
        memory = torch.cuda.graph_pool_handle()
        longest = self.table.max_total_tokens
        self._chunk_graphs.capture(lambda step, size: self._forward(step, Extents(longest, size)), tokens, memory)
        self._decode_graphs.capture(lambda rows: self.decode_rows(rows, longest), decodes, memory)

    @property
    def vocab_size(self) -> int:
        """Ids of requests are below it."""
        return self._model.vocab_size

    def launch(self, plan: StepPlan) -> LaunchedStep:
        """Executes a plan. Raises `InvalidRequest` or `OutOfSlots` for one that is wrong; nothing has changed then."""
        called = time.perf_counter_ns()
        checked = self.checker.apply(plan)
        self.table.open(checked.admitted)
        self._sampling.admit([request.row for request in checked.admitted], checked.admitted)
        self.table.grant(checked.writes)
        step = partial(
            LaunchedStep,
            checked.number,
            checked.owners,
            checked.failures,
            checked.chunks,
            compiled_before=self.compiled_before,
            details=self._options.details,
        )
        if checked.num_tokens == 0:
            return step(time.perf_counter_ns() - called)
        compute = self._prepare_chunks(checked) if checked.chunks else self._prepare_decodes(checked)
        begin = Mark(self._model.device)
        sampled, scored = compute()
        end = Mark(self._model.device)
        step_time = StepTime(begin, end, self._previous_end if plan.number else None)
        self._previous_end = end
        record = None if sampled is None else Readback(sampled.record[: len(checked.owners)])
        scores = None if scored is None else Readback(scored.record)
        return step(begin.host_ns - called, time=step_time, record=record, scores=scores)

    def decode_rows(self, rows: Tensor, max_kv_len: int) -> SampledTokens:
        """A step without chunks. `rows` int64 [D], may hold the padding row; none is longer than `max_kv_len`."""
        return self._choose(self._model.forward(*self._input.decodes(rows, max_kv_len)), rows)

    def _prepare_decodes(self, plan: CheckedPlan) -> Computation:
        replay = self._decode_graphs.prepare(plan)
        if replay is None:
            replay = partial(self.decode_rows, upload(plan.decodes, self._model.device), plan.longest_decode)
        return lambda: (replay(), None)

    def _prepare_chunks(self, plan: CheckedPlan) -> Computation:
        prepared = self._chunk_graphs.prepare(plan)
        if prepared is None:
            size = StepSize.of(plan)
            packed = upload(pack(plan, size, self.table.padding_row), self._model.device)
            step = StepInput[Tensor].of(packed, size)
            extents = Extents(plan.longest_decode, max(each.chunk.count for each in plan.chunks))
            prepared = step, partial(self._forward, step, extents)
        return partial(self._finish, plan, *prepared)

    def _forward(self, step: StepInput[Tensor], extents: Extents) -> Tensor:
        """The forward pass of a step with chunks: [N, hidden], the tokens whose logits are wanted."""
        return self._model.forward(*self._input.mixed(step, extents))

    def _finish(
        self, plan: CheckedPlan, step: StepInput[Tensor], forward: Callable[[], Tensor]
    ) -> tuple[SampledTokens | None, ScoredTokens | None]:
        """From the forward pass to tokens and scores."""
        hidden = forward()
        sampled = scored = None
        if count := len(plan.owners):
            sampled = self._choose(hidden[:count], step.sample_rows[:count])
        if len(step.score_targets):
            num_top = max(each.owner.request.top_n_tokens for each in plan.chunks if each.num_scores)
            rest = hidden[len(step.sample_rows) :]
            num_top = min(num_top, self._model.vocab_size)
            block = LINEAR_BLOCK if self._options.deterministic else None
            scored = score(self._logits, rest, step.score_targets, num_top, block)
        return sampled, scored

    def _choose(self, hidden: Tensor, rows: Tensor) -> SampledTokens:
        """Samples from the last hidden states and moves the rows on."""
        table, sampling = self.table, self._sampling
        sampled = self._sampler(self._logits(hidden), rows, table.last_token, table.generated)
        advance_state(
            sampled.tokens, rows, table.last_token, table.length, table.generated, sampling.ints, sampling.counts
        )
        return sampled

    def _logits(self, hidden: Tensor) -> Tensor:
        return self._model.logits(hidden, self._options.deterministic)
