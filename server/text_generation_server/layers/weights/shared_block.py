"""Weights of transformer blocks that several layers share, and of their calls."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from ...config.spec import SharedBlockSpec
from .activations import Activations
from .attention import AttentionWeights, load_attention
from .blocks import RowBlock
from .checkpoint import Checkpoint, NormWeights
from .feed_forward import DenseWeights, load_dense
from .linear import Dense, Linear, LinearOver
from .loading import column_parallel
from .per_layer import whole
from .sites import Site
from .split import HeadSplit


@dataclass(frozen=True)
class SharedBlockWeights:
    """What all calls of a block share."""

    attention_norm: NormWeights
    """[2 * hidden]"""
    attention: AttentionWeights
    ffn_norm: NormWeights
    """[hidden]"""
    ffn: DenseWeights


@dataclass(frozen=True)
class CallWeights:
    """What one call has for itself. Low-rank matrices are there where the call adds any."""

    out: Linear
    """From hidden to hidden, whole on every rank, as the first ones of low rank."""
    qkv_down: Linear | None
    """From 2 * hidden to the ranks of queries, keys and values."""
    q_up: Linear | None
    """From its rank to queries of this rank, as the next two."""
    k_up: Linear | None
    v_up: Linear | None
    gate_up_down: Linear | None
    """From hidden to rank."""
    gate_up_up: Linear | None
    """From rank to the inner dimension of this rank, gates first."""


def load_shared_block(checkpoint: Checkpoint, spec: SharedBlockSpec, heads: HeadSplit) -> SharedBlockWeights:
    """Reads a block. `checkpoint` has the names of blocks. Raises ModelFilesError."""
    names, hidden = checkpoint.names, checkpoint.spec.hidden_size
    before, between = (checkpoint.inside(spec.home, name) for name in (names.attention_norm, names.ffn_norm))
    return SharedBlockWeights(
        checkpoint.norm(before, spec.norm, 2 * hidden),
        load_attention(checkpoint, spec.home, spec.attention, heads, 2 * hidden),
        checkpoint.norm(between, spec.norm, hidden),
        load_dense(checkpoint, spec.home, spec.ffn),
    )


def load_call(checkpoint: Checkpoint, layer: int, spec: SharedBlockSpec, block: SharedBlockWeights) -> CallWeights:
    """Reads the call of a block by a layer. `checkpoint` has the names of blocks. Raises ModelFilesError."""
    names, hidden = checkpoint.names, checkpoint.spec.hidden_size
    qkv = [checkpoint.inside(layer, name.format(call=spec.call)) for name in names.call_qkv]
    gate_up = checkpoint.inside(layer, names.call_gate_up.format(call=spec.call))
    low_qkv = _low_rank(checkpoint, qkv, 2 * hidden, spec.attention_rank, block.attention.qkv)
    low_gate_up = _low_rank(checkpoint, [gate_up], hidden, spec.ffn_rank, block.ffn.first)
    return CallWeights(
        whole(checkpoint, checkpoint.inside(layer, names.call_out), hidden, hidden), *low_qkv, *low_gate_up
    )


def _low_rank(
    checkpoint: Checkpoint, names: list[str], inputs: int, rank: int, base: Linear
) -> tuple[Linear | None, ...]:
    """Reads the matrices of low rank beside those that `base` stacks: the first ones stacked, whole on every rank, then
    each second one, whose rows are shared as those of `base`.
    """
    if not rank:
        return (None,) * (1 + len(names))
    if (site := base.site) is None:
        raise ValueError("a matrix with others of low rank beside it comes from no stored matrix")
    first = [RowBlock(f"{name}.0", rank, ((0, rank),)) for name in names]
    second = [replace(block, name=f"{name}.1") for name, block in zip(names, site.blocks, strict=True)]
    return (
        column_parallel(checkpoint, first, inputs, False),
        *(column_parallel(checkpoint, [each], rank, False) for each in second),
    )


class CallLinear(LinearOver):
    """A matrix of a block as one call multiplies by it: under names of the layer that calls, and with matrices of low
    rank beside it, `y = W x + B A x`.
    """

    def __init__(self, base: Linear, site: Site, down: Linear | None, up: Sequence[Linear]) -> None:
        """`down` stacks an A for each B of `up`, whose outputs lie side by side; None: there are none."""
        super().__init__(base)
        self._site = site
        self._down = down
        self._up = up

    @property
    def site(self) -> Site | None:
        """See `Linear`."""
        return self._site

    @property
    def nbytes(self) -> int:
        """The bytes of the matrices of low rank: the other one is the block's."""
        return sum(each.nbytes for each in (self._down, *self._up) if each is not None)

    def apply(self, x: Activations, block: int | None = None) -> Tensor:
        """See `Linear`."""
        return self._with_low_rank(self._base.apply(x, block), x, block)

    def matmul(self, x: Activations, block: int | None = None) -> Tensor:
        """See `Linear`."""
        return self._with_low_rank(self._base.matmul(x, block), x, block)

    def _with_low_rank(self, out: Tensor, x: Activations, block: int | None) -> Tensor:
        if self._down is None:
            return out
        low = self._down.apply(x, block).chunk(len(self._up), dim=1)
        first = 0
        for each, up in zip(low, self._up, strict=True):
            out[:, first : first + up.outputs] += up.apply(Activations(each.contiguous()), block)
            first += up.outputs
        return out


def as_called(block: SharedBlockWeights, call: CallWeights, home: str, layer: str) -> SharedBlockWeights:
    """Returns the weights of a block as a call has them. `home` and `layer` are the starts of names in the layer that
    names the block, and in the one that calls it: adapters of this one change its own call alone.
    """

    def renamed(name: str) -> str:
        return f"{layer}{name.removeprefix(home)}"

    def linear(base: Linear, down: Linear | None = None, *up: Linear | None) -> Linear:
        if (site := base.site) is None:
            return base
        site = replace(site, blocks=tuple(replace(each, name=renamed(each.name)) for each in site.blocks))
        if down is None and isinstance(base, Dense):
            return replace(base, site=site)
        return CallLinear(base, site, down, [each for each in up if each is not None])

    def norm(base: NormWeights) -> NormWeights:
        return (
            base if base.stored is None else replace(base, stored=replace(base.stored, name=renamed(base.stored.name)))
        )

    qkv = linear(block.attention.qkv, call.qkv_down, call.q_up, call.k_up, call.v_up)
    first = linear(block.ffn.first, call.gate_up_down, call.gate_up_up)
    return SharedBlockWeights(
        norm(block.attention_norm),
        replace(block.attention, qkv=qkv, out=linear(block.attention.out)),
        norm(block.ffn_norm),
        replace(block.ffn, first=first, down=linear(block.ffn.down)),
    )
