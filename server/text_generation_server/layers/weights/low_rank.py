"""What an adapter adds to a linear layer of this rank, whatever the format of its matrix: `c * (y + B (s A x)) + b`,
in rank pages.

B's rows go through the same row blocks as those of W (tensor-parallel shards, the order of RoPE, repeated heads), A's
columns through the same column cuts (shards, act-order). A layer that stacks several stored matrices has an A for each.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from ...adapters import Change, Delta, Replaced
from ...errors import AdapterError
from .blocks import RowBlock, row_order
from .checkpoint import Matrices
from .readers import reader_of
from .sites import Site

_INTEGERS = {2: torch.int16, 4: torch.int32}


@dataclass(frozen=True)
class LowRankPages:
    """The factors of one adapter on one layer, in the model's type, to be written page by page: views of what was read
    of the adapter, wherever that is possible. Units behind the rank are zeros, as are parts without a change.
    """

    site: Site
    a: tuple[Tensor | None, ...]
    """Of each part [rank, inputs of this rank]."""
    b: Mapping[str, Tensor]
    """By module [rows of the stored matrix, rank]; none, where the adapter changes the bias alone."""
    scales: tuple[float, ...]
    """Of each part."""
    converted: Sequence[Tensor]
    """Of `a` and `b`, those whose numbers were read in another type, or scaled."""
    row_factors: Tensor | None
    """[outputs] float32, what DoRA multiplies the outputs by before the bias."""
    bias: Tensor | None
    """[outputs] float32, what is added to the bias."""

    @property
    def rank(self) -> int:
        """The highest of its parts."""
        return max((len(each) for each in self.a if each is not None), default=0)

    def write_a(self, first: int, out: NDArray[Any]) -> None:
        """Writes A of the rank units from `first` on, as `raw` numbers: [parts, units, inputs]."""
        for a, part in zip(self.a, out, strict=True):
            units = 0 if a is None else _units(len(a), first, len(part))
            if a is not None and units:
                part[:units] = raw(a[first : first + units])
            part[units:] = 0

    def write_b(self, first: int, out: NDArray[Any]) -> None:
        """Writes B of these units: [outputs, units]. Which output is of which part, `Site.ranges` says."""
        row = 0
        for block in self.site.blocks:
            b = self.b.get(block.name)
            units = 0 if b is None else _units(b.shape[1], first, out.shape[1])
            values = None if b is None else raw(b)[:, first : first + units]
            for start, stop in block.ranges:
                rows = out[row : row + stop - start]
                if values is not None and units:
                    rows[:, :units] = values[start:stop]
                rows[:, units:] = 0
                row += stop - start
        out[row:] = 0
        if (order := row_order(self.site.blocks, torch.device("cpu"))) is not None:
            out[:row] = out[order.numpy()]


def raw(tensor: Tensor) -> NDArray[Any]:
    """Returns the numbers of a tensor of the host, of 2 or 4 bytes, as integers of that size. NumPy copies them in the
    thread that asks, where torch begins threads of its own.
    """
    return tensor.detach().view(_INTEGERS[tensor.dtype.itemsize]).numpy()


def _units(rank: int, first: int, most: int) -> int:
    return min(max(rank - first, 0), most)


def low_rank_pages(
    checkpoint: Matrices,
    site: Site,
    changes: Mapping[str, Change],
    base_bias: Tensor | None = None,
) -> LowRankPages | None:
    """Returns the factors of a layer; None: the adapter changes nothing of it. `base_bias` [outputs] is the bias of the
    layer, if it has one. Raises AdapterError for factors of another size, and ModelFilesError.
    """
    found = {block.name: _delta(changes, block, site.inputs) for block in site.blocks}
    deltas = {name: delta for name, delta in found.items() if delta is not None}
    like = checkpoint.source.empty((0,))
    bias = _bias(site, changes, deltas, base_bias, like.device)
    if not deltas and bias is None:
        return None
    a = {name: site.columns_of(delta.a.to(like.device)).to(like.dtype) for name, delta in deltas.items()}
    b = {name: delta.b.to(like) for name, delta in deltas.items()}
    is_scaled = site.input_scales is not None
    converted = [a[name] for name, delta in deltas.items() if is_scaled or delta.a.dtype != like.dtype]
    converted += [b[name] for name, delta in deltas.items() if delta.b.dtype != like.dtype]
    return LowRankPages(
        site,
        tuple(a.get(name) for name in site.modules) if deltas else (),
        b,
        tuple(deltas[name].scale if name in deltas else 0.0 for name in site.modules),
        converted,
        _row_factors(checkpoint, site, deltas),
        bias,
    )


def changed_of(site: Site, changes: Mapping[str, Change], has_bias: bool) -> set[str]:
    """Returns the tensors among `changes` that `low_rank_pages` takes. `has_bias`: whether the layer adds a bias on
    some rank.
    """
    weights = {f"{name}.weight" for name in site.modules if isinstance(changes.get(f"{name}.weight"), Delta)}
    biases = {f"{name}.bias" for name in site.modules if isinstance(changes.get(f"{name}.bias"), Replaced)}
    return weights | (biases if has_bias else set[str]())


def _delta(changes: Mapping[str, Change], block: RowBlock, inputs: int) -> Delta | None:
    change = changes.get(f"{block.name}.weight")
    if not isinstance(change, Delta):
        return None
    found = change.b.shape[0], change.a.shape[1]
    # Of a quantised matrix, the reader of the adapter does not know the shape.
    if found != (block.size, inputs):
        raise AdapterError(
            f"the adapter has factors of a matrix {list(found)}, but `{block.name}` of the model is "
            f"{[block.size, inputs]}: it is of another model"
        )
    return change


def _row_factors(checkpoint: Matrices, site: Site, deltas: Mapping[str, Delta]) -> Tensor | None:
    if all(delta.magnitude is None for delta in deltas.values()):
        return None
    if site.input_scales is not None:
        raise AdapterError(
            f"DoRA of `{site.modules[0]}` needs its plain weight, which AWQ has scaled: quantise it otherwise"
        )
    made = {name: _factors_of(checkpoint, site, name, delta) for name, delta in deltas.items()}
    device = checkpoint.source.empty((0,)).device
    return site.rows_of(
        (
            each if (each := made.get(block.name)) is not None else torch.ones(block.size, device=device)
            for block in site.blocks
        ),
        fill=1.0,
    )


def _factors_of(checkpoint: Matrices, site: Site, name: str, delta: Delta) -> Tensor | None:
    """Returns the factors of all rows of a stored matrix, which is read once more, dequantised, some rows at a time."""
    stored, size = site.stored_as or name, delta.b.shape[0]
    reader = reader_of(checkpoint, stored)
    return delta.row_factors(
        lambda start, stop: reader.dense_rows(RowBlock(stored, size, ((start, stop),)), site.inputs)
    )


def _bias(
    site: Site,
    changes: Mapping[str, Change],
    deltas: Mapping[str, Delta],
    base: Tensor | None,
    device: torch.device,
) -> Tensor | None:
    """[outputs] float32, what is added to the bias: s times that of the factors, and the difference to a new bias."""
    replaced = {block.name: changes.get(f"{block.name}.bias") for block in site.blocks}
    is_changed = any(isinstance(each, Replaced) for each in replaced.values())
    if not site.adds_bias or not (is_changed or any(delta.bias is not None for delta in deltas.values())):
        return None

    def of(block: RowBlock) -> Tensor:
        new, delta = replaced[block.name], deltas.get(block.name)
        bias = torch.zeros(block.size, device=device)
        if isinstance(new, Replaced):
            bias += new.tensor.to(device)
        if delta is not None and delta.bias is not None:
            bias += delta.bias.to(device).float() * delta.scale
        return bias

    bias = site.rows_of(of(block) for block in site.blocks)
    if is_changed and base is not None:
        is_new = [isinstance(replaced[block.name], Replaced) for block in site.blocks]
        ones = (
            torch.full((block.size,), float(new), device=device) for block, new in zip(site.blocks, is_new, strict=True)
        )
        bias -= site.rows_of(ones) * base.float()
    return bias
