"""Reader that quantises 16-bit matrices while it reads them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torch import Tensor

from ..blocks import RowBlock
from .plain import PlainReader
from .reader import Quantised, QuantisedReader


@dataclass(frozen=True)
class OnlineReader(QuantisedReader, PlainReader):
    """Reads 16-bit matrices, stored or random, as `PlainReader` does, and has `quantiser` quantise them."""

    quantiser: QuantisedReader

    def read_rows(self, blocks: Sequence[RowBlock], inputs: int) -> Sequence[Quantised]:
        """See `QuantisedReader`."""
        return [self.quantise(self.dense_rows(block, inputs) for block in blocks)]

    def read_columns(self, name: str, shape: tuple[int, int], columns: tuple[int, int]) -> Quantised:
        """See `QuantisedReader`."""
        return self.quantise([self.dense_columns(name, shape, columns)])

    def has_codes(self, name: str) -> bool:  # noqa: ARG002 - all or none
        """See `Reader`."""
        return not self.checkpoint.schemes.online

    def quantise(self, weights: Iterable[Tensor]) -> Quantised:
        """See `QuantisedReader`."""
        return self.quantiser.quantise(weights)

    def begins_group(self, inputs: int, start: int) -> bool:
        """See `QuantisedReader`."""
        return self.quantiser.begins_group(inputs, start)

    def reads_expert(self, name: str, shape: tuple[int, int], start: int) -> bool:  # noqa: ARG002
        """See `QuantisedReader`. What is quantised here begins with a group wherever it begins."""
        return self.begins_group(shape[1], 0)
