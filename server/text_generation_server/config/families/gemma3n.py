"""Gemma 3n: several residual streams, low-rank matrices beside attention, inputs of each layer, layers that read the
keys and values of others, and networks most of whose gates are 0.
"""

from dataclasses import replace
from statistics import NormalDist

from ..json_object import JsonObject
from ..names import TensorNames
from ..rope import parse_rope
from ..spec import (
    AttentionSpec,
    DecoderSpec,
    DenseSpec,
    EmbeddingSpec,
    HeadSpec,
    LayerSpec,
    NormSpec,
    PerLayerSpec,
    QkNormSpec,
)
from ..streams import AltUpSpec
from .common import ACTIVATIONS, MOST_HEADS, decoder, layer_types, rms_norm, sandwich_layer
from .family import Family
from .gemma4 import source_of, unread_of_shared

_FULL, _SLIDING = "full_attention", "sliding_attention"
_MOST_STREAMS = 16
"""A hostile number must not fill the memory; kernels loop over all of them."""
_USUALLY_SPARSE, _USUAL_SPARSITY = 10, 0.95
"""How many first layers of a deeper model are sparse where the file does not say, and which share of gates is 0."""


def _gemma3n(config: JsonObject) -> DecoderSpec:
    norm = replace(rms_norm(config), wide=True)
    kinds = layer_types(config, (_FULL, _SLIDING), lambda index: _FULL if (index + 1) % 5 == 0 else _SLIDING)
    streams = _streams(config)
    mixers = {kind: _attention(config, norm, kind) for kind in (_FULL, _SLIDING)}
    networks = enumerate(_networks(config, len(kinds)))
    layers = tuple(_layer(config, kinds, index, mixers[kinds[index]], ffn, norm) for index, ffn in networks)
    model = decoder(
        config,
        layers,
        norm,
        EmbeddingSpec(scale=config.integer("hidden_size") ** 0.5, scale_rounded=True),
        HeadSpec(
            tied=config.boolean("tie_word_embeddings", default=True), softcap=config.number("final_logit_softcapping")
        ),
    )
    return replace(model, per_layer=_per_layer(config, norm), streams=streams)


def _layer(
    config: JsonObject, kinds: tuple[str, ...], index: int, mixer: AttentionSpec, ffn: DenseSpec, norm: NormSpec
) -> LayerSpec:
    if (source := source_of(config, kinds, index)) is not None:
        mixer = replace(mixer, reads_layer=source, value_norm=False)
    return replace(sandwich_layer(mixer, ffn, norm), streams=True)


def _attention(config: JsonObject, norm: NormSpec, kind: str) -> AttentionSpec:
    count = config.integer("num_attention_heads", maximum=MOST_HEADS)
    size, kv = config.integer("head_dim"), config.integer("num_key_value_heads")
    if count % kv:
        raise config.error("num_key_value_heads", f"a divisor of `num_attention_heads` ({count})")
    bias, local = config.boolean("attention_bias", default=False), kind == _SLIDING
    key = "rope_local_base_freq" if local else "rope_theta"
    return AttentionSpec(
        count,
        kv,
        size,
        scale=1.0,
        rope=parse_rope(config, size, layer_type=kind, scaled=not local, theta_key=key),
        qkv_bias=bias,
        out_bias=bias,
        qk_norm=QkNormSpec(norm),
        window=config.integer("sliding_window") if local else 0,
        value_norm=True,
    )


def _networks(config: JsonObject, count: int) -> tuple[DenseSpec, ...]:
    """The network of each layer."""
    key, activation = "activation_sparsity_pattern", config.choice("hidden_activation", ACTIVATIONS)
    sizes = config.integer_each("intermediate_size", count)
    sparse = _USUALLY_SPARSE if count > _USUALLY_SPARSE else 0
    shares = (_USUAL_SPARSITY,) * sparse + (0.0,) * (count - sparse)
    if key in config:
        shares = config.numbers(key, count, zero=True)
    if max(shares) >= 1:
        raise config.error(key, "a list of numbers below 1")
    cutoffs = (NormalDist().inv_cdf(share) if share else None for share in shares)
    return tuple(DenseSpec(size, activation, cutoff=cutoff) for size, cutoff in zip(sizes, cutoffs, strict=True))


def _per_layer(config: JsonObject, norm: NormSpec) -> PerLayerSpec:
    rows = config.integer("vocab_size_per_layer_input")
    outside = 0 if rows < config.integer("vocab_size") else None
    width, activation = config.integer("hidden_size_per_layer_input"), config.choice("hidden_activation", ACTIVATIONS)
    return PerLayerSpec(width, rows, activation, norm, outside_id=outside)


def _streams(config: JsonObject) -> AltUpSpec:
    count = config.integer("altup_num_inputs", minimum=2, maximum=_MOST_STREAMS)
    return AltUpSpec(
        count,
        config.integer("altup_active_idx", default=0, minimum=0, maximum=count - 1),
        config.integer("laurel_rank"),
        config.boolean("altup_correct_scale", default=True),
    )


def _names(config: JsonObject) -> TensorNames:
    return TensorNames(ffn_norm="pre_feedforward_layernorm", ignored=unread_of_shared(config))


GEMMA3N = Family(
    "Gemma 3n (text)",
    _gemma3n,
    _names,
    {
        "head_dim": 256,
        "num_key_value_heads": 2,
        "hidden_activation": "gelu_pytorch_tanh",
        "sliding_window": 512,
        "hidden_size_per_layer_input": 256,
        "vocab_size_per_layer_input": 262144,
        "num_kv_shared_layers": 15,
        "final_logit_softcapping": 30.0,
        "altup_num_inputs": 4,
        "laurel_rank": 64,
        "max_position_embeddings": 32768,
        "rope_theta": 1e6,
        "rope_local_base_freq": 1e4,
    },
    unread=("mlp_bias", "partial_rotary_factor"),
)
