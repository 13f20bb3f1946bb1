"""Granite MoE: the scales of Granite around experts that are stored as two tensors."""

from dataclasses import replace

from ..json_object import JsonObject
from ..names import TensorNames
from ..spec import DecoderSpec
from .experts import mixture
from .family import Family
from .granite import granite_decoder

NAMES = TensorNames(
    router="block_sparse_moe.router.layer",
    experts_layout="stacked",
    expert_gate="block_sparse_moe.input_linear",
    expert_down="block_sparse_moe.output_linear",
)


def _granite_moe(config: JsonObject) -> DecoderSpec:
    spec = granite_decoder(config)
    experts = mixture(config, "num_local_experts", "intermediate_size")
    return replace(spec, layers=tuple(replace(layer, ffn=experts) for layer in spec.layers))


GRANITE_MOE = Family(
    "Granite MoE",
    _granite_moe,
    NAMES,
    {"num_local_experts": 8, "num_experts_per_tok": 2, "rms_norm_eps": 1e-6},
    unread=("partial_rotary_factor",),
)
