"""8-bit matrices as checkpoints store them, or made of 16-bit ones, and the variants in which they run."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

import text_generation_kernels as kernels
from text_generation_kernels.norm.quantise_rows import quantise_rows_torch

from ...config.quantisation import BLOCK, Fp8, Int8
from ...errors import ModelFilesError
from ...weights import Slice, WeightSource
from .activations import ActivationScheme
from .blocks import RowBlock, row_order
from .grouped import Grouped
from .rows8 import Rows8

_FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float8_e8m0fnu)
_INPUT_SCALES = ("input_scale", "act_scale", "activation_scale")
"""What tools call it, the last one Transformers."""
_RANDOM_SCALE = 1 / 16
"""Of inputs, where weights are random: activations of such models are about 1."""
_ROWS_AT_ONCE = 1024
"""Rows of which torch has float32 copies at a time, while it quantises them."""


@dataclass(frozen=True)
class Eight:
    """A rank's part of one matrix, or of several on top of each other."""

    weight: Tensor
    """[outputs, inputs] float8_e4m3fn or int8"""
    scale: Tensor
    """float32 [outputs], or [outputs or ceil(outputs / 128), ceil(inputs / 128)] of blocks"""
    static: Tensor | None = None
    """[1] float32, scale of the inputs."""

    def dequantised(self, dtype: torch.dtype) -> Tensor:
        """[outputs, inputs] of a floating type."""
        if self.scale.dim() == 1:
            return (self.weight.float() * self.scale[:, None]).to(dtype)
        rows = _of_rows(self.scale, self.weight.shape[0])
        scales = rows.repeat_interleave(BLOCK, 1)[:, : self.weight.shape[1]]
        return (self.weight.float() * scales).to(dtype)

    def scale_of_rows(self) -> Tensor:
        """float32 [outputs, 1 or ceil(inputs / 128)]"""
        return self.scale[:, None] if self.scale.dim() == 1 else _of_rows(self.scale, self.weight.shape[0])

    def linear(self, scheme: Fp8 | Int8) -> Rows8 | Grouped:
        """In the form in which it runs on its device: by 8-bit inputs, or else by 16-bit ones."""
        if scheme.activations != "none" and (isinstance(scheme, Int8) or kernels.has_fp8_gemms(self.weight.device)):
            group = BLOCK if self.scale.dim() == 2 else 0
            bound = scheme.bound or 0.0 if isinstance(scheme, Fp8) else 0.0
            return Rows8(self.weight, self.scale, ActivationScheme(self.weight.dtype, group, self.static, bound))
        inputs = self.weight.shape[1]
        packed, size = kernels.pack_scales(self.scale_of_rows(), inputs, BLOCK if self.scale.dim() == 2 else 0)
        # Codes of 8 bits have their 0 in the middle.
        codes = self.weight.view(torch.uint8) ^ 128 if self.weight.dtype == torch.int8 else self.weight
        return Grouped(inputs, codes, packed, None, None, None, size)


def read_rows(source: WeightSource, blocks: Sequence[RowBlock], inputs: int, scheme: Fp8 | Int8) -> Eight:
    """Rows of stored matrices, one block on top of the other. Raises ModelFilesError."""
    weights = [_weight(source, block, inputs, scheme) for block in blocks]
    weight = torch.cat([each.view(torch.uint8) for each in weights]).view(weights[0].dtype)
    statics = [_static(source, block.name, scheme) for block in blocks]
    order = row_order(blocks, weight.device)
    if scheme.weights == "block":
        whole = order is None and _on_edges(blocks)
        scale = torch.cat([_block_scales(source, block, inputs, whole) for block in blocks])
    else:
        scale = torch.cat([_row_scales(source, block) for block in blocks])
    if order is not None:
        weight, scale = weight.view(torch.uint8)[order].view(weight.dtype), scale[order]
    # One product has one scale of its inputs: the largest loses nothing but resolution.
    static = None if statics[0] is None else torch.stack([each for each in statics if each is not None]).amax(0)
    return Eight(weight, scale, static)


