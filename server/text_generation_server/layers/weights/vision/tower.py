"""Reading of vision towers."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from ....config.vision import BlockSpec, TowerSpec
from ..checkpoint import NormWeights
from .reading import Reader
from .records import Affine, BlockWeights, PatchWeights

_ALIGNED = 64
"""Inner sizes are padded to a multiple of this: GEMMs whose rows do not begin at multiples of 16 bytes, such as those
of 3,420 elements in Qwen 2.5 VL, are three times slower. Every activation of zero is zero, and meets zeros.
"""


@dataclass(frozen=True)
class TowerReader(Reader):
    """Reads what stands before the blocks, and the blocks."""

    def patches(self, tower: TowerSpec) -> PatchWeights:
        """Reads what stands before the blocks. The frames of a patch are equal, so their matrices are added up."""
        names, hidden = self.names, tower.hidden
        frames = (tower.frames,) if tower.frames > 1 else ()
        name = f"{self.prefix}{names.patch}"
        if names.patch_layout != "convolution":
            stored = self.source.read(f"{name}.weight", (hidden, tower.patch * tower.patch * 3))
            if names.patch_layout == "channels last":
                stored = stored.unflatten(1, (tower.patch * tower.patch, 3)).transpose(1, 2).contiguous()
        else:
            stored = self.source.read(f"{name}.weight", (hidden, 3, *frames, tower.patch, tower.patch))
        if frames:
            stored = stored.to(torch.float32).sum(2).to(stored.dtype)
        bias = self.source.read(f"{name}.bias", (hidden,)) if tower.patch_bias else None
        token = self._row(names.class_token, (hidden,)) if tower.class_token else None
        positions = None
        if tower.positions is not None:
            rows = tower.positions.rows + (1 if tower.class_token else 0)
            side = tower.positions.side
            shape = (rows // side, side, hidden) if names.positions_in_rows else (rows, hidden)
            positions = self._row(names.positions, shape).reshape(rows, hidden)
            positions = positions.roll(1, 0) if names.class_last else positions
        patch_norm = self.norm(f"{self.prefix}{names.patch_norm}", tower.patch_norm, hidden)
        first_norm = self.norm(f"{self.prefix}{names.first_norm}", tower.first_norm, hidden)
        return PatchWeights(Affine(stored.reshape(hidden, -1), bias), token, positions, patch_norm, first_norm)

    def _row(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Reads a tensor that some classes store with dimensions of one element in front."""
        name = f"{self.prefix}{name}"
        dimensions = self.names.dimensions
        return self.source.read(name, (*(1,) * (dimensions - len(shape)), *shape)).reshape(shape)

    def block(self, index: int, tower: TowerSpec) -> BlockWeights:
        """Reads block `index`."""
        names, spec, hidden = self.names, tower.block, tower.hidden
        inside = f"{self.prefix}{names.block.format(index)}"
        width = spec.heads * spec.head_dim
        norms = tuple(self.present(f"{inside}{name}", spec.norm, hidden) for name in names.norms)
        scales = tuple(self.source.read(f"{inside}{name}", (hidden,)) for name in names.scales) if spec.scaled else ()
        first, second = self._feed_forward(inside, spec, hidden)
        return BlockWeights(
            norms=(norms[0], norms[1]),
            qkv=self._qkv(inside, tower),
            qk_norms=self._qk_norms(inside, tower, width),
            out=self.stacked([f"{inside}{names.out}"], hidden, width, spec.out_bias, spec.clipped),
            first=first,
            second=second,
            scales=(scales[0], scales[1]) if scales else None,
            output_norms=self._output_norms(inside, spec, hidden),
        )

    def _feed_forward(self, inside: str, spec: BlockSpec, hidden: int) -> tuple[Affine, Affine]:
        names, parts = [f"{inside}{name}" for name in self.names.first], 2 if spec.gated else 1
        first = self.stacked(names, spec.inner * parts, hidden, spec.ffn_bias, spec.clipped)
        second = self.stacked([f"{inside}{self.names.second}"], hidden, spec.inner, spec.ffn_bias, spec.clipped)
        more = -spec.inner % _ALIGNED
        if not more or spec.clipped:
            return first, second
        bias = None if first.bias is None else _padded(first.bias, parts, more)
        return Affine(_padded(first.weight, parts, more), bias), Affine(pad(second.weight, (0, more)), second.bias)

    def _qkv(self, inside: str, tower: TowerSpec) -> Affine:
        """Reads queries, keys and values. Elements of a head that are rotated together move half a head apart."""
        spec = tower.block
        names = [f"{inside}{name}" for name in self.names.qkv]
        qkv = self.stacked(names, 3 * spec.heads * spec.head_dim, tower.hidden, spec.qkv_bias, spec.clipped)
        of_head = _halves_apart(tower)
        if of_head is None and not self.names.qkv_by_head:
            return qkv
        each = torch.arange(3 * spec.heads * spec.head_dim)
        if self.names.qkv_by_head:
            each = each.view(spec.heads, 3, spec.head_dim).transpose(0, 1)
        each = each.reshape(3, spec.heads, spec.head_dim)
        qk = each[:2] if of_head is None else each[:2, :, of_head]
        order = torch.cat([qk.flatten(), each[2].flatten()]).to(qkv.weight.device)
        return Affine(qkv.weight[order], None if qkv.bias is None else qkv.bias[order], qkv.bounds)

    def _qk_norms(self, inside: str, tower: TowerSpec, width: int) -> tuple[NormWeights, NormWeights] | None:
        spec = tower.block
        if (norm := spec.qk_norm) is None:
            return None
        size = spec.head_dim if spec.qk_norm_by_head else width
        q, k = (self.present(f"{inside}{name}", norm, size) for name in self.names.qk_norms)
        if (of_head := _halves_apart(tower)) is None or not spec.qk_norm_by_head:
            return q, k
        return NormWeights(q.weight[of_head], q.bias), NormWeights(k.weight[of_head], k.bias)

    def _output_norms(self, inside: str, spec: BlockSpec, hidden: int) -> tuple[NormWeights, NormWeights] | None:
        if not spec.output_norms:
            return None
        first, second = (self.present(f"{inside}{name}", spec.norm, hidden) for name in self.names.output_norms)
        return first, second


def _padded(stored: Tensor, parts: int, more: int) -> Tensor:
    """Puts `more` zeros below each of so many parts of a matrix or vector."""
    rows = (0, 0) * (stored.dim() - 1)
    return torch.cat([pad(part, (*rows, 0, more)) for part in stored.chunk(parts)])


def _halves_apart(tower: TowerSpec) -> Tensor | None:
    """The stored elements of a head in the order in which those that are rotated together are half a head apart; None:
    they are.
    """
    each = torch.arange(tower.block.head_dim)
    if tower.rope is not None and tower.rope.order in ("neighbours", "neighbours by half"):
        return each.view(-1, 2).t().flatten()
    if tower.rope is not None and tower.rope.order == "quarters":
        return each.view(2, 2, -1).transpose(0, 1).flatten()
    if tower.rope is not None and tower.rope.order == "thirds":
        rotated, rest = each.split([6 * tower.rope.third(len(each)), len(each) % 6])
        return torch.cat([half for both in zip(rotated.chunk(2), rest.chunk(2), strict=True) for half in both])
    return None
