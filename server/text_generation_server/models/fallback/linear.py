"""Linear layers of a class, as our GEMMs. Matrices that read the same tensor become one GEMM."""

from collections.abc import Sequence

from torch import Tensor, nn

from ...distributed import TensorParallelGroup
from ...errors import UnsupportedModel
from ...layers.infer import Head
from ...layers.weights import Activations, ActivationScheme, Dense, Linear


class ServedLinear(nn.Module):
    """`x @ weight.T + bias`, or this rank's shard of it."""

    def __init__(self, linear: Linear, group: TensorParallelGroup | None) -> None:
        """`group`: whose results are summed."""
        super().__init__()
        self._linear = linear
        self._group = group

    @property
    def wants(self) -> ActivationScheme | None:
        """See `Linear`."""
        return self._linear.wants

    @property
    def weight(self) -> Tensor:
        """[outputs, inputs] of this rank. Raises UnsupportedModel for codes."""
        return _numbers(self._linear)

    @property
    def bias(self) -> Tensor | None:
        """[outputs]"""
        return self._linear.bias

    def forward(self, x: Tensor) -> Tensor:
        """[..., inputs] to [..., outputs]."""
        return self.compute(Activations(x.reshape(-1, x.shape[-1]))).view(*x.shape[:-1], -1)

    def compute(self, x: Activations) -> Tensor:
        """[N, inputs] to [N, outputs]."""
        out = self._linear.apply(x)
        if self._group is not None:
            self._group.all_reduce(out)
        return out


class Merged:
    """Several matrices that read one tensor, as one GEMM, which the first call of any of them computes."""

    def __init__(self, linear: Linear, sizes: Sequence[int]) -> None:
        """`linear`: all of them, one below the other; `sizes`: the outputs of each."""
        self.linear = linear
        self.sizes = list(sizes)
        self._read: Tensor | None = None
        self._parts: dict[int, Tensor] = {}

    def part(self, index: int, x: Tensor) -> Tensor:
        """Returns the result of matrix `index`."""
        if self._read is not x or index not in self._parts:
            out = self.linear.apply(Activations(x.reshape(-1, x.shape[-1]))).view(*x.shape[:-1], -1)
            self._read, self._parts = x, dict(enumerate(out.split(self.sizes, dim=-1)))
        result = self._parts.pop(index)
        if not self._parts:
            self._read = None
        return result


class MergedLinear(nn.Module):
    """One of the matrices of a `Merged`."""

    def __init__(self, merged: Merged, index: int) -> None:
        super().__init__()
        self._merged = merged
        self._index = index

    @property
    def weight(self) -> Tensor:
        """[outputs, inputs] of this rank. Raises UnsupportedModel for codes."""
        return _numbers(self._merged.linear).split(self._merged.sizes)[self._index]

    @property
    def bias(self) -> Tensor | None:
        """[outputs]"""
        bias = self._merged.linear.bias
        return None if bias is None else bias.split(self._merged.sizes)[self._index]

    def forward(self, x: Tensor) -> Tensor:
        """Turns [..., inputs] into [..., outputs]."""
        return self._merged.part(self._index, x)


def _numbers(linear: Linear) -> Tensor:
    if not isinstance(linear, Dense):
        # Not AttributeError, which `nn.Module` would take for an attribute that is not there.
        raise UnsupportedModel(
            "the class of the model reads the numbers of a quantised matrix itself, which has none: use the 16-bit "
            "checkpoint without --quantize"
        )
    return linear.weight


class ServedHead(nn.Module):
    """The LM head, of which each rank has a vocabulary shard; the rest of the class sees all columns."""

    def __init__(self, head: Head, group: TensorParallelGroup) -> None:
        super().__init__()
        self._head = head
        self._group = group

    def forward(self, x: Tensor) -> Tensor:
        """Turns [1, N, hidden] into [1, N, vocabulary], equal on all ranks."""
        logits = self._head.logits(x.reshape(-1, x.shape[-1]), deterministic=False)
        if not self._head.vocabulary.is_whole:
            gathered = self._group.all_gather(logits.contiguous()).transpose(0, 1)
            logits = gathered.flatten(1)[:, : self._head.vocabulary.vocab_size]
        return logits[None]
