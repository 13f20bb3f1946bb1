"""From the last hidden states of a step to its tokens and the rows' next state."""

from torch import Tensor

from text_generation_kernels import SampledTokens, WindowInputs, Windows, advance_state

from ..drafters import draft_windows
from ..layers.weights import StepAdapters
from ..models.base import CausalLM
from .classes import token_of_class
from .drafting import Passed
from .rows import RowTable
from .sampling import SINGLE, SampledWindow, Sampler
from .sampling_state import SamplingState
from .speculation import Chosen, Speculation


class Chooser:
    """Samples tokens and advances the rows. The engine thread owns it."""

    def __init__(
        self,
        model: CausalLM,
        table: RowTable,
        sampling: SamplingState,
        sampler: Sampler,
        deterministic: bool,
        speculation: Speculation | None,
    ) -> None:
        self._model = model
        self._table = table
        self._columns = sampling.columns
        self._sampler = sampler
        self._deterministic = deterministic
        self._speculation = speculation

    def of_rows(
        self,
        hidden: Tensor,
        rows: Tensor,
        whole_rows: bool,
        adapters: StepAdapters | None,
        passed: Passed | None = None,
        last: Tensor | None = None,
    ) -> Chosen:
        """Chooses one token for each of `rows` int64 [N], from `hidden` [N, hidden]. `whole_rows` has the meaning of
        `Sampler`, and `adapters` that of `CausalLM.logits`. A drafter goes on from the pass that made `hidden`, of its
        tokens `last` [N] (None: one for each row).
        """
        logits = self.logits(hidden, adapters)
        if self._model.classes:
            return self._classified(logits.float(), rows)
        sampled = self._sample(logits, rows, whole_rows, SINGLE)
        if self._speculation is not None:
            windows = self._speculation.single(rows)
            chosen = self._speculation.advance(windows, sampled)
            self._draft(chosen, windows, passed, hidden, last)
            return chosen
        self._advance(sampled, rows)
        return Chosen(sampled)

    def _classified(self, logits: Tensor, rows: Tensor) -> Chosen:
        """Keeps the logits of classes [N, classes]."""
        sampled = token_of_class(logits)
        self._advance(sampled, rows)
        return Chosen(sampled, classes=logits)

    def _advance(self, sampled: SampledTokens, rows: Tensor) -> None:
        table = self._table
        advance_state(sampled.tokens, rows, table.last_token, table.length, table.generated, self._columns)

    def of_windows(
        self,
        hidden: Tensor,
        windows: Windows,
        inputs: WindowInputs,
        whole_rows: bool,
        adapters: StepAdapters | None = None,
        passed: Passed | None = None,
        tokens: Tensor | None = None,
    ) -> Chosen:
        """Chooses tokens for windows, from the hidden states of their entries, which are those of `passed`, or of its
        `tokens`, int64 [entries]. Raises ValueError where there is no speculation.
        """
        if self._speculation is None:
            raise ValueError("windows need speculation")
        window = SampledWindow(windows.width, inputs.ids)
        sampled = self._sample(self.logits(hidden, adapters), inputs.rows, whole_rows, window)
        chosen = self._speculation.advance(windows, sampled)
        self._draft(chosen, windows, passed, hidden, None, tokens)
        return chosen

    def of_none(self, hidden: Tensor, passed: Passed | None) -> None:
        """Lets a drafter go on from the pass that made `hidden`, after which no row gets a token."""
        if self._speculation is not None and passed is not None:
            none = passed.rows[:0]
            self._speculation.draft(passed, self._speculation.single(none), none, hidden[:0], None)

    def _draft(
        self,
        chosen: Chosen,
        windows: Windows,
        passed: Passed | None,
        hidden: Tensor,
        last: Tensor | None,
        tokens: Tensor | None = None,
    ) -> None:
        if self._speculation is None or passed is None or chosen.outcome is None:
            return
        of_windows = draft_windows(windows, chosen.outcome) if last is None else last
        places = of_windows if windows.width > 1 else None
        last = of_windows if tokens is None else tokens[of_windows]
        self._speculation.draft(passed, windows, last, hidden, places)

    def logits(self, hidden: Tensor, adapters: StepAdapters | None = None) -> Tensor:
        """The model's logits of `hidden` [N, hidden]. `adapters` has the meaning of `CausalLM.logits`."""
        return self._model.logits(hidden, self._deterministic, adapters)

    def _sample(self, logits: Tensor, rows: Tensor, whole_rows: bool, window: SampledWindow) -> SampledTokens:
        table = self._table
        return self._sampler(logits, rows, table.last_token, table.generated, whole_rows, window)
