"""Reader of FP8 and INT8 matrices with their scales; it also quantises 16-bit matrices to them.

They run as W8A8, or as W8A16 where the scheme does not quantise activations or the device has no FP8 instructions.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

import text_generation_kernels as kernels
from text_generation_kernels.norm.quantise_rows import quantise_rows_torch

from ....config.quantisation import BLOCK, Fp8, Int8
from ....errors import ModelFilesError
from ....weights import Slice, WeightSource
from ..activations import ActivationScheme
from ..blocks import RowBlock, row_order
from ..mxfp4 import powers
from ..w8a8 import W8A8Linear
from ..weight_only import WeightOnlyLinear
from .codes import Codes
from .reader import StoredReader

_FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float8_e8m0fnu)
_INPUT_SCALES = ("input_scale", "act_scale", "activation_scale", "qscale_act")
"""Names of the scale of activations: those of tools, then of Transformers and of Mistral."""
_SCALES = ("weight_scale_inv", "qscale_weight", "weight_scale")
"""Names of the scale that multiplies the codes of weights."""
_RANDOM_SCALE = 1 / 16
"""Static scale of activations where weights are random: activations of such models are about 1."""
_ROWS_AT_ONCE = 1024
"""Rows that torch quantises at a time, because it needs float32 copies of them."""


@dataclass(frozen=True)
class W8:
    """A rank's shard of an 8-bit matrix, or of several, stacked."""

    scheme: Fp8 | Int8
    weight: Tensor
    """[outputs, inputs] float8_e4m3fn or int8"""
    scale: Tensor
    """float32 [outputs], or [outputs or ceil(outputs / 128), ceil(inputs / 128)] of blocks, or [outputs, groups]"""
    static: Tensor | None = None
    """[1] float32, the static scale of the activations."""

    def dequantised(self) -> Tensor:
        """See `Quantised`."""
        scales = self.scale_of_rows()
        if self.scale.dim() == 2:
            scales = scales.repeat_interleave(self.group_size, 1)[:, : self.weight.shape[1]]
        return self.weight.float() * scales

    def scale_of_rows(self) -> Tensor:
        """float32 [outputs, groups]"""
        return self.scale[:, None] if self.scale.dim() == 1 else _of_rows(self.scale, self.weight.shape[0])

    @property
    def group_size(self) -> int:
        """Inputs that share a scale; 0: all of them."""
        return self.scheme.group_size

    def linear(self) -> W8A8Linear | WeightOnlyLinear:
        """See `Quantised`: W8A8 where the scheme and the device allow it, else W8A16."""
        scheme = self.scheme
        if scheme.activations != "none" and (isinstance(scheme, Int8) or kernels.has_fp8_gemms(self.weight.device)):
            bound = scheme.bound or 0.0 if isinstance(scheme, Fp8) else 0.0
            wants = ActivationScheme(self.weight.dtype, self.group_size, self.static, bound)
            return W8A8Linear(self.weight, self.scale, wants)
        return self.codes().linear()

    def codes(self) -> Codes:
        """See `Quantised`. The MoE kernels multiply INT8 weights by 16-bit activations, whatever the scheme says."""
        scales, is_w8a8 = self.scale_of_rows(), isinstance(self.scheme, Fp8) and self.scheme.activations != "none"
        group_size = self.group_size if scales.shape[1] > 1 else 0
        # Codes of INT8 have their zero point in the middle.
        codes = self.weight.view(torch.uint8) ^ 128 if self.weight.dtype == torch.int8 else self.weight
        return Codes(codes, self.weight.shape[1], scales, None, None, group_size, is_w8a8)


