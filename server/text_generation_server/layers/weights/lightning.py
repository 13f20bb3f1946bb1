"""Weights of lightning attention. Each rank has some of the heads."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from text_generation_kernels import SpaceDynamics

from ...config.recurrent import LightningSpec
from ...weights import Slice
from ..rope import rotary_order
from .blocks import RowBlock, ranges
from .checkpoint import Checkpoint
from .linear import Linear
from .loading import column_parallel, row_parallel
from .split import HeadSplit


@dataclass(frozen=True)
class LightningWeights:
    """The weights of one layer. Elements of queries and keys are in the order of `rotary_order`."""

    first: Linear
    """Column parallel: queries, keys and values of this rank's heads, then their gates, an element each."""
    dynamics: SpaceDynamics
    """How the states of this rank's heads decay, where keys are what writes a state space, queries what reads it, and
    values its input. The time step is the softmax scale."""
    q_norm: Tensor | None
    """[head_dim], as the next one."""
    k_norm: Tensor | None
    norm: Tensor
    """[groups of this rank, channels of one of them that this rank has]"""
    out: Linear
    """Row parallel."""


def load_lightning(checkpoint: Checkpoint, layer: int, spec: LightningSpec, heads: HeadSplit) -> LightningWeights:
    """Reads the heads of this rank. Raises ModelFilesError."""
    names, source, hidden = checkpoint.names, checkpoint.source, checkpoint.spec.hidden_size
    size, width = spec.head_dim, spec.num_heads * spec.head_dim
    held = range(heads.q_start, heads.q_stop)
    mine = heads.q_start * size, heads.q_stop * size
    order = list(range(size)) if spec.rope is None else rotary_order(spec.rope, size)
    gates = RowBlock(checkpoint.inside(layer, names.lightning_gate), width, (mine,))
    blocks = [*_qkv_blocks(checkpoint, layer, spec, held, order), gates]
    q_norm, k_norm = None, None
    if spec.qk_norm_eps is not None:
        whole = (f"{checkpoint.inside(layer, name)}.weight" for name in (names.q_norm, names.k_norm))
        q_norm, k_norm = (source.read(name, (size,))[order] for name in whole)
    norm = source.read(f"{checkpoint.inside(layer, names.lightning_norm)}.weight", (width,), Slice(0, *mine))
    return LightningWeights(
        column_parallel(checkpoint, blocks, hidden, False),
        _dynamics(spec, held, norm.device),
        q_norm,
        k_norm,
        norm.view(max(1, spec.norm_groups // checkpoint.group.world_size), -1),
        row_parallel(checkpoint, checkpoint.inside(layer, names.lightning_out), (hidden, width), mine, False),
    )


def _qkv_blocks(
    checkpoint: Checkpoint, layer: int, spec: LightningSpec, held: Sequence[int], order: list[int]
) -> list[RowBlock]:
    """Returns where the rows of the heads `held` are stored, with queries and keys in `order`."""
    names, count = checkpoint.names, spec.num_heads
    is_mixed = names.lightning_layout == "groups"
    q, k, v = ([3 * head + part if is_mixed else part * count + head for head in held] for part in range(3))
    name, size = checkpoint.inside(layer, names.lightning_qkv), spec.head_dim
    total = 3 * count * size
    rotated = tuple(order) if order != sorted(order) else ()
    return [
        RowBlock(name, total, ranges([*q, *k], size), rotated),
        RowBlock(name, total, ranges(v, size)),
    ]


def _dynamics(spec: LightningSpec, held: Sequence[int], device: torch.device) -> SpaceDynamics:
    """A step of the softmax scale writes values of that scale, and its decay is that of a token."""
    logarithms = [math.log(spec.decays[head] / spec.scale) for head in held]
    rates = torch.tensor(logarithms, dtype=torch.float32, device=device)
    zeros = torch.zeros_like(rates)
    return SpaceDynamics(rates, zeros, zeros, spec.scale, spec.scale)
