"""From the last hidden states of a step to its tokens and the rows' next state."""

from torch import Tensor

from text_generation_kernels import SampledTokens, WindowInputs, Windows, advance_state

from ..layers.weights import StepAdapters
from ..models.base import CausalLM
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

    def of_rows(self, hidden: Tensor, rows: Tensor, whole_rows: bool, adapters: StepAdapters | None) -> Chosen:
        """Chooses one token for each of `rows` int64 [N], from `hidden` [N, hidden]. `whole_rows` has the meaning of
        `Sampler`, and `adapters` that of `CausalLM.logits`.
        """
        sampled = self._sample(self.logits(hidden, adapters), rows, whole_rows, SINGLE)
        if self._speculation is not None:
            return self._speculation.advance(self._speculation.single(rows), sampled)
        table = self._table
        advance_state(sampled.tokens, rows, table.last_token, table.length, table.generated, self._columns)
        return Chosen(sampled)

    def of_windows(
        self,
        hidden: Tensor,
        windows: Windows,
        inputs: WindowInputs,
        whole_rows: bool,
        adapters: StepAdapters | None = None,
    ) -> Chosen:
        """Chooses tokens for windows, from the hidden states of their entries. Raises ValueError where there is
        no speculation.
        """
        if self._speculation is None:
            raise ValueError("windows need speculation")
        logits = self.logits(hidden, adapters)
        sampled = self._sample(logits, inputs.rows, whole_rows, SampledWindow(windows.width, inputs.ids))
        return self._speculation.advance(windows, sampled)

    def logits(self, hidden: Tensor, adapters: StepAdapters | None = None) -> Tensor:
        """The model's logits of `hidden` [N, hidden]."""
        return self._model.logits(hidden, self._deterministic, adapters)

    def _sample(self, logits: Tensor, rows: Tensor, whole_rows: bool, window: SampledWindow) -> SampledTokens:
        table = self._table
        return self._sampler(logits, rows, table.last_token, table.generated, whole_rows, window)
