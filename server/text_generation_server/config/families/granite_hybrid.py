"""Granite 4: the scales of Granite around state spaces (Mamba 2), attention, or both, with experts or without."""

from dataclasses import replace

from ..json_object import JsonObject
from ..spec import DecoderSpec, DenseSpec, FeedForwardSpec
from .common import activation, layer_types, with_mixer
from .experts import mixture
from .family import Family
from .granite import granite_decoder
from .granite_moe import NAMES as EXPERTS
from .state_space import KEYS, NAMES, state_space


def _granite_hybrid(config: JsonObject) -> DecoderSpec:
    spec = granite_decoder(config)
    full = replace(spec.layers[0], ffn=_feed_forward(config))
    if config.string("position_embedding_type", default="nope") != "rope":
        full = with_mixer(full, rope=None)
    names = layer_types(config, ("full_attention", "linear_attention"), lambda _: "linear_attention")
    kinds = {"full_attention": full}
    if "linear_attention" in names:
        mixer = state_space(config, config.number("rms_norm_eps", default=1e-6))
        kinds["linear_attention"] = replace(full, mixer=mixer)
    return replace(spec, layers=tuple(kinds[name] for name in names))


def _feed_forward(config: JsonObject) -> FeedForwardSpec:
    """Returns the feed-forward network: a dense one, or experts with a shared expert."""
    inner = config.integer("shared_intermediate_size")
    if config.integer("num_local_experts", minimum=0) == 0:
        return DenseSpec(inner, activation(config))
    return replace(mixture(config, "num_local_experts", "intermediate_size"), shared_inner=inner)


GRANITE_HYBRID = Family(
    "Granite 4",
    _granite_hybrid,
    replace(
        NAMES,
        router=EXPERTS.router,
        experts_layout=EXPERTS.experts_layout,
        expert_gate=EXPERTS.expert_gate,
        expert_down=EXPERTS.expert_down,
        gate_up="shared_mlp.input_linear",
        down="shared_mlp.output_linear",
        shared_gate_up="shared_mlp.input_linear",
        shared_down="shared_mlp.output_linear",
    ),
    {
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "shared_intermediate_size": 1024,
        "mamba_n_heads": 128,
        "mamba_n_groups": 1,
        "mamba_d_state": 256,
        "mamba_d_conv": 4,
        "mamba_expand": 2,
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 2048,
        "eos_token_id": 2,
    },
    aliases={**KEYS, "layer_types": "layers_block_type"},
)
