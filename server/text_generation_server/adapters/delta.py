"""What an adapter does to tensors of the model, by PEFT's formulas.

All arithmetic is in float32, rounded once to the type of the weight. `W` is `[outputs, inputs]`; a tensor that the
checkpoint stores transposed is handled through its transposed view.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

Span = tuple[int, int]
ReadRows = Callable[[int, int], Tensor]
"""Reads rows `start` to `stop` of the whole W, before the change."""

_AT_ONCE = 1 << 22
"""Elements of W that exist in float32 at a time."""


@dataclass(frozen=True)
class Delta:
    """Low-rank change of one matrix: `W + s B A`, and with DoRA `m / |W + s B A| * (W + s B A)`, row by row."""

    a: Tensor
    """[r, inputs], as stored in the adapter's file."""
    b: Tensor
    """[outputs, r]"""
    scale: float
    """s; it stays apart, because folding it into 16-bit factors would round them."""
    magnitude: Tensor | None = None
    """[outputs], m of DoRA."""
    bias: Tensor | None = None
    """[outputs]; s times this is added to the bias of the layer (`lora_bias`)."""
    transposed: bool = False
    """Whether the checkpoint stores the matrix as [inputs, outputs]."""
    base: Tensor | None = None
    """What replaces the stored tensor before the change, where the adapter has trained that too."""

    @property
    def rank(self) -> int:
        """r, that of the tensors."""
        return self.a.shape[0]

    @property
    def shape(self) -> tuple[int, int]:
        """The shape of the stored tensor."""
        shape = self.b.shape[0], self.a.shape[1]
        return (shape[1], shape[0]) if self.transposed else shape

    def merged(self, weight: Tensor) -> Tensor:
        """Returns the changed tensor, of the shape and type in which the checkpoint stores it."""
        out = weight.clone()
        self.merge_(out)
        return out

    def merge_(self, weight: Tensor, part: tuple[int, Span] | None = None, read: ReadRows | None = None) -> None:
        """Changes in place what was read of the stored tensor: all of it, or the indices of one dimension. DoRA needs
        `read` where `part` divides rows of W.
        """
        view, outputs, inputs = (weight.t() if self.transposed else weight), self._outputs, self._inputs
        if part is not None:
            is_row = (part[0] == 0) != self.transposed
            outputs, inputs = (part[1], inputs) if is_row else (outputs, part[1])
        factors = None
        if self.magnitude is not None:
            first = outputs[0]
            if read is None or inputs == self._inputs:
                factors = self.row_factors(lambda start, stop: view[start - first : stop - first], outputs)
            else:
                factors = self.row_factors(read, outputs)
        for start, stop in _chunks(view.shape[0], view.shape[1]):
            rows = self._changed(view[start:stop], (outputs[0] + start, outputs[0] + stop), inputs)
            view[start:stop] = rows if factors is None else rows * factors[start:stop, None]

    def row_factors(self, read: ReadRows, outputs: Span | None = None) -> Tensor | None:
        """[outputs] float32, what DoRA multiplies the rows `outputs` of `W + s B A` by; None: no DoRA."""
        if self.magnitude is None:
            return None
        first, last = outputs or self._outputs
        lengths: list[Tensor] = []
        for start, stop in _chunks(last - first, self.a.shape[1]):
            own = first + start, first + stop
            lengths.append(self._changed(read(*own), own, self._inputs).norm(dim=1))
        return self.magnitude[first:last].to(lengths[0]) / torch.cat(lengths) if lengths else self.magnitude[:0].float()

    @property
    def _outputs(self) -> Span:
        return 0, self.b.shape[0]

    @property
    def _inputs(self) -> Span:
        return 0, self.a.shape[1]

    def _changed(self, weight: Tensor, outputs: Span, inputs: Span) -> Tensor:
        """Returns these outputs and inputs of `W + s B A`, float32."""
        a, b = self.a[:, slice(*inputs)].to(weight.device), self.b[slice(*outputs)].to(weight.device)
        return torch.addmm(weight.float(), b.float(), a.float(), alpha=self.scale)


@dataclass(frozen=True)
class EmbeddingDelta(Delta):
    """Low-rank change of an embedding `[vocabulary, hidden]`: a matrix of one input for each token, stored transposed.
    DoRA divides by the length of columns over the whole vocabulary.
    """


@dataclass(frozen=True)
class ExpertDeltas:
    """Changes of experts whose matrices lie in one tensor, by number."""

    experts: tuple[Delta, ...]


@dataclass(frozen=True)
class Replaced:
    """A whole tensor that the adapter has trained: `modules_to_save`, or a bias."""

    tensor: Tensor


@dataclass(frozen=True)
class TokenRows:
    """New rows of some tokens. The file calls them a delta, but they replace what is stored."""

    tokens: tuple[int, ...]
    rows: Tensor
    """[tokens, hidden]"""

    def write_(self, weight: Tensor, part: tuple[int, Span] | None) -> None:
        """Replaces rows in place in what was read of the stored tensor: all of it, or the indices of one dimension."""
        dim, (start, stop) = part or (0, (0, weight.shape[0]))
        rows, first = self.rows.to(weight), start if dim == 0 else 0
        if dim == 1:
            rows = rows[:, start:stop]
        for token, row in zip(self.tokens, rows, strict=True):
            if 0 <= token - first < weight.shape[0]:
                weight[token - first] = row


Change = Delta | ExpertDeltas | Replaced | TokenRows


def _chunks(rows: int, columns: int) -> Iterator[Span]:
    size = max(1, _AT_ONCE // max(1, columns))
    return ((start, min(start + size, rows)) for start in range(0, rows, size))


def highest_rank(change: Change) -> int:
    """Returns the highest rank of its factors; 0 where it has none."""
    deltas = change.experts if isinstance(change, ExpertDeltas) else (change,)
    return max((delta.rank for delta in deltas if isinstance(delta, Delta)), default=0)
