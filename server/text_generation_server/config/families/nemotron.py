"""Nemotron-4 and Minitron: layer norms whose weights are stored less 1, and networks without a gate."""

from ..json_object import JsonObject
from ..spec import DecoderSpec, LayerSpec, NormSpec
from .common import attention, decoder, plain
from .family import Family


def _nemotron(config: JsonObject) -> DecoderSpec:
    norm = NormSpec(config.number("norm_eps", default=1e-5), kind="layer", bias=True, one_plus=True)
    network = plain(config, "intermediate_size", bias=config.boolean("mlp_bias", default=False))
    return decoder(config, LayerSpec(attention(config), network, norm, norm), norm)


NEMOTRON = Family(
    "Nemotron-4 and Minitron",
    _nemotron,
    defaults={
        "eos_token_id": 3,
        "hidden_act": "relu2",
        "intermediate_size": 24576,
        "max_position_embeddings": 4096,
        "norm_eps": 1e-5,
        "partial_rotary_factor": 0.5,
    },
)
