"""Launches steps on the device: from a plan to sampled tokens and the rows' next state, without waiting."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from text_generation_kernels import Windows

from ..distributed import TensorParallelGroup
from ..layers.infer.state import LINEAR_BLOCK
from ..layers.weights import StepAdapters
from ..models.base import CausalLM
from .adapter_probe import RunnerAdapters
from .chooser import Chooser
from .clock import Mark, MaskWait, StepTime
from .graphs import GraphSizes, RunnerGraphs
from .kv_pool import KVPool
from .mask_pool import MaskPool
from .masks import check_rows, no_masks
from .media_faults import MediaFaults
from .media_pool import EncodedItem, MediaPool
from .passes import ForwardPasses
from .replies import LaunchedStep
from .requests import MaskSource, StepMasks, StepPlan
from .rows import RowTable
from .running import CheckedPlan, PlanChecker, Vector
from .sampling import Sampler
from .sampling_state import SamplingState
from .scoring import ScoredTokens, Scorer
from .speculation import Chosen, Speculation
from .steps import Extents, InputBuilder, StepInput, StepSize, pack
from .transfer import Readback, overwrite, upload
from .window_graphs import ForwardedWindows, WindowGraphs


@dataclass(frozen=True)
class Outcome:
    """The results of a step on the device: samples and scores, if it has them. `wait` has the meaning of `StepTime`."""

    chosen: Chosen | None
    scored: ScoredTokens | None = None
    wait: MaskWait | None = None


Forwarded = TypeVar("Forwarded")
Choice = Callable[[Forwarded], tuple[Chosen | None, ScoredTokens | None]]
"""Turns what a forward pass has computed into samples and scores."""


@dataclass(frozen=True)
class Prepared(Generic[Forwarded]):
    """The two parts of a step, between which masks may come."""

    forward: Callable[[], Forwarded]
    choose: Choice[Forwarded]
    caps: Tensor | None = None
    """int64 [decodes]: the most tokens of each window. None: one."""


@dataclass(frozen=True)
class RunnerOptions:
    """The runner takes `deterministic` of `EngineOptions`, `alone` of `InputBuilder`, `details` of `LaunchedStep`."""

    deterministic: bool = False
    alone: bool = True
    details: bool = True


class StepRunner:
    """One rank's model with its rows, pool and sampler. The engine thread owns it."""

    def __init__(
        self,
        model: CausalLM,
        group: TensorParallelGroup,
        checker: PlanChecker,
        table: RowTable,
        pool: KVPool,
        sampling: SamplingState,
        masks: MaskPool,
        sampler: Sampler,
        options: RunnerOptions,
        media: MediaPool | None = None,
        speculation: Speculation | None = None,
        adapters: RunnerAdapters | None = None,
    ) -> None:
        """`media` is None where none is served, `speculation` where each step gives a row one token, and `adapters`
        where requests have none.
        """
        self.checker = checker
        self.table = table
        self._model = model
        self._group = group
        self._sampling = sampling
        self._masks = masks
        self._options = options
        self._speculation = speculation
        self._chooser = Chooser(model, table, sampling, sampler, options.deterministic, speculation)
        self.media = media
        self._faults = None if media is None else MediaFaults(len(media.rows))
        self._axes = table.rope_delta is not None
        media_rows = None if media is None else media.rows
        limits = None if speculation is None else speculation.limits
        self._input = InputBuilder(table, pool, options.deterministic, options.alone, media_rows, limits)
        self._passes = ForwardPasses(model, self._input, speculation)
        widths = () if speculation is None else speculation.widths
        place = table.padding_row, model.device
        self._window_graphs = {width: WindowGraphs[Chosen](width, *place) for width in widths}
        self._forward_windows = {width: WindowGraphs[ForwardedWindows](width, *place) for width in widths}
        self._graphs = RunnerGraphs(table.padding_row, model.device, self._axes)
        self._no_graphs = RunnerGraphs(table.padding_row, model.device, self._axes)
        self._adapters, self._adapted_graphs = adapters, self._no_graphs
        if adapters is not None:
            self._adapted_graphs = RunnerGraphs(table.padding_row, model.device, self._axes, adapters.tables)
        self._previous_end: Mark | None = None
        self.compiled_before = 0
        """The number of kernels that were compiled before serving."""

    @property
    def graph_tokens(self) -> list[int]:
        """The sizes of the graphs of steps with chunks, ascending."""
        return self._graphs.chunks.sizes

    def capture(self, sizes: GraphSizes) -> None:
        """Captures a CUDA graph for each of `sizes`; other steps run without one. No request may be running."""
        if not sizes.count:
            return
        # One step runs at a time, so all graphs share one memory pool.
        memory = torch.cuda.graph_pool_handle()
        self._capture(self._graphs, sizes, memory)
        for width, of_width in sizes.windows.items():
            step = partial(self._window_step, max_kv_len=self.table.max_total_tokens)
            self._window_graphs[width].capture(step, of_width, memory)
        for width, of_width in sizes.forward_windows.items():
            forward = partial(self._forward_of_windows, max_kv_len=self.table.max_total_tokens)
            self._forward_windows[width].capture(forward, of_width, memory)
        if self._adapters is not None:
            self._capture(self._adapted_graphs, sizes.of_adapters, memory)

    def _capture(self, graphs: RunnerGraphs, sizes: GraphSizes, memory: Any) -> None:
        longest = self.table.max_total_tokens

        def forward(step: StepInput[Tensor], size: int, adapters: StepAdapters | None) -> Tensor:
            return self._passes.of_chunks(step, Extents(longest, size), adapters)

        def forward_rows(rows: Tensor, adapters: StepAdapters | None) -> Tensor:
            return self._passes.of_rows(rows, longest, adapters)

        graphs.chunks.capture(forward, sizes.tokens, memory)
        graphs.decodes.capture(
            lambda rows, adapters: self._single_step(rows, longest, adapters),
            sizes.decodes,
            memory,
        )
        graphs.forwards.capture(forward_rows, sizes.forwards, memory)

    @property
    def vocab_size(self) -> int:
        """The size of the vocabulary; ids of requests are below it."""
        return self._model.vocab_size

    def launch(self, plan: StepPlan, masks: MaskSource = no_masks) -> LaunchedStep:
        """Executes a plan. Raises `InvalidRequest` or `OutOfSlots` for a wrong plan, which changes nothing.

        For constrained rows, it calls `masks` once the forward pass is launched; it raises the errors of `masks`, and
        `InvalidRequest` for masks of other rows. It launches the rest of the step all the same, whose results nobody
        reads: other ranks may have got their masks, and wait in the step's collectives.
        """
        called = time.perf_counter_ns()
        checked = self.checker.apply(plan)
        self.table.grant(checked.writes)
        before = self._adapters.copies.before() if self._adapters is not None and checked.copies else None
        self._extend(checked)
        step = partial(
            LaunchedStep,
            checked.number,
            checked.owners,
            checked.failures,
            checked.chunks,
            compiled_before=self.compiled_before,
            details=self._options.details,
            constrained=frozenset(checked.constrained),
            faults=self._faults,
            adapters=None if self._adapters is None else self._adapters.copies.pending,
        )
        if checked.num_tokens == 0 and not checked.encode:
            self._forget(checked)
            self._admit(checked)
            self._constrain(checked, masks)
            self._copy_adapters(checked, before)
            return step(time.perf_counter_ns() - called)
        compute = self._one_graph(checked) or self._forward_then_sample(checked, masks)
        begin = Mark(self._model.device)
        encoded, encoder_end = self._encode(checked)
        outcome = compute()
        end = Mark(self._model.device)
        step_time = StepTime(begin, end, self._previous_end if plan.number else None, outcome.wait, encoder_end)
        self._previous_end = end
        self._copy_adapters(checked, before)
        entries = len(checked.owners) * checked.width
        chosen = outcome.chosen
        record = None if chosen is None else Readback(chosen.sampled.record[:entries])
        if chosen is not None and chosen.outcome is not None:
            step = partial(step, outcome=Readback(chosen.outcome[: len(checked.owners)]), width=checked.width)
        scores = None if outcome.scored is None else Readback(outcome.scored.record)
        return step(begin.host_ns - called, time=step_time, record=record, scores=scores, encoded=encoded)

    def clear_adapters(self) -> None:
        """Forgets which adapter each number is."""
        self.checker.adapters.clear()
        if self._adapters is not None:
            self._adapters.copies.clear()

    def _copy_adapters(self, plan: CheckedPlan, before: torch.cuda.Event | None) -> None:
        """Queues the plan's copies of adapters, after all steps up to `before` and beside its own."""
        if self._adapters is not None and plan.copies:
            self._adapters.copies.launch(plan.number, plan.copies, self.checker.adapters.residents, before)

    def _forget(self, plan: CheckedPlan) -> None:
        if self.media is not None:
            self.media.forget(plan.forget)

    def _encode(self, plan: CheckedPlan) -> tuple[list[EncodedItem], Mark | None]:
        """Launches the plan's layers of the encoder. Returns the items that are done, and where the encoder ends."""
        self._forget(plan)
        if self.media is None or not plan.encode:
            return [], None
        encoded = self.media.encode(plan.encode)
        return encoded, Mark(self._model.device)

    def decode_rows(self, rows: Tensor, max_kv_len: int, adapter: int = 0) -> Chosen:
        """Computes a decode-only step whose rows need no filters where ranks share the vocabulary (`Sampler`). `rows`
        int64 [D] may hold the padding row; no row is longer than `max_kv_len`. All use adapter `adapter`.
        """
        numbers = np.full(len(rows), adapter, dtype=np.int64)
        adapters = self._adapters.tables.of(numbers) if self._adapters is not None and adapter else None
        return self._single_step(rows, max_kv_len, adapters)

    def decode_windows(self, rows: Tensor, width: int, max_kv_len: int) -> Chosen:
        """Computes a step of windows of `width` tokens for `rows`, as `decode_rows`."""
        return self._window_step(Windows(rows, torch.full_like(rows, width), width), max_kv_len)

    def _window_step(self, windows: Windows, max_kv_len: int) -> Chosen:
        """Computes a step of windows: forward pass, choice and acceptance."""
        if self._speculation is None:
            raise ValueError("windows need speculation")
        inputs = self._speculation.inputs(windows)
        prepared = self._input.windows(inputs, max_kv_len, windows.width)
        passed = self._passes.passed(prepared[1], inputs.rows, max_kv_len)
        return self._chooser.of_windows(self._passes.compute(*prepared), windows, inputs, False, passed=passed)

    def _single_step(self, rows: Tensor, max_kv_len: int, adapters: StepAdapters | None) -> Chosen:
        """Computes a step of one token for each of `rows`: forward pass and choice."""
        prepared = self._passes.prepare_rows(rows, max_kv_len, adapters)
        passed = self._passes.passed(prepared[1], rows, max_kv_len)
        return self._chooser.of_rows(self._passes.compute(*prepared), rows, False, adapters, passed)

    def _one_graph(self, plan: CheckedPlan) -> Callable[[], Outcome] | None:
        """Returns a function that replays the whole step as one CUDA graph; None where no such graph fits."""
        if plan.chunks or plan.constrained or not plan.num_tokens or self._needs_whole_rows(plan):
            return None
        if plan.width == 1:
            replay = self._graphs_of(plan).decodes.prepare(plan)
        else:
            found = None if plan.adapters is not None else self._window_graphs[plan.width].prepare(plan)
            replay = None if found is None else found[1]
        if replay is None:
            return None
        self._admit(plan)
        self._constrain(plan, no_masks)
        return lambda: Outcome(replay())

    def _forward_then_sample(self, plan: CheckedPlan, masks: MaskSource) -> Callable[[], Outcome]:
        """Returns a function that computes the forward pass, with a CUDA graph where one fits, and then samples."""
        if plan.num_tokens == 0:
            return partial(self._only_encode, plan, masks)
        if plan.chunks:
            return partial(self._in_two, plan, masks, self._prepare_chunks(plan))
        if plan.width > 1:
            return partial(self._in_two, plan, masks, self._prepare_windows(plan))
        return partial(self._in_two, plan, masks, self._prepare_decodes(plan))

    def _in_two(self, plan: CheckedPlan, masks: MaskSource, step: Prepared[Any]) -> Outcome:
        """Computes the forward pass, waits for masks where there are some, and samples."""
        forwarded = step.forward()
        self._admit(plan)
        if not plan.constrained:
            self._constrain(plan, no_masks)
            return Outcome(*step.choose(forwarded))
        computed = Mark(self._model.device)
        try:
            late = self._constrain(plan, masks, step.caps)
            was_idle = late and computed.has_passed()
        finally:
            # This happens even where no masks came; see `launch`.
            begun = Mark(self._model.device)
            chosen, scored = step.choose(forwarded)
        return Outcome(chosen, scored, MaskWait(computed, begun, was_idle))

    def _only_encode(self, plan: CheckedPlan, masks: MaskSource) -> Outcome:
        """Does the host's part of a plan that computes no token."""
        self._admit(plan)
        self._constrain(plan, masks)
        return Outcome(None)

    def _admit(self, plan: CheckedPlan) -> None:
        """Writes the rows and sampling parameters of new requests. The forward pass of a prompt reads none of them, so
        the host writes them while the device computes, which shortens the time to first token.
        """
        self.table.open(plan.admitted)
        self._sampling.admit([request.row for request in plan.admitted], plan.admitted)
        if self._speculation is not None:
            new = [request.row for request in plan.admitted]
            self._speculation.open(plan.admitted, self.checker.rows.reach(new))
            self._speculation.hint([each for each in plan.hints if each.row in new])

    def _extend(self, plan: CheckedPlan) -> None:
        """Lets rows that have got slots go on as far as these, and gives those with hints these, which the step's own
        windows may draft from.
        """
        if self._speculation is None:
            return
        new = {request.row for request in plan.admitted}
        writes = [write for write in plan.writes if write.row not in new]
        rows = sorted({write.row for write in writes})
        self._speculation.extend(writes, rows, self.checker.rows.reach(rows))
        self._speculation.hint([each for each in plan.hints if each.row not in new])

    def _constrain(self, plan: CheckedPlan, masks: MaskSource, caps: Tensor | None = None) -> bool:
        """Gives the sampling rows their mask slots: those of `masks`, and 0 to rows that are not constrained. Windows
        get no more tokens than there are masks, which lowers their `caps`. Returns whether the masks were late.
        """
        found = StepMasks(plan.number)
        if plan.constrained:
            found = masks(plan.number)
            check_rows(found, plan.constrained, plan.widths_of_rows)
            self._masks.write(found.writes)
        rows, width = plan.choosing, plan.width
        slots = np.zeros((self.table.num_rows, width), dtype=np.int64)
        counts = found.counts_of_rows or dict.fromkeys(found.rows, 1)
        first = 0
        for row, count in counts.items():
            slots[row, :count] = found.slots[first : first + count]
            first += count
        if width == 1:
            self._sampling.use_masks(rows, slots[rows, 0])
            return found.late
        self._sampling.use_window_masks(rows, slots[rows])
        if caps is not None and plan.widths is not None and counts:
            most = np.array([counts.get(row, width) for row in rows.tolist()], dtype=np.int64)
            overwrite(caps, np.minimum(plan.widths, most))
        return found.late

    def _needs_whole_rows(self, plan: CheckedPlan) -> bool:
        """Whether ranks must share the rows of this step's sampling instead of the vocabulary."""
        return not self._model.vocabulary.is_whole and self._sampling.need_whole_rows(plan.choosing)

    def _prepare_windows(self, plan: CheckedPlan) -> Prepared[ForwardedWindows]:
        """Prepares a step of windows that is no whole graph."""
        if self._speculation is None or plan.widths is None:
            raise ValueError("windows need speculation")
        longest, adapters = plan.longest_decode, self._adapters_of(plan)
        found = None if plan.adapters is not None else self._forward_windows[plan.width].prepare(plan)
        if found is None:
            rows, caps = (upload(each.copy(), self._model.device) for each in (plan.decodes, plan.widths))
            windows = Windows(rows, caps, plan.width)
            found = windows, partial(self._forward_of_windows, windows, longest, adapters)
        windows, forward = found
        whole_rows, of_logits = self._needs_whole_rows(plan), self._adapters_of_logits(plan.adapters)

        def choose(forwarded: ForwardedWindows) -> tuple[Chosen | None, ScoredTokens | None]:
            hidden, inputs = forwarded.first(len(windows.rows) * windows.width)
            passed = self._passes.passed_windows(inputs, longest, windows.width)
            return self._chooser.of_windows(hidden, windows, inputs, whole_rows, of_logits, passed), None

        return Prepared(forward, choose, windows.caps)

    def _forward_of_windows(
        self, windows: Windows, max_kv_len: int, adapters: StepAdapters | None = None
    ) -> ForwardedWindows:
        """Computes the forward pass of windows."""
        if self._speculation is None:
            raise ValueError("windows need speculation")
        inputs = self._speculation.inputs(windows)
        prepared = self._input.windows(inputs, max_kv_len, windows.width, adapters)
        return ForwardedWindows(self._passes.compute(*prepared), inputs)

    def _prepare_decodes(self, plan: CheckedPlan) -> Prepared[Tensor]:
        rows = upload(plan.decodes, self._model.device)
        forward = self._graphs_of(plan).forwards.prepare(plan)
        if forward is None:
            forward = partial(self._passes.of_rows, rows, plan.longest_decode, self._adapters_of(plan))
        whole_rows = self._needs_whole_rows(plan)
        adapters = self._adapters_of_logits(plan.adapters)

        def choose(hidden: Tensor) -> tuple[Chosen | None, ScoredTokens | None]:
            passed = self._passes.passed_rows(rows, plan.longest_decode)
            return self._chooser.of_rows(hidden[: len(rows)], rows, whole_rows, adapters, passed), None

        return Prepared(forward, choose)

    def _prepare_chunks(self, plan: CheckedPlan) -> Prepared[Tensor]:
        # Attention across spans has no kernel that a graph could replay.
        seen_ends = self.checker.media.has_whole_spans and plan.reads_media
        prepared = None if seen_ends else self._graphs_of(plan).chunks.prepare(plan)
        if prepared is None:
            size = StepSize.of(plan, self._axes, seen_ends)
            packed = upload(pack(plan, size, self.table.padding_row), self._model.device)
            step = StepInput[Tensor].of(packed, size)
            prepared = step, partial(self._passes.of_chunks, step, _extents(plan), self._adapters_of(plan))
        step, forward = prepared
        return Prepared(forward, partial(self._finish, plan, step))

    def _graphs_of(self, plan: CheckedPlan) -> RunnerGraphs:
        if self._adapters is None or plan.adapters is None:
            return self._graphs
        return self._adapted_graphs if self._adapters.tables.fit_graphs(plan.adapters) else self._no_graphs

    def _adapters_of(self, plan: CheckedPlan) -> StepAdapters | None:
        """Queues the tables of a step that runs without a graph; None where no token uses an adapter."""
        if self._adapters is None or plan.adapters is None:
            return None
        return self._adapters.tables.of(plan.adapters)

    def _finish(
        self, plan: CheckedPlan, step: StepInput[Tensor], hidden: Tensor
    ) -> tuple[Chosen | None, ScoredTokens | None]:
        """Turns the hidden states of a step with chunks into sampled tokens and scores."""
        chosen = scored = None
        slots = self.checker.rows.num_slots[plan.choosing]
        passed = self._passes.passed_chunks(step, _extents(plan), int(slots.max(initial=1)))
        if count := len(plan.owners):
            rows, adapters = step.sample_rows[:count], self._adapters_of_logits(plan.choosing_adapters)
            last, whole_rows = step.logit_tokens[:count], self._needs_whole_rows(plan)
            chosen = self._chooser.of_rows(hidden[:count], rows, whole_rows, adapters, passed, last)
        else:
            self._chooser.of_none(hidden, passed)
        if len(step.score_targets):
            num_top = max(each.owner.request.top_n_tokens for each in plan.chunks if each.num_scores)
            rest = hidden[len(step.sample_rows) :]
            num_top = min(num_top, self._model.vocab_size)
            block = LINEAR_BLOCK if self._options.deterministic else None
            scorer = Scorer(partial(self._scored_logits, plan), self._model.vocabulary, self._group, block)
            scored = scorer(rest, step.score_targets, num_top)
        return chosen, scored

    def _scored_logits(self, plan: CheckedPlan, hidden: Tensor, first: int) -> Tensor:
        """Returns the logits of some scored places of the plan, from place `first` on."""
        numbers = plan.scored_adapters
        adapters = self._adapters_of_logits(None if numbers is None else numbers[first : first + len(hidden)])
        return self._chooser.logits(hidden, adapters)

    def _adapters_of_logits(self, numbers: Vector | None) -> StepAdapters | None:
        """Queues the tables for logits of tokens that use these adapters; None where the base's head makes them all."""
        adapters = self._adapters
        if adapters is None or not adapters.change_head or numbers is None or not numbers.any():
            return None
        return adapters.tables.of(numbers)


def _extents(plan: CheckedPlan) -> Extents:
    return Extents(plan.longest_decode, max(each.chunk.count for each in plan.chunks))
