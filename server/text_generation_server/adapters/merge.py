"""Weights with an adapter merged into them, for layers that read them by name: permuted, cut or quantised afterwards,
they come out right.
"""

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

import torch
from torch import Tensor

from ..errors import AdapterError
from ..weights import SafetensorsSource, Slice, WeightSource
from .base import BaseModel
from .delta import Delta, ExpertDeltas, Replaced, Span, TokenRows
from .read import Adapter

_FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


class MergedSource(WeightSource):
    """The tensors of a model's files, changed by an adapter as they are read. A slice needs the memory of that slice,
    and DoRA reads the rows that a slice divides once more.
    """

    def __init__(self, files: SafetensorsSource, adapter: Adapter, aliases: Mapping[str, str]) -> None:
        """`aliases` has the stored name of tensors that are read under another one. Raises AdapterError for changed
        tensors that are stored quantised.
        """
        self._files = files
        self._adapter = adapter
        self._aliases = aliases
        self._unread = set(adapter.changes)
        for name in adapter.changes:
            if not files.is_plain(self._stored(name)):
                raise AdapterError(
                    f"{adapter.path} changes `{name}`, which is not stored in 16 or 32 bits: an adapter is merged into "
                    "unquantised checkpoints only; use that of this model, with --quantize fp8 or another format"
                )

    def read(
        self, name: str, shape: tuple[int, ...], part: Slice | None = None, dtype: torch.dtype | None = None
    ) -> Tensor:
        """See `WeightSource`."""
        change, bias = self._adapter.changes.get(name), self._bias(name)
        self._unread.discard(name)
        if change is None and bias is None:
            return self._files.read(self._stored(name), shape, part, dtype)
        wanted, cut = dtype or self._files.dtype, None if part is None else (part.dim, (part.start, part.stop))
        weight = self._unchanged(name, shape, part, wanted)
        if isinstance(change, Delta):
            change.merge_(weight, cut, lambda start, stop: self._rows(name, change, start, stop))
        elif isinstance(change, ExpertDeltas):
            if part is not None and part.entry is not None:
                change.experts[part.entry].merge_(weight, cut)
            else:
                _merge_experts(change, weight, cut)
        elif isinstance(change, TokenRows):
            change.write_(weight, cut)
        if bias is not None:
            weight += bias if part is None else bias[part.start : part.stop]
        return self._files.noted(name, weight.to(wanted))

    def raw(
        self,
        name: str,
        part: Slice | None = None,
        shape: tuple[int, ...] | None = None,
        dtypes: Sequence[torch.dtype] = (),
    ) -> Tensor:
        """See `WeightSource`; only quantised tensors are read so, which no adapter is merged into."""
        return self._files.raw(name, part, shape, dtypes)

    def shape(self, name: str) -> tuple[int, ...]:
        """See `WeightSource`."""
        return self._files.shape(self._stored(name))

    def empty(self, shape: tuple[int, ...]) -> Tensor:
        """See `WeightSource`."""
        return self._files.empty(shape)

    def has(self, name: str) -> bool:
        """See `WeightSource`."""
        return self._files.has(self._stored(name))

    def names(self) -> list[str]:
        """See `WeightSource`."""
        return self._files.names()

    def check_read(self, ignored: Sequence[str]) -> None:
        """Raises AdapterError for changed tensors that the model has not read, but for names that match the patterns
        `ignored`.
        """
        left = sorted(name for name in self._unread if not any(fnmatchcase(name, pattern) for pattern in ignored))
        if left:
            raise AdapterError(
                f"{self._adapter.path} changes {len(left)} tensors that are not computed for this model, such as "
                f"`{left[0]}`: train it without them"
            )

    def _stored(self, name: str) -> str:
        return self._aliases.get(name, name)

    def _bias(self, name: str) -> Tensor | None:
        """What `lora_bias` adds to the bias `name`."""
        if not name.endswith(".bias"):
            return None
        delta = self._adapter.changes.get(f"{name.removesuffix('.bias')}.weight")
        if not isinstance(delta, Delta) or delta.bias is None:
            return None
        return (delta.bias.float() * delta.scale).to(self._files.empty((0,)).device)

    def _unchanged(self, name: str, shape: tuple[int, ...], part: Slice | None, wanted: torch.dtype) -> Tensor:
        """Reads a tensor that may be written to, in the type `wanted` or in float32 where it is stored in another."""
        change = self._adapter.changes.get(name)
        whole = change.tensor if isinstance(change, Replaced) else change.base if isinstance(change, Delta) else None
        if whole is None:
            weight = self._files.raw(self._stored(name), part, shape, _FLOATS)
        else:
            device = self._files.empty((0,)).device
            weight = (whole if part is None else _narrow(whole, part)).to(device, copy=True)
        return weight if weight.dtype == wanted else weight.float()

    def _rows(self, name: str, delta: Delta, start: int, stop: int) -> Tensor:
        """Reads rows of the matrix as it was before the change."""
        part = Slice(1 if delta.transposed else 0, start, stop)
        if delta.base is not None:
            rows = _narrow(delta.base, part).to(self._files.empty((0,)).device)
        else:
            rows = self._files.raw(self._stored(name), part)
        return rows.t() if delta.transposed else rows


def _merge_experts(change: ExpertDeltas, weight: Tensor, cut: tuple[int, Span] | None) -> None:
    """Changes in place what was read of a tensor of all experts: some of them, or a slice of each."""
    first = cut[1][0] if cut is not None and cut[0] == 0 else 0
    inside = None if cut is None or cut[0] == 0 else (cut[0] - 1, cut[1])
    for place, matrix in enumerate(weight):
        change.experts[first + place].merge_(matrix, inside)


def _narrow(tensor: Tensor, part: Slice) -> Tensor:
    return tensor.narrow(part.dim, part.start, part.stop - part.start)


def untied_aliases(adapter: Adapter, base: BaseModel) -> dict[str, str] | None:
    """Returns under which name the head is read of a model whose head is its embedding, where the adapter makes two
    tensors of them. New rows of tokens are those of both. None: they stay one.
    """
    decoder = base.decoder
    if decoder is None or not decoder.spec.head.tied:
        return None
    head, embedding = f"{decoder.head}.weight", f"{decoder.embedding}.weight"
    change = adapter.changes.get(embedding)
    if head not in adapter.changes and (change is None or isinstance(change, TokenRows)):
        return None
    return {head: embedding}