@dataclass(frozen=True)
class W8Reader(StoredReader):
    """Reads 8-bit weights with scales of the whole matrix, its rows, blocks of 128 x 128 or groups of inputs."""

    scheme: Fp8 | Int8

    def read_rows(self, blocks: Sequence[RowBlock], inputs: int) -> list[W8]:
        """See `QuantisedReader`."""
        source, scheme = self.checkpoint.source, self.scheme
        weights = [_weight(source, block, inputs, scheme) for block in blocks]
        weight = torch.cat([each.view(torch.uint8) for each in weights]).view(weights[0].dtype)
        statics = [_static(source, block.name, scheme) for block in blocks]
        order = row_order(blocks, weight.device)
        on_edges = order is None and _on_edges(blocks)
        scale = torch.cat([self._scales(block, inputs, on_edges) for block in blocks])
        if order is not None:
            weight, scale = weight.view(torch.uint8)[order].view(weight.dtype), scale[order]
        # One GEMM has one static scale: the largest costs resolution alone, and clips nothing.
        static = None if statics[0] is None else torch.stack([each for each in statics if each is not None]).amax(0)
        return [W8(scheme, weight, scale, static)]

    def read_columns(self, name: str, shape: tuple[int, int], columns: tuple[int, int]) -> W8:
        """See `QuantisedReader`."""
        source, (start, stop) = self.checkpoint.source, columns
        weight = source.raw(f"{name}.weight", Slice(1, start, stop), shape, (_dtype(self.scheme),))
        block = RowBlock(name, shape[0], ((0, shape[0]),))
        scale = self._scales(block, shape[1], on_edges=True)
        if size := self.scheme.group_size:
            scale = scale[:, start // size : -(-stop // size)].contiguous()
        return W8(self.scheme, weight, scale, _static(source, name, self.scheme))

    def _scales(self, block: RowBlock, inputs: int, on_edges: bool) -> Tensor:
        """See `W8`. `on_edges`: of blocks of 128 x 128, the rows lie in them as they did in the stored matrix."""
        if self.scheme.weights == "block":
            return _block_scales(self.checkpoint.source, block, inputs, on_edges)
        if self.scheme.weights == "group":
            return _group_scales(self.checkpoint.source, block, inputs, self.scheme.group_size)
        return _row_scales(self.checkpoint.source, block)

    def readable(self, name: str, shape: tuple[int, int], columns: tuple[int, int]) -> tuple[int, int]:  # noqa: ARG002
        """See `StoredReader`: from the edge of a block or group on."""
        (start, stop), size = columns, self.scheme.group_size
        return (start // size * size, stop) if size else columns

    def has_codes(self, name: str) -> bool:
        """See `Reader`. A module without a scale is stored with 16 bits."""
        return self.checkpoint.source.has(_scale_name(self.checkpoint.source, name))

    def begins_group(self, inputs: int, start: int) -> bool:  # noqa: ARG002 - the last may be shorter
        """See `QuantisedReader`."""
        return start % (self.scheme.group_size or 1) == 0

    def quantise(self, weights: Iterable[Tensor]) -> W8:
        """See `QuantisedReader`."""
        made = [quantised(weight, self.scheme) for weight in weights]
        if len(made) == 1:
            return made[0]
        weight = torch.cat([each.weight.view(torch.uint8) for each in made]).view(made[0].weight.dtype)
        scales = [each.scale for each in made]
        if scales[0].dim() == 2 and any(len(each.weight) % BLOCK for each in made[:-1]):
            scales = [each.scale_of_rows() for each in made]
        return W8(self.scheme, weight, torch.cat(scales), made[0].static)


def quantised(weight: Tensor, scheme: Fp8 | Int8) -> W8:
    """Rounds a 16-bit matrix [outputs, inputs] to nearest, with one scale for each row or block."""
    eight = torch.empty(weight.shape, dtype=_dtype(scheme), device=weight.device)
    static = torch.full((1,), _RANDOM_SCALE, device=weight.device) if scheme.activations == "static" else None
    if scheme.weights == "group":
        return _quantised_groups(weight, eight, scheme)
    if scheme.weights != "block":
        scale = torch.empty(weight.shape[0], dtype=torch.float32, device=weight.device)
        _quantise_rows(weight, eight, scale)
        return W8(scheme, eight, scale, static)
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
    return W8(scheme, eight, scale.view(down, across), static)


def _quantised_groups(weight: Tensor, eight: Tensor, scheme: Fp8 | Int8) -> W8:
    size, (outputs, inputs) = scheme.group_size, weight.shape
    groups = torch.nn.functional.pad(weight, (0, -inputs % size)).view(-1, size)
    scale = torch.empty(len(groups), dtype=torch.float32, device=weight.device)
    codes = torch.empty(groups.shape, dtype=eight.dtype, device=weight.device)
    _quantise_rows(groups, codes, scale)
    eight.view(torch.uint8).copy_(codes.view(torch.uint8).view(outputs, -1)[:, :inputs])
    return W8(scheme, eight, scale.view(outputs, -1))


def _quantise_rows(rows: Tensor, codes: Tensor, scale: Tensor) -> None:
    """Quantises rows with `kernels.quantise_rows`, or with torch on GPUs for which Triton has no float8: these store
    FP8 weights too, and compute in 16 bits.
    """
    if codes.dtype != torch.float8_e4m3fn or kernels.has_fp8_gemms(rows.device):
        kernels.quantise_rows(rows, kernels.Quantised(codes, scale))
        return
    for part, *made in zip(*(each.split(_ROWS_AT_ONCE) for each in (rows, codes, scale)), strict=True):
        quantise_rows_torch(part, kernels.Quantised(*made))


def _dtype(scheme: Fp8 | Int8) -> torch.dtype:
    return torch.int8 if isinstance(scheme, Int8) else torch.float8_e4m3fn


def _weight(source: WeightSource, block: RowBlock, inputs: int, scheme: Fp8 | Int8) -> Tensor:
    first, last = block.span
    stored = source.raw(f"{block.name}.weight", Slice(0, first, last), (block.size, inputs), (_dtype(scheme),))
    return _cut(stored, block)


def _cut(rows: Tensor, block: RowBlock) -> Tensor:
    """Selects the rows of the block's ranges among all rows of its span."""
    if len(block.ranges) == 1:
        return rows
    first, _ = block.span
    parts = [rows[start - first : stop - first].view(torch.uint8) for start, stop in block.ranges]
    return torch.cat(parts).view(rows.dtype)


def _scale_name(source: WeightSource, name: str) -> str:
    """Returns the name that is stored, or else the usual one."""
    names = [f"{name}.{scale}" for scale in _SCALES]
    return next((each for each in names if source.has(each)), names[-1])


def _row_scales(source: WeightSource, block: RowBlock) -> Tensor:
    """Reads float32 [rows of the block] from scales of rows, or from the scale of the whole matrix."""
    name = _scale_name(source, block.name)
    shape = source.shape(name)
    if shape in ((), (1,), (1, 1)):
        return _positive(source.raw(name, dtypes=_FLOATS), name).view(1).expand(block.rows)
    if shape not in ((block.size,), (block.size, 1)):
        raise ModelFilesError(f"tensor `{name}` has shape {list(shape)}, which is no scale of {block.size} rows")
    first, last = block.span
    return _cut(_positive(source.raw(name, Slice(0, first, last), dtypes=_FLOATS), name).flatten(), block)


def _block_scales(source: WeightSource, block: RowBlock, inputs: int, whole: bool) -> Tensor:
    """Reads float32 [blocks or rows, ceil(inputs / 128)]. `whole` says that ranges begin and end on edges of blocks."""
    name = _scale_name(source, block.name)
    part = block.part or block.size
    down = -(-part // BLOCK)
    stored = source.raw(name, shape=(block.size // part * down, -(-inputs // BLOCK)), dtypes=_FLOATS)
    scale = _positive(stored, name)
    if whole:
        return torch.cat([scale[start // BLOCK : -(-stop // BLOCK)] for start, stop in block.ranges])
    rows = torch.cat([torch.arange(start, stop, device=scale.device) for start, stop in block.ranges])
    return scale[rows // part * down + rows % part // BLOCK]


def _group_scales(source: WeightSource, block: RowBlock, inputs: int, size: int) -> Tensor:
    """float32 [rows of the block, groups], of exponents of two plus 127."""
    name, (first, last) = _scale_name(source, block.name), block.span
    types = (torch.uint8, torch.float8_e8m0fnu)
    stored = source.raw(name, Slice(0, first, last), (block.size, -(-inputs // size)), types)
    return _cut(_positive(powers(stored.contiguous().view(torch.uint8)), name), block)


def _on_edges(blocks: Sequence[RowBlock]) -> bool:
    """Whether the blocks of 128 rows of the stacked matrix are blocks of the stored ones."""
    if any(block.part % BLOCK for block in blocks):
        return False
    ranges = [each for block in blocks for each in block.ranges]
    starts = all(start % BLOCK == 0 for start, _ in ranges)
    return starts and all((stop - start) % BLOCK == 0 for start, stop in ranges[:-1])


def _of_rows(scale: Tensor, outputs: int) -> Tensor:
    """Expands scales of blocks to one row for each output."""
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
    """Converts scales to float32. Raises ModelFilesError for negative or infinite scales and for NaN."""
    scale = scale.float()
    if not bool((scale.isfinite() & (scale >= 0)).all()):
        raise ModelFilesError(f"tensor `{name}` holds scales that are negative, infinite or not a number")
    return scale
