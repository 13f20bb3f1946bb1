"""Forward passes of the model, and what a drafter gets of them."""

from torch import Tensor

from text_generation_kernels import WindowInputs, Windows

from ..layers.infer import InferState
from ..layers.weights import StepAdapters
from ..models.base import CausalLM
from .drafting import Passed
from .speculation import Speculation
from .steps import Extents, InputBuilder, StepInput


class ForwardPasses:
    """Computes the passes of steps. The engine thread owns it."""

    def __init__(self, model: CausalLM, inputs: InputBuilder, speculation: Speculation | None) -> None:
        self._model = model
        self._inputs = inputs
        self._speculation = speculation

    def of_rows(self, rows: Tensor, max_kv_len: int, adapters: StepAdapters | None) -> Tensor:
        """Computes the newest tokens of rows int64 [D]: [D, hidden]."""
        return self.compute(*self.prepare_rows(rows, max_kv_len, adapters))

    def of_chunks(self, step: StepInput[Tensor], extents: Extents, adapters: StepAdapters | None) -> Tensor:
        """Computes a step with chunks: [N, hidden], the tokens whose logits are wanted."""
        return self.compute(*self._inputs.mixed(step, extents, adapters, self.windows_in(step, extents)))

    def windows_in(self, step: StepInput[Tensor], extents: Extents) -> WindowInputs | None:
        """Returns the windows of a step with chunks; None: it has none that are wider than 1."""
        if self._speculation is None or extents.width == 1:
            return None
        return self._speculation.inputs(Windows(step.decode_rows, step.caps, extents.width))

    def compute(self, input_ids: Tensor, state: InferState) -> Tensor:
        """Computes what was prepared, and keeps what a drafter reads of it."""
        hidden = self._model.forward(input_ids, state)
        if self._speculation is not None:
            self._speculation.keep(len(input_ids))
        return hidden

    def prepare_rows(self, rows: Tensor, max_kv_len: int, adapters: StepAdapters | None) -> tuple[Tensor, InferState]:
        """Returns ids and state of a pass over the newest tokens of rows."""
        if self._speculation is not None:
            inputs = self._speculation.inputs(self._speculation.single(rows))
            return self._inputs.windows(inputs, max_kv_len, 1, adapters)
        return self._inputs.decodes(rows, max_kv_len, adapters)

    @property
    def are_read(self) -> bool:
        """Whether a drafter reads them."""
        return self._speculation is not None and self._speculation.reads_passes

    def passed(self, state: InferState, rows: Tensor, max_kv_len: int, wants_drafts: bool = True) -> Passed | None:
        """Returns what a drafter gets of a pass; None: there is none."""
        return Passed(state, rows, max_kv_len, wants_drafts) if self.are_read else None

    def passed_rows(self, rows: Tensor, max_kv_len: int, wants_drafts: bool) -> Passed | None:
        """The same of a pass over the newest tokens of rows, whose state no graph has kept. Call it before their next
        tokens are appended.
        """
        if not self.are_read:
            return None
        return self.passed(self.prepare_rows(rows, max_kv_len, None)[1], rows, max_kv_len, wants_drafts)

    def passed_windows(self, inputs: WindowInputs, max_kv_len: int, width: int) -> Passed | None:
        """The same of a pass over windows. A graph has kept its inputs, and pads them."""
        if not self.are_read:
            return None
        return self.passed(self._inputs.windows(inputs, max_kv_len, width)[1], inputs.rows, max_kv_len)

    def passed_chunks(self, step: StepInput[Tensor], extents: Extents, max_kv_len: int) -> Passed | None:
        """The same of a step with chunks."""
        if not self.are_read:
            return None
        windows = self.windows_in(step, extents)
        return self.passed(self._inputs.mixed(step, extents, windows=windows)[1], step.token_rows, max_kv_len)
