"""Builds recurrent mixers."""

from collections.abc import Callable

from ..config.recurrent import (
    GatedLruSpec,
    KimiDeltaSpec,
    LightningSpec,
    Mamba2Spec,
    MambaSpec,
    RecurrentSpec,
    ShortConvSpec,
)
from ..config.rotary import RopeSpec
from ..layers.infer import GatedDelta, GatedLru, KimiDelta, Lightning, Mamba, Mamba2, RecurrentMixer, ShortConv
from ..layers.rope import RopeTable
from ..layers.weights import (
    Checkpoint,
    HeadSplit,
    load_gated_delta,
    load_gated_lru,
    load_kimi_delta,
    load_lightning,
    load_mamba,
    load_mamba2,
    load_short_conv,
)


def recurrent_mixer(
    checkpoint: Checkpoint,
    index: int,
    place: int,
    spec: RecurrentSpec,
    rope_of: Callable[[RopeSpec | None, int], RopeTable],
) -> tuple[RecurrentMixer, object]:
    """Reads the mixer of layer `index`, whose state is number `place` of all layers. `rope_of` returns the table of a
    rotary embedding for heads of a size. Returns it with its record of weights. Raises ModelFilesError.
    """
    group = checkpoint.group
    if isinstance(spec, MambaSpec):
        weights = load_mamba(checkpoint, index, spec)
        return Mamba(place, spec, weights, group), weights
    if isinstance(spec, Mamba2Spec):
        heads = HeadSplit.of(spec.num_heads, spec.groups, group)
        weights = load_mamba2(checkpoint, index, spec, heads)
        return Mamba2(place, spec, weights, heads, group), weights
    if isinstance(spec, GatedLruSpec):
        weights = load_gated_lru(checkpoint, index, spec)
        return GatedLru(place, spec, weights), weights
    if isinstance(spec, ShortConvSpec):
        weights = load_short_conv(checkpoint, index, spec)
        return ShortConv(place, spec, weights), weights
    if isinstance(spec, KimiDeltaSpec):
        heads = HeadSplit.of(spec.num_heads, spec.num_heads, group)
        weights = load_kimi_delta(checkpoint, index, spec, heads)
        return KimiDelta(place, spec, weights, heads), weights
    if isinstance(spec, LightningSpec):
        heads = HeadSplit.of(spec.num_heads, spec.num_heads, group)
        weights = load_lightning(checkpoint, index, spec, heads)
        return Lightning(place, spec, weights, heads, rope_of(spec.rope, spec.head_dim), group), weights
    heads = HeadSplit.of(spec.num_heads, spec.num_key_heads, group)
    weights = load_gated_delta(checkpoint, index, spec, heads)
    return GatedDelta(place, spec, weights, heads), weights