def read_columns(
    source: WeightSource, name: str, shape: tuple[int, int], columns: tuple[int, int], scheme: Fp8 | Int8
) -> Eight:
    """Input columns of a stored matrix [outputs, inputs]. Where blocks have scales they must begin with one. Raises
    ModelFilesError.
    """
    start, stop = columns
    stored = f"{name}.weight"
    weight = source.raw(stored, Slice(1, start, stop), shape, (_dtype(scheme),))
    block = RowBlock(name, shape[0], ((0, shape[0]),))
    if scheme.weights == "block":
        scale = _block_scales(source, block, shape[1], True)[:, start // BLOCK : -(-stop // BLOCK)].contiguous()
    else:
        scale = _row_scales(source, block)
    return Eight(weight, scale, _static(source, name, scheme))


def quantise_weight(weight: Tensor, scheme: Fp8 | Int8) -> Eight:
    """Makes it of a 16-bit matrix [outputs, inputs], by rounding to the nearest; a row, or a block, has one scale."""
    eight = torch.empty(weight.shape, dtype=_dtype(scheme), device=weight.device)
    static = torch.full((1,), _RANDOM_SCALE, device=weight.device) if scheme.activations == "static" else None
    if scheme.weights != "block":
        scale = torch.empty(weight.shape[0], dtype=torch.float32, device=weight.device)
        _quantise_rows(weight, eight, scale)
        return Eight(eight, scale, static)
    outputs, inputs = weight.shape
    down, across = -(-outputs // BLOCK), -(-inputs // BLOCK)
    # A block becomes one row of 128 x 128 numbers.
    padded = torch.nn.functional.pad(weight, (0, across * BLOCK - inputs, 0, down * BLOCK - outputs))
    tiles = padded.view(down, BLOCK, across, BLOCK).transpose(1, 2).reshape(down * across, BLOCK * BLOCK)
    scale = torch.empty(len(tiles), dtype=torch.float32, device=weight.device)
    codes = torch.empty(tiles.shape, dtype=eight.dtype, device=weight.device)
    _quantise_rows(tiles, codes, scale)
    whole = codes.view(torch.uint8).view(down, across, BLOCK, BLOCK).transpose(1, 2).reshape(padded.shape)
    eight = whole[:outputs, :inputs].contiguous().view(eight.dtype)
    return Eight(eight, scale.view(down, across), static)


def _quantise_rows(rows: Tensor, codes: Tensor, scale: Tensor) -> None:
    """`kernels.quantise_rows`, and torch on cards for which Triton has no float8: they keep weights so all the same."""
    if codes.dtype != torch.float8_e4m3fn or kernels.has_fp8_gemms(rows.device):
        kernels.quantise_rows(rows, codes, scale)
        return
    for part in zip(*(each.split(_ROWS_AT_ONCE) for each in (rows, codes, scale)), strict=True):
        quantise_rows_torch(*part)


def stacked(parts: Sequence[Eight]) -> Eight:
    """One matrix of several: the outputs of the first come first."""
    if len(parts) == 1:
        return parts[0]
    weight = torch.cat([part.weight.view(torch.uint8) for part in parts]).view(parts[0].weight.dtype)
    scales = [part.scale for part in parts]
    if scales[0].dim() == 2 and any(len(part.weight) % BLOCK for part in parts[:-1]):
        scales = [_of_rows(part.scale, len(part.weight)) for part in parts]
    return Eight(weight, torch.cat(scales), parts[0].static)


def has_scale(source: WeightSource, name: str) -> bool:
    """Whether a module has a scale of its weights, without which it is stored with 16 bits."""
    return source.has(_scale_name(source, name))


def _dtype(scheme: Fp8 | Int8) -> torch.dtype:
    return torch.int8 if isinstance(scheme, Int8) else torch.float8_e4m3fn


def _weight(source: WeightSource, block: RowBlock, inputs: int, scheme: Fp8 | Int8) -> Tensor:
    first, last = block.span
    stored = source.raw(f"{block.name}.weight", Slice(0, first, last), (block.size, inputs), (_dtype(scheme),))
    return _cut(stored, block)


def _cut(rows: Tensor, block: RowBlock) -> Tensor:
    """Those of the ranges, of all rows of the span."""
    if len(block.ranges) == 1:
        return rows
    first, _ = block.span
    parts = [rows[start - first : stop - first].view(torch.uint8) for start, stop in block.ranges]
    return torch.cat(parts).view(rows.dtype)


def _scale_name(source: WeightSource, name: str) -> str:
    """Both names mean what weights are multiplied by."""
    inverse = f"{name}.weight_scale_inv"
    return inverse if source.has(inverse) else f"{name}.weight_scale"


def _row_scales(source: WeightSource, block: RowBlock) -> Tensor:
    """float32 [rows of the block], of scales of rows or of the whole matrix."""
    name = _scale_name(source, block.name)
    shape = source.shape(name)
    if shape in ((), (1,), (1, 1)):
        return _positive(source.raw(name, dtypes=_FLOATS), name).view(1).expand(block.rows)
    if shape not in ((block.size,), (block.size, 1)):
        raise ModelFilesError(f"tensor `{name}` has shape {list(shape)}, which is no scale of {block.size} rows")
    first, last = block.span
    return _cut(_positive(source.raw(name, Slice(0, first, last), dtypes=_FLOATS), name).flatten(), block)


def _block_scales(source: WeightSource, block: RowBlock, inputs: int, whole: bool) -> Tensor:
    """float32 [blocks or rows, ceil(inputs / 128)]; `whole`: ranges begin and end on edges of blocks."""
    name = _scale_name(source, block.name)
    stored = source.raw(name, shape=(-(-block.size // BLOCK), -(-inputs // BLOCK)), dtypes=_FLOATS)
    scale = _positive(stored, name)
    if whole:
        return torch.cat([scale[start // BLOCK : -(-stop // BLOCK)] for start, stop in block.ranges])
    rows = torch.cat([torch.arange(start, stop, device=scale.device) for start, stop in block.ranges])
    return scale[rows // BLOCK]


def _on_edges(blocks: Sequence[RowBlock]) -> bool:
    """Whether rows of a stacked matrix lie in its blocks of 128 as they did in the stored ones."""
    ranges = [each for block in blocks for each in block.ranges]
    starts = all(start % BLOCK == 0 for start, _ in ranges)
    return starts and all((stop - start) % BLOCK == 0 for start, stop in ranges[:-1])


def _of_rows(scale: Tensor, outputs: int) -> Tensor:
    """A scale of blocks with a row for each output."""
    return scale if scale.shape[0] == outputs else scale.repeat_interleave(BLOCK, 0)[:outputs]


def _static(source: WeightSource, name: str, scheme: Fp8 | Int8) -> Tensor | None:
    if scheme.activations != "static":
        return None
    names = [f"{name}.{each}" for each in _INPUT_SCALES]
    found = next((each for each in names if source.has(each)), names[0])
    scale = _positive(source.raw(found, dtypes=_FLOATS), found).flatten()
    if not len(scale) or not bool((scale > 0).all()):
        raise ModelFilesError(f"tensor `{found}` holds {scale.tolist()[:3]}, and inputs need a scale above 0")
    return scale.amax().view(1)


def _positive(scale: Tensor, name: str) -> Tensor:
    """As float32. Raises ModelFilesError for numbers that scale nothing."""
    scale = scale.float()
    if not bool((scale.isfinite() & (scale >= 0)).all()):
        raise ModelFilesError(f"tensor `{name}` holds scales that are negative, infinite or not a number")
    return scale
