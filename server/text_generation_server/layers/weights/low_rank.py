"""What an adapter adds to a linear layer of this rank, whatever the format of its matrix: `c * (y + B (s A x)) + b`,
in rank pages.

B's rows go through the same row blocks as those of W (tensor-parallel shards, the order of RoPE, repeated heads), A's
columns through the same column cuts (shards, act-order). A layer that stacks several stored matrices has an A for each.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from ...adapters import Change, Delta, Replaced
from ...errors import AdapterError
from .blocks import RowBlock
from .checkpoint import Matrices
from .readers import reader_of
from .sites import Site


@dataclass(frozen=True)
class LowRankPages:
    """The factors of one adapter on one layer. Units behind the rank are zeros, as are parts without a change."""

    a: Tensor
    """[pages, parts, units, inputs]; no pages, where the adapter changes the bias alone."""
    b: Tensor
    """[pages, outputs, units]; which output is of which part, `Site.ranges` says."""
    scales: Tensor
    """[parts] float32"""
    row_factors: Tensor | None
    """[outputs] float32, what DoRA multiplies the outputs by before the bias."""
    bias: Tensor | None
    """[outputs] float32, what is added to the bias."""


def low_rank_pages(
    checkpoint: Matrices,
    site: Site,
    changes: Mapping[str, Change],
    units: int,
    pages: int | None = None,
    base_bias: Tensor | None = None,
) -> LowRankPages | None:
    """Returns the factors of a layer in pages of `units` rank units, in the model's type and on its device; None: the
    adapter changes nothing of it. `pages`: how many at least, where other layers have more. `base_bias` [outputs] is
    the bias of the layer, if it has one. Raises AdapterError for factors of another size, and ModelFilesError.
    """
    found = {block.name: _delta(changes, block, site.inputs) for block in site.blocks}
    deltas = {name: delta for name, delta in found.items() if delta is not None}
    like = checkpoint.source.empty((0,))
    bias = _bias(site, changes, deltas, base_bias, like.device)
    if not deltas and bias is None:
        return None
    width = 0
    if deltas:
        width = max(-(-max(delta.rank for delta in deltas.values()) // units), pages or 0) * units
    a = like.new_zeros((len(site.modules), width, site.own_inputs))
    for part, name in enumerate(site.modules):
        if (delta := deltas.get(name)) is not None:
            a[part, : delta.rank] = site.columns_of(delta.a.to(like.device))
    b = site.rows_of(_padded(deltas.get(block.name), block, width, like) for block in site.blocks)
    scales = [deltas[name].scale if name in deltas else 0.0 for name in site.modules]
    return LowRankPages(
        a.unflatten(1, (width // units, units)).transpose(0, 1).contiguous(),
        b.unflatten(1, (width // units, units)).transpose(0, 1).contiguous(),
        torch.tensor(scales, device=like.device),
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


def _padded(delta: Delta | None, block: RowBlock, width: int, like: Tensor) -> Tensor:
    """Returns B [rows of the stored matrix, width]."""
    if delta is None:
        return like.new_zeros((block.size, width))
    return functional.pad(delta.b.to(like), (0, width - delta.rank))


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
