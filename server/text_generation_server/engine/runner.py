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
from ..models.base import CausalLM
from .adapter_probe import RunnerAdapters
from .captured_steps import CapturedSteps
from .clock import Mark, MaskWait, StepTime
from .device_steps import Choice, DeviceSteps
from .graphs import GraphSizes
from .kv_pool import KVPool
from .mask_pool import MaskPool
from .masks import check_rows, no_masks
from .media_faults import MediaFaults
from .media_pool import EncodedItem, MediaPool
from .replies import LaunchedStep
from .requests import MaskSource, StepMasks, StepPlan
from .rows import RowTable
from .running import CheckedPlan, PlanChecker
from .sampling import Sampler
from .sampling_state import SamplingState
from .scoring import ScoredTokens
from .speculation import Chosen, Speculation
from .steps import InputBuilder
from .transfer import Readback, overwrite
from .window_graphs import ForwardedWindows


@dataclass(frozen=True)
class Outcome:
    """The results of a step on the device: samples and scores, if it has them. `wait` has the meaning of `StepTime`."""

    chosen: Chosen | None
    scored: ScoredTokens | None = None
    wait: MaskWait | None = None


Forwarded = TypeVar("Forwarded")


@dataclass(frozen=True)
class Prepared(Generic[Forwarded]):
    """The two parts of a step, between which masks may come."""

    forward: Callable[[], Forwarded]
    choose: Callable[[Forwarded], Choice]
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
        self.media = media
        self._device = model.device
        self._expert_pairs = model.expert_pairs
        self._sampling = sampling
        self._masks = masks
        self._options = options
        self._speculation = speculation
        self._adapters = adapters
        self._faults = None if media is None else MediaFaults(len(media.rows))
        deterministic = options.deterministic
        media_rows = None if media is None else media.rows
        limits = None if speculation is None else speculation.limits
        inputs = InputBuilder(table, pool, deterministic, options.alone, media_rows, limits)
        parts = (table, pool, inputs, sampling, sampler)
        self._steps = DeviceSteps(model, group, *parts, deterministic, speculation, adapters)
        self._captured = CapturedSteps(self._steps)
        self._previous_end: Mark | None = None
        self._undrafted = False
        """Whether the newest step that computed tokens had no drafts behind them."""
        self.compiled_before = 0
        """The number of kernels that were compiled before serving."""
        self.rehearses_media = False
        """Whether steps with chunks run as those that read media."""

    @property
    def graph_tokens(self) -> list[int]:
        """The sizes of the graphs of steps with chunks, ascending."""
        return self._captured.base.chunks[1].sizes

    def capture(self, sizes: GraphSizes) -> None:
        """Captures a CUDA graph for each of `sizes`; other steps run without one. No request may be running."""
        self._captured.capture(sizes)

    @property
    def vocab_size(self) -> int:
        """The size of the vocabulary; ids of requests are below it."""
        return self._steps.model.vocab_size

    @property
    def widths(self) -> tuple[int, ...]:
        """The widths of windows; none without speculation."""
        return self._steps.widths

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
        if checked.num_tokens:
            step = partial(step, undrafted=self._undrafted)
            self._undrafted = not self._steps.has_drafts_behind(checked)
        compute = self._one_graph(checked) or self._forward_then_sample(checked, masks)
        begin = Mark(self._device)
        encoded, encoder_end = self._encode(checked)
        outcome = compute()
        end = Mark(self._device)
        step_time = StepTime(begin, end, self._previous_end if plan.number else None, outcome.wait, encoder_end)
        self._previous_end = end
        self._copy_adapters(checked, before)
        entries = len(checked.owners) * checked.width
        chosen = outcome.chosen
        record = None if chosen is None else Readback(chosen.sampled.record[:entries])
        if chosen is not None and chosen.outcome is not None:
            step = partial(step, outcome=Readback(chosen.outcome[: len(checked.owners)]), width=checked.width)
        if chosen is not None and chosen.classes is not None:
            step = partial(step, classes=Readback(chosen.classes[: len(checked.owners)]))
        if (pairs := self._expert_pairs) is not None and checked.num_tokens:
            # The next step overwrites them, and on a CPU a readback is no copy.
            step = partial(step, expert_pairs=Readback(pairs if pairs.is_cuda else pairs.clone()))
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
        return encoded, Mark(self._device)

    def decode_rows(self, rows: Tensor, max_kv_len: int, adapter: int = 0) -> None:
        """Computes a decode-only step whose rows need no filters where ranks share the vocabulary (`Sampler`), with
        and without drafts behind it, where there is a drafter. `rows` int64 [D] may hold the padding row; no row is
        longer than `max_kv_len`. All use adapter `adapter`.
        """
        for wants_drafts in (False, True) if self._steps.is_drafted else (False,):
            adapters = self._steps.adapters_of_all(adapter, len(rows))
            self._steps.of_rows(rows, max_kv_len, adapters, wants_drafts)

    def decode_windows(self, rows: Tensor, width: int, max_kv_len: int, adapter: int = 0) -> Chosen:
        """Computes a step of windows of `width` tokens for `rows`, as `decode_rows`."""
        adapters = self._steps.adapters_of_all(adapter, len(rows) * width)
        return self._steps.of_windows(Windows(rows, torch.full_like(rows, width), width), adapters, max_kv_len)

    def _one_graph(self, plan: CheckedPlan) -> Callable[[], Outcome] | None:
        """Returns a function that replays the whole step as one CUDA graph; None where no such graph fits."""
        replay = self._captured.whole(plan)
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
        computed = Mark(self._device)
        try:
            late = self._constrain(plan, masks, step.caps)
            was_idle = late and computed.has_passed()
        finally:
            # This happens even where no masks came; see `launch`.
            begun = Mark(self._device)
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
            most = np.array([counts.get(row, width) for row in plan.decodes.tolist()], dtype=np.int64)
            overwrite(caps, np.minimum(plan.widths, most))
        return found.late

    def _prepare_windows(self, plan: CheckedPlan) -> Prepared[ForwardedWindows]:
        """Prepares a step of windows that is no whole graph."""
        if plan.widths is None:
            raise ValueError("windows need widths")
        windows, forward = self._captured.windows(plan) or self._steps.windows_of(plan, plan.widths)
        return Prepared(forward, partial(self._steps.choose_windows, plan, windows), windows.caps)

    def _prepare_decodes(self, plan: CheckedPlan) -> Prepared[Tensor]:
        """Prepares a step of one token for each row that is no whole graph."""
        rows, forward = self._steps.rows_of(plan)
        return Prepared(self._captured.rows(plan) or forward, partial(self._steps.choose_rows, plan, rows))

    def _prepare_chunks(self, plan: CheckedPlan) -> Prepared[Tensor]:
        """Prepares a step with chunks."""
        # Attention across spans has no kernel that a graph could replay, and graphs are those of steps of text.
        seen_ends = self.checker.media.has_whole_spans and plan.reads_media
        own_matrices = self.checker.media.has_own_matrices and (plan.reads_media or self.rehearses_media)
        captured = None if seen_ends or own_matrices else self._captured.chunks(plan)
        step, forward = captured or self._steps.chunks_of(plan, seen_ends, own_matrices)
        slots = self.checker.rows.num_slots[plan.choosing]
        caps = step.caps[: len(plan.decodes)] if plan.width > 1 else None
        return Prepared(forward, partial(self._steps.choose_chunks, plan, int(slots.max(initial=1)), step), caps)
