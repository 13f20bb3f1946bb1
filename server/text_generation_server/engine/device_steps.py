"""What steps compute on the device, from forward passes to sampled tokens: as graphs capture it, and without one."""

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from text_generation_kernels import WindowInputs, Windows

from ..distributed import TensorParallelGroup
from ..layers.infer.state import LINEAR_BLOCK
from ..layers.weights import StepAdapters
from ..models.base import CausalLM
from .adapter_probe import RunnerAdapters
from .chooser import Chooser
from .context_plan import ContextPlan
from .drafting import Drafting
from .kv_pool import KVPool, shared_heads
from .passes import ForwardPasses
from .rows import RowTable
from .running import CheckedPlan, Vector
from .sampling import Sampler
from .sampling_state import SamplingState
from .scoring import ScoredTokens, Scorer
from .speculation import Chosen, Speculation
from .state_replay import StateReplay
from .steps import Extents, InputBuilder, StepInput, StepSize, pack
from .transfer import upload
from .window_graphs import ForwardedWindows

Choice = tuple[Chosen | None, ScoredTokens | None]
"""Samples and scores of a step, if it has them."""


class DeviceSteps:
    """The steps of one rank's model. The engine thread owns it."""

    def __init__(
        self,
        model: CausalLM,
        group: TensorParallelGroup,
        table: RowTable,
        pool: KVPool,
        inputs: InputBuilder,
        sampling: SamplingState,
        sampler: Sampler,
        deterministic: bool,
        speculation: Speculation | None,
        adapters: RunnerAdapters | None,
    ) -> None:
        """`speculation` and `adapters` are None where the runner has none."""
        self.model = model
        self.table = table
        self.inputs = inputs
        self.adapters = adapters
        self.shared_heads = shared_heads(model)
        """Heads of all ranks, where these have some positions of a cache each; else 0."""
        self._group = group
        self._sampling = sampling
        self._deterministic = deterministic
        self._speculation = speculation
        self._chooser = Chooser(model, table, sampling, sampler, deterministic, speculation)
        self._passes = ForwardPasses(model, inputs, speculation)
        self.states = StateReplay(model, pool, table, self.widths, deterministic)
        """Advances states of recurrent layers behind windows."""

    @property
    def has_axes(self) -> bool:
        """Whether positions have several axes."""
        return self.table.rope_delta is not None

    @property
    def widths(self) -> tuple[int, ...]:
        """The widths of windows."""
        return () if self._speculation is None else self._speculation.widths

    def of_rows(
        self, rows: Tensor, max_kv_len: int, adapters: StepAdapters | None, wants_drafts: bool = False
    ) -> Chosen:
        """Computes a step of one token for each of `rows`, int64 [D], with the padding row or without: forward pass and
        choice. No row is longer than `max_kv_len`, and none needs filters where ranks share the vocabulary.
        """
        prepared = self._passes.prepare_rows(rows, max_kv_len, adapters)
        passed = self._passes.passed(prepared[1], rows, max_kv_len, wants_drafts)
        return self._chooser.of_rows(self._passes.compute(*prepared), rows, False, adapters, passed)

    def of_windows(self, windows: Windows, adapters: StepAdapters | None, max_kv_len: int) -> Chosen:
        """Computes a step of windows, as `of_rows`: forward pass, choice and acceptance."""
        inputs = self._inputs_of(windows)
        prepared = self.inputs.windows(inputs, max_kv_len, windows.width, adapters)
        passed = self._passes.passed(prepared[1], inputs.rows, max_kv_len)
        hidden = self._passes.compute(*prepared)
        chosen = self._chooser.of_windows(hidden, windows, inputs, False, adapters, passed)
        self.states.within(windows, chosen)
        return chosen

    def forward_rows(self, rows: Tensor, max_kv_len: int, adapters: StepAdapters | None) -> Tensor:
        """Computes the forward pass of the newest tokens of `rows`: [D, hidden]."""
        return self._passes.of_rows(rows, max_kv_len, adapters)

    def forward_windows(self, windows: Windows, adapters: StepAdapters | None, max_kv_len: int) -> ForwardedWindows:
        """Computes the forward pass of windows."""
        inputs = self._inputs_of(windows)
        prepared = self.inputs.windows(inputs, max_kv_len, windows.width, adapters)
        return ForwardedWindows(self._passes.compute(*prepared), inputs)

    def forward_chunks(self, step: StepInput[Tensor], extents: Extents, adapters: StepAdapters | None) -> Tensor:
        """Computes the forward pass of a step with chunks: [N, hidden], the tokens whose logits are wanted."""
        return self._passes.of_chunks(step, extents, adapters)

    def rows_of(self, plan: CheckedPlan) -> tuple[Tensor, Callable[[], Tensor]]:
        """Queues the rows of a plan without chunks. Returns them and what computes their forward pass."""
        rows = upload(plan.decodes, self.model.device)
        return rows, partial(self.forward_rows, rows, plan.longest_decode, self._adapters_of(plan))

    def windows_of(self, plan: CheckedPlan, widths: Vector) -> tuple[Windows, Callable[[], ForwardedWindows]]:
        """Queues the windows of a plan, int64 [decodes], as `rows_of`."""
        rows, caps = (upload(each.copy(), self.model.device) for each in (plan.decodes, widths))
        windows = Windows(rows, caps, plan.width)
        return windows, partial(self.forward_windows, windows, self._adapters_of(plan), plan.longest_decode)

    def chunks_of(
        self, plan: CheckedPlan, seen_ends: bool, own_matrices: bool
    ) -> tuple[StepInput[Tensor], Callable[[], Tensor]]:
        """Queues a plan with chunks, as `rows_of`. `seen_ends`: tokens of spans see each other; `own_matrices`: they
        pass matrices of their own.
        """
        contexts = ContextPlan.of(plan, self.shared_heads) if self.shared_heads else None
        size = StepSize.of(plan, self.has_axes, seen_ends, contexts)
        packed = upload(pack(plan, size, self.table.padding_row), self.model.device)
        step = StepInput[Tensor].of(packed, size)
        extents = _extents(plan, contexts, own_matrices)
        return step, partial(self.forward_chunks, step, extents, self._adapters_of(plan))

    def choose_rows(self, plan: CheckedPlan, rows: Tensor, hidden: Tensor) -> Choice:
        """Samples for the rows of a plan without chunks, from the hidden states of as many tokens or more."""
        passed = self._passes.passed_rows(rows, plan.longest_decode, self.has_drafts_behind(plan))
        adapters = self._adapters_of_logits(plan.adapters)
        return self._chooser.of_rows(hidden[: len(rows)], rows, self.needs_whole_rows(plan), adapters, passed), None

    def choose_windows(self, plan: CheckedPlan, windows: Windows, forwarded: ForwardedWindows) -> Choice:
        """Samples for windows, and accepts drafts."""
        hidden, inputs = forwarded.first(len(windows.rows) * windows.width)
        passed = self._passes.passed_windows(inputs, plan.longest_decode, windows.width)
        whole_rows, adapters = self.needs_whole_rows(plan), self._adapters_of_logits(plan.adapters)
        chosen = self._chooser.of_windows(hidden, windows, inputs, whole_rows, adapters, passed)
        self.states.behind(windows, chosen)
        return chosen, None

    def choose_chunks(self, plan: CheckedPlan, most_slots: int, step: StepInput[Tensor], hidden: Tensor) -> Choice:
        """Turns the hidden states of a step with chunks into sampled tokens and scores. No row that gets a token has
        more than `most_slots` slots.
        """
        chosen, extents = None, _extents(plan)
        passed = self._passes.passed_chunks(step, extents, most_slots)
        if count := len(plan.owners) * plan.width:
            rows, adapters = step.sample_rows[: len(plan.owners)], self._adapters_of_logits(plan.choosing_adapters)
            last, whole_rows = step.logit_tokens[:count], self.needs_whole_rows(plan)
            if (inputs := self._passes.windows_in(step, extents)) is None:
                chosen = self._chooser.of_rows(hidden[:count], rows, whole_rows, adapters, passed, last)
            else:
                caps = step.caps[: len(plan.decodes)]
                windows, inputs = self._with_ends(rows, caps, inputs, plan.width)
                chosen = self._chooser.of_windows(hidden[:count], windows, inputs, whole_rows, adapters, passed, last)
                self.states.behind(Windows(rows[: len(caps)], caps, plan.width), chosen)
        else:
            self._chooser.of_none(hidden, passed)
        return chosen, self._scored(plan, step, hidden)

    def needs_whole_rows(self, plan: CheckedPlan) -> bool:
        """Whether ranks must share the rows of this step's sampling instead of the vocabulary."""
        return not self.model.vocabulary.is_whole and self._sampling.need_whole_rows(plan.choosing)

    def has_drafts_behind(self, plan: CheckedPlan) -> bool:
        """Whether a drafter, if there is one, drafts behind the tokens of this plan."""
        return not self.is_drafted or plan.width > 1 or bool(plan.chunks) or Drafting.are_due(plan.number)

    @property
    def is_drafted(self) -> bool:
        """Whether a drafter reads steps."""
        return self._passes.are_read

    def adapters_of_all(self, adapter: int, count: int) -> StepAdapters | None:
        """Queues the tables of `count` tokens that all use adapter `adapter`; None: that is the base."""
        if self.adapters is None or not adapter:
            return None
        return self.adapters.tables.of(np.full(count, adapter, dtype=np.int64))

    def _inputs_of(self, windows: Windows) -> WindowInputs:
        if self._speculation is None:
            raise ValueError("windows need speculation")
        return self._speculation.inputs(windows)

    def _with_ends(self, rows: Tensor, caps: Tensor, inputs: WindowInputs, width: int) -> tuple[Windows, WindowInputs]:
        """Returns the windows of `rows`, of which the first are those of `inputs`, with their `caps`, and the others
        end a prompt and get one token. Of the inputs, rows and ids alone are those of these windows.
        """
        count = len(caps)
        windows = Windows(rows, functional.pad(caps, (0, len(rows) - count), value=1), width)
        ends = self.table.last_token[rows[count:]].repeat_interleave(width)
        ids = torch.cat((inputs.ids[: count * width], ends))
        return windows, inputs._replace(rows=rows.repeat_interleave(width), ids=ids)

    def _scored(self, plan: CheckedPlan, step: StepInput[Tensor], hidden: Tensor) -> ScoredTokens | None:
        """Scores prompt tokens of the plan; None where none are wanted."""
        if not len(step.score_targets):
            return None
        num_top = max(each.owner.request.top_n_tokens for each in plan.chunks if each.num_scores)
        rest = hidden[len(step.sample_rows) :]
        num_top = min(num_top, self.model.vocab_size)
        block = LINEAR_BLOCK if self._deterministic else None
        scorer = Scorer(partial(self._scored_logits, plan), self.model.vocabulary, self._group, block)
        return scorer(rest, step.score_targets, num_top)

    def _scored_logits(self, plan: CheckedPlan, hidden: Tensor, first: int) -> Tensor:
        """Returns the logits of some scored places of the plan, from place `first` on."""
        numbers = plan.scored_adapters
        adapters = self._adapters_of_logits(None if numbers is None else numbers[first : first + len(hidden)])
        return self._chooser.logits(hidden, adapters)

    def _adapters_of(self, plan: CheckedPlan) -> StepAdapters | None:
        """Queues the tables of a step that runs without a graph; None where no token uses an adapter."""
        if self.adapters is None or plan.adapters is None:
            return None
        return self.adapters.tables.of(plan.adapters)

    def _adapters_of_logits(self, numbers: Vector | None) -> StepAdapters | None:
        """Queues the tables for logits of tokens that use these adapters; None where the base's head makes them all."""
        adapters = self.adapters
        if adapters is None or not adapters.change_head or numbers is None or not numbers.any():
            return None
        return adapters.tables.of(numbers)


def _extents(plan: CheckedPlan, contexts: ContextPlan | None = None, own_matrices: bool = False) -> Extents:
    longest = max(each.chunk.count for each in plan.chunks)
    return Extents(plan.longest_decode, longest, plan.width, contexts, own_matrices)
