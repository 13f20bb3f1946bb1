"""Layers with which some checkpoints guess further tokens (multi-token prediction, MTP; DeepSeek-V3, 2024). Imports no
torch.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from ..errors import ConfigurationError
from .json_object import JsonObject
from .spec import DecoderSpec

KEY = "num_nextn_predict_layers"


@dataclass(frozen=True)
class MtpNames:
    """Names of tensors of such a layer, beside those that every layer of the model has."""

    layer: str
    """The beginning of them all, with the number of the model's layers."""
    embedded_norm: str
    hidden_norm: str
    joined: str
    """The projection of embeddings and hidden states, side by side, to the input of the layer."""
    last_norm: str
    hidden_first: bool = False
    """Whether hidden states come first there."""


_DEEPSEEK = MtpNames("layers.{}.", "enorm", "hnorm", "eh_proj", "shared_head.norm")
_MIMO = MtpNames(
    "mtp_layers.0.", "token_layernorm", "hidden_layernorm", "input_proj", "final_layernorm", hidden_first=True
)
_LAYOUTS: Mapping[str, MtpNames] = {
    "DeepseekV3ForCausalLM": _DEEPSEEK,
    "Glm4MoeForCausalLM": _DEEPSEEK,
    "Glm4MoeLiteForCausalLM": _DEEPSEEK,
    "MiMoForCausalLM": _MIMO,
}
"""By architecture."""


class Target(Protocol):
    """The model, as far as its configuration says what such a layer is."""

    @property
    def architecture(self) -> str:
        """Its class."""
        ...

    @property
    def decoder(self) -> DecoderSpec:
        """Its layers."""
        ...


@dataclass(frozen=True)
class MtpConfig:
    """A layer like the last one of the model, which reads its last hidden states and drafts tokens one by one."""

    source: str
    """The file that says so."""
    names: MtpNames
    layer: str
    """The beginning of its tensors' names."""
    layers: tuple[int, ...]
    """It reads hidden states at the end of the last layer of the model."""


def is_mtp(config: JsonObject, target: Target) -> bool:
    """Whether `config` is that of the model itself, whose checkpoint may have such layers."""
    is_model = target.architecture in config.strings("architectures") and "draft_vocab_size" not in config
    return is_model and target.architecture in _LAYOUTS


def read_mtp(config: JsonObject, target: Target) -> MtpConfig:
    """Reads which layers the checkpoint of the model has; of several the first counts. Raises `ConfigurationError`."""
    if not config.integer(KEY, default=0, minimum=0):
        raise ConfigurationError(
            f"{config.source}: `{KEY}` is 0 or missing, so the model has no layers that guess further tokens: let "
            "`model` of --speculative-config name a drafter, or take the method ngram, which needs none"
        )
    count, names = len(target.decoder.layers), _LAYOUTS[target.architecture]
    return MtpConfig(config.source, names, names.layer.format(count), (count,))
