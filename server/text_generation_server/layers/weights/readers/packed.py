"""Reader of weight-only, group-quantised matrices; it also quantises 16-bit matrices to these formats."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

import text_generation_kernels as kernels

from ....config.quantisation import Packed
from .. import formats
from ..blocks import RowBlock, row_order
from ..formats import Groups, MatrixShard, OnlineKind
from ..weight_only import WeightOnlyLinear
from .codes import Codes
from .reader import Single, StoredReader

_MADE: dict[str, OnlineKind] = {
    "online-nf4": "nf4",
    "online-fp4": "fp4",
    "bnb-nf4": "nf4",
    "bnb-fp4": "fp4",
    "mxfp4": "mxfp4",
    "nvfp4": "nvfp4",
}
_GROUP_UNIT = min(kernels.KERNEL_GROUPS)
"""The MoE kernels read groups of multiples of this."""


@dataclass(frozen=True)
class PackedMatrix:
    """See `Quantised`."""

    groups: Groups

    def linear(self) -> WeightOnlyLinear:
        """See `Quantised`."""
        return self.codes().linear(self.groups.offset, self.groups.perm)

    def codes(self) -> Codes:
        """See `Quantised`."""
        groups = self.groups
        size = groups.group_size if groups.scales.shape[1] > 1 else 0
        packed = kernels.pack_codes(groups.codes, groups.bits)
        scales = groups.scales, groups.zeros, groups.table, size
        return Codes(packed, groups.codes.shape[1], *scales, factored=groups.factored)

    def dequantised(self) -> Tensor:
        """See `Quantised`."""
        return self.groups.dequantised()


@dataclass(frozen=True)
class PackedReader(StoredReader):
    """Reads every format of `Packed` (`formats`)."""

    scheme: Packed

    def read_rows(self, blocks: Sequence[RowBlock], inputs: int) -> list[PackedMatrix]:
        """See `QuantisedReader`. Matrices with different act-orders or groups cannot be stacked into one."""
        runs: list[list[Groups]] = []
        for block in blocks:
            groups = self._block(block, inputs)
            if runs and runs[-1][0].fits(groups):
                runs[-1].append(groups)
            else:
                runs.append([groups])
        return [PackedMatrix(formats.stacked(run)) for run in runs]

    def _block(self, block: RowBlock, inputs: int) -> Groups:
        first, last = block.span
        shard = MatrixShard(self.checkpoint.source, block.name, (block.size, inputs), (first, last), (0, inputs))
        groups = formats.read_groups(shard, self.scheme)
        order = row_order([block], groups.codes.device)
        if order is None and len(block.ranges) == 1:
            return groups
        rows = torch.tensor([row - first for cut in block.ranges for row in range(*cut)], device=groups.codes.device)
        return groups.rows(rows if order is None else rows[order])

    def read_columns(self, name: str, shape: tuple[int, int], columns: tuple[int, int]) -> PackedMatrix:
        """See `QuantisedReader`. With an `input_order`, `columns` are places in it."""
        shard = MatrixShard(self.checkpoint.source, name, shape, (0, shape[0]), columns)
        return PackedMatrix(formats.read_groups(shard, self.scheme))

    def readable(self, name: str, shape: tuple[int, int], columns: tuple[int, int]) -> tuple[int, int]:
        """See `StoredReader`. With act-order, inputs are scattered over the groups: a shard needs every group."""
        whole = (0, shape[1])
        return columns if columns == whole or self.input_order(name, shape) is None else whole

    def ordered_columns(self, name: str, shape: tuple[int, int], columns: tuple[int, int]) -> Single:
        """See `Reader`."""
        return replace(self.read_columns(name, shape, columns).linear(), perm=None)

    def input_order(self, name: str, shape: tuple[int, int]) -> list[int] | None:
        """See `Reader`."""
        order = formats.input_order(MatrixShard.whole(self.checkpoint.source, name, shape), self.scheme)
        return None if order is None else order.tolist()

    def has_codes(self, name: str) -> bool:  # noqa: ARG002 - `Schemes.among` has looked
        """See `Reader`."""
        return True

    def begins_group(self, inputs: int, start: int) -> bool:
        """See `QuantisedReader`."""
        size = self.scheme.group_size
        return not 0 < size < inputs or (size % _GROUP_UNIT == 0 and start % size == 0)

    def quantise(self, weights: Iterable[Tensor]) -> PackedMatrix:
        """See `QuantisedReader`. For a stored format, random weights become codes whose GEMMs take as long."""
        scheme, made = self.scheme, list[Groups]()
        kind = _MADE.get(scheme.format, "int4" if scheme.bits <= 4 else "int8")
        for weight in weights:
            groups = formats.quantise_groups(weight, kind, scheme.group_size)
            zeros = None if scheme.symmetric else torch.full_like(groups.scales, float(2 ** (groups.bits - 1)))
            made.append(replace(groups, zeros=zeros))
        return PackedMatrix(formats.stacked(made))
