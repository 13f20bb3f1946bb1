"""The matrices of a model by name, each as often as layers have one like it, from its configuration alone."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import NamedTuple

import torch

from ..config.model import ModelConfig
from ..config.spec import DenseSpec, LayerSpec, MoeSpec
from ..distributed import TensorParallelGroup
from ..layers.weights import (
    AltUpEndWeights,
    AltUpWeights,
    AttentionWeights,
    CallWeights,
    CompressedAttentionWeights,
    Dense,
    DenseWeights,
    GatedDeltaWeights,
    GatedLruWeights,
    HyperConnectionWeights,
    HyperEndWeights,
    IndexerWeights,
    KimiDeltaWeights,
    LatentAttentionWeights,
    LayerInputWeights,
    LightningWeights,
    Mamba2Weights,
    MambaWeights,
    MoeWeights,
    PerLayerWeights,
    ShortConvWeights,
    Split,
    W8A8Linear,
)
from ..layers.weights.weight_only import WeightOnlyLinear
from ..models.builder import DecoderBuilder, Sublayer
from ..weights import ShapeSource

Single = Dense | W8A8Linear | WeightOnlyLinear
_SUBLAYERS: dict[type, str] = {
    AltUpEndWeights: "residual streams",
    AltUpWeights: "beside attention",
    AttentionWeights: "attention",
    CallWeights: "call of a shared block",
    CompressedAttentionWeights: "compressed attention",
    DenseWeights: "feed-forward",
    GatedDeltaWeights: "gated delta",
    GatedLruWeights: "gated linear recurrent unit",
    HyperConnectionWeights: "hyper-connection",
    HyperEndWeights: "end of residual streams",
    IndexerWeights: "indexer",
    KimiDeltaWeights: "Kimi delta attention",
    LatentAttentionWeights: "latent attention",
    LayerInputWeights: "layer input",
    LightningWeights: "lightning attention",
    Mamba2Weights: "Mamba 2",
    MambaWeights: "Mamba",
    MoeWeights: "experts",
    PerLayerWeights: "inputs of layers",
    ShortConvWeights: "short convolution",
}


@dataclass(frozen=True)
class Matrix:
    """A matrix that GEMMs multiply by."""

    name: str
    linear: Single
    gated: bool = False
    """Whether a gated activation follows."""
    before_norm: bool = False
    """Whether what follows may reduce split-K partials: the norm after a sublayer, or what rotates Q and K."""

    @property
    def format(self) -> str:
        """Its shape and number format."""
        if isinstance(self.linear, WeightOnlyLinear):
            weight = self.linear.weight
            groups = f"groups of {weight.group_size}" if weight.group_size else "a scale for each row"
            return f"{self.linear.outputs} x {self.linear.inputs}, W{weight.bits}A16, {groups}"
        weight = self.linear.weight
        shape = f"{weight.shape[0]} x {weight.shape[1]}"
        if isinstance(self.linear, Dense):
            return f"{shape}, {_short(weight.dtype)}"
        return f"{shape}, W8A8 in {_short(weight.dtype)}, {'blocks' if self.linear.scale.dim() > 1 else 'rows'}"


@dataclass(frozen=True)
class Experts:
    """Up and down matrices of a mixture's experts."""

    spec: MoeSpec
    weights: MoeWeights

    @property
    def format(self) -> str:
        """Its shapes and number format."""
        up, down = self.weights.gate_up, self.weights.down
        kind = "W8A8 or W8A16" if up.w8a8 else f"W{up.bits}A16" if up.is_packed else _short(up.weight.dtype)
        inner = up.outputs // (2 if self.spec.gated else 1)
        return f"{up.experts} experts of {down.outputs} x {inner}, top {self.spec.route.top_k}, {kind}"


class Counted(NamedTuple):
    """What is alike in several layers."""

    times: int
    part: Matrix | Experts


def matrices_of(config: ModelConfig, dtype: torch.dtype, shards: int) -> list[Counted]:
    """Returns the matrices of the first rank, in the order in which a start reads them. Raises ConfigurationError."""
    device = torch.device("meta")
    group = TensorParallelGroup(0, shards, device)
    # Encoders of media have matrices of their own, which torch multiplies.
    builder = DecoderBuilder(replace(config, vision=None), group, ShapeSource(dtype), device)
    builder.build()
    first: dict[str, Matrix | Experts] = {}
    counts: Counter[str] = Counter()
    for sublayer in builder.sublayers:
        for part in _parts(sublayer):
            key = f"{part.name if isinstance(part, Matrix) else 'experts'}: {part.format}"
            first.setdefault(key, part)
            counts[key] += 1
    return [Counted(counts[key], part) for key, part in first.items()]


def _parts(sublayer: Sublayer, name: str | None = None) -> Iterator[Matrix | Experts]:
    layer, spec, weights = sublayer
    if not is_dataclass(weights) or isinstance(weights, Single | Split):
        yield from _singles("LM head", weights)
        return
    for field in fields(weights):
        each = getattr(weights, field.name)
        if isinstance(each, DenseWeights) and isinstance(spec, MoeSpec):
            yield from _parts(Sublayer(None, spec.shared, each), "shared expert")
            continue
        gated = isinstance(spec, DenseSpec) and spec.gated and field.name == "first"
        label = f"{name or _SUBLAYERS[type(weights)]} {'gate_up' if gated else field.name}"
        before_norm = layer is not None and (
            field.name == "qkv" or (field.name in ("out", "down") and _is_fused(layer))
        )
        yield from _singles(label, each, gated, before_norm)
    if isinstance(weights, MoeWeights) and isinstance(spec, MoeSpec):
        yield Experts(spec, weights)


def _is_fused(layer: LayerSpec) -> bool:
    """Whether the outputs of the layer's sublayers may be fused with the norms after them."""
    norms = layer.attention_norm, layer.ffn_norm
    is_apart = layer.parallel or layer.is_whole or layer.state_space is not None or layer.shared is not None
    return not is_apart and all(norm is None or norm.kind == "rms" for norm in norms)


def _singles(name: str, weights: object, gated: bool = False, before_norm: bool = False) -> Iterator[Matrix]:
    """Yields the matrix, if it is one, or its parts of several formats."""
    if isinstance(weights, Split):
        for part in weights.parts:
            yield from _singles(f"{name}, in parts", part)
    elif isinstance(weights, Single):
        yield Matrix(name, weights, gated, before_norm)


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
