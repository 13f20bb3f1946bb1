"""MiniMax-Text-01 and MiniMax-M1: lightning attention, every few layers attention, and post-norm layers whose residual
stream weighs more than what is added to it.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

from ...errors import UnsupportedModel
from ..json_object import JsonObject
from ..recurrent import LightningSpec
from ..spec import DecoderSpec, LayerSpec
from .common import (
    MOST_HEADS,
    MOST_LAYERS,
    MOST_STATE,
    attention,
    decoder,
    layer_types,
    rms_norm,
    silu_alone,
    window,
    with_rotary_dim,
)
from .experts import mixture
from .family import Family
from .mixtral import BLOCK_SPARSE_NAMES

_FULL, _LINEAR = "full_attention", "linear_attention"
_SUBLAYERS = ("full_attn", "linear_attn", "mlp")
_OLDER_SUBLAYERS = ("layernorm_full_attention", "layernorm_linear_attention", "layernorm_mlp")
_NORM_EPS = 1e-6
"""Of the norm within lightning attention, whatever `rms_norm_eps` is."""


def _minimax(config: JsonObject) -> DecoderSpec:
    if not config.boolean("postnorm", default=True):
        raise UnsupportedModel("`postnorm` in config.json must be true for this family")
    if config.integer("shared_intermediate_size", default=0, minimum=0):
        raise UnsupportedModel("`shared_intermediate_size` in config.json must be 0 for this family")
    stream, added = (_same(config, part) for part in ("alpha", "beta"))
    full = replace(with_rotary_dim(config, attention(config)), window=window(config))
    experts, own = mixture(config, "num_local_experts", "intermediate_size"), rms_norm(config)
    # A norm of so many times its input is one with another epsilon.
    norm = replace(own, eps=own.eps / stream**2)
    kinds = layer_types(config, (_FULL, _LINEAR), _by_number(config))
    layers = [
        LayerSpec(full if kind == _FULL else _lightning(config, index, len(kinds)), experts, norm, norm)
        for index, kind in enumerate(kinds)
    ]
    # The first one reads the embedding.
    layers[0] = replace(layers[0], attention_norm=own)
    spec = decoder(config, tuple(layers), final_norm=norm, residual_scale=added / stream)
    return replace(spec, sum_is_normalised=True)


def _same(config: JsonObject, part: str) -> float:
    """By what the residual stream (alpha), or what is added to it (beta), is multiplied in all sublayers."""
    found = {name: config.number(name, default=1.0) for name in _factors(config, part)}
    if len(set(found.values())) > 1:
        raise UnsupportedModel(f"{', '.join(f'`{name}`' for name in found)} in config.json must be equal")
    return next(iter(found.values()))


def _factors(config: JsonObject, part: str) -> Iterator[str]:
    """Names of these keys. Files of the authors have other ones."""
    for name, older in zip(_SUBLAYERS, _OLDER_SUBLAYERS, strict=True):
        usual, other = f"{name}_{part}_factor", f"{older}_{part}"
        yield usual if usual in config or other not in config else other


def _by_number(config: JsonObject) -> Callable[[int], str]:
    """Types of layers where `layer_types` does not list them: as `attn_type_list` of the authors does, else every
    second layer has states.
    """
    key = "attn_type_list"
    if key not in config:
        return lambda index: _LINEAR if index % 2 else _FULL
    listed = config.integers(key, config.integer("num_hidden_layers", maximum=MOST_LAYERS), 1)
    return lambda index: _FULL if listed[index] else _LINEAR


def _lightning(config: JsonObject, index: int, layers: int) -> LightningSpec:
    """Of layer `index`. The first layers forget fastest, and of each layer the first heads."""
    silu_alone(config, "hidden_act")
    heads = config.integer("num_attention_heads", maximum=MOST_HEADS)
    hidden, share = config.integer("hidden_size"), 1 - index / (layers - 1 + 1e-5) + 1e-5
    decays = tuple(share * 2.0 ** (-8 * (head + 1) / heads) for head in range(heads))
    size = config.integer("head_dim", default=max(1, hidden // heads), maximum=MOST_STATE)
    return LightningSpec(decays, size, 1.0, _NORM_EPS, norm_groups=1, activated=True)


MINIMAX_01 = Family(
    "MiniMax-Text-01",
    _minimax,
    BLOCK_SPARSE_NAMES,
    {
        "rms_norm_eps": 1e-5,
        "rope_theta": 1e6,
        "num_key_value_heads": 8,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "max_position_embeddings": 131072,
    },
    unread=("attention_bias", "partial_rotary_factor"),
)
