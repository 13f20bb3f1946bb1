"""Layers with which some checkpoints guess further tokens (multi-token prediction, MTP; DeepSeek-V3, 2024). Imports no
torch.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from ..errors import ConfigurationError
from .json_object import JsonObject
from .spec import DecoderSpec


@dataclass(frozen=True)
class MtpNames:
    """Names of tensors of such a layer, beside those that every layer of the model has."""

    layer: str
    """The beginning of those of the layer, with the number of the model's layers."""
    embedded_norm: str
    hidden_norm: str
    joined: str
    """The projection of embeddings and hidden states, side by side, to the input of the layer."""
    last_norm: str
    hidden_first: bool = False
    """Whether hidden states come first there."""
    around: str | None = None
    """The beginning of the other names; None: that of the layer."""
    prefix: str | None = None
    """What all names follow; None: the prefix of the model's."""
    key: str = "num_nextn_predict_layers"
    """What says how many such layers there are."""
    usual: int = 0
    """How many there are where nothing says so."""
    masks_first: bool = True
    """Whether the embedding of the first pair is 0."""


_DEEPSEEK = MtpNames("layers.{}.", "enorm", "hnorm", "eh_proj", "shared_head.norm")
_MIMO = MtpNames(
    "mtp_layers.0.", "token_layernorm", "hidden_layernorm", "input_proj", "final_layernorm", hidden_first=True
)
_QWEN = MtpNames(
    "mtp.layers.0.",
    "pre_fc_norm_embedding",
    "pre_fc_norm_hidden",
    "fc",
    "norm",
    around="mtp.",
    prefix="",
    key="mtp_num_hidden_layers",
    # Files of Qwen 3 Next do not say it.
    usual=1,
    masks_first=False,
)
_LAYOUTS: Mapping[str, MtpNames] = {
    "DeepseekV3ForCausalLM": _DEEPSEEK,
    "Glm4MoeForCausalLM": _DEEPSEEK,
    "Glm4MoeLiteForCausalLM": _DEEPSEEK,
    "MiMoForCausalLM": _MIMO,
    "Qwen3NextForCausalLM": _QWEN,
    "Qwen3_5ForCausalLM": _QWEN,
    "Qwen3_5ForConditionalGeneration": _QWEN,
    "Qwen3_5MoeForCausalLM": _QWEN,
    "Qwen3_5MoeForConditionalGeneration": _QWEN,
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
    """A layer like the last one of the model that has attention, which reads the last hidden states of the model and
    drafts tokens one by one.
    """

    source: str
    """The file that says so."""
    names: MtpNames
    layer: str
    """The beginning of its tensors' names."""
    around: str
    """The beginning of the names of norms and projection."""
    layers: tuple[int, ...]
    """It reads hidden states at the end of the last layer of the model."""


def is_mtp(config: JsonObject, target: Target) -> bool:
    """Whether `config` is that of the model itself, whose checkpoint may have such layers."""
    is_model = target.architecture in config.strings("architectures") and "draft_vocab_size" not in config
    return is_model and target.architecture in _LAYOUTS


def read_mtp(config: JsonObject, target: Target) -> MtpConfig:
    """Reads which layers the checkpoint of the model has; of several the first counts. Raises `ConfigurationError`."""
    names = _LAYOUTS[target.architecture]
    text = config.child("text_config") if "text_config" in config else config
    if not text.integer(names.key, default=names.usual, minimum=0):
        fault = "0" if names.usual else "0 or missing"
        raise ConfigurationError(
            f"{text.source}: `{names.key}` is {fault}, so the model has no layers that guess further tokens: "
            "let `model` of --speculative-config name a drafter, or take the method ngram, which needs none"
        )
    if text.boolean("mtp_use_dedicated_embeddings", default=False):
        raise text.error("mtp_use_dedicated_embeddings", "false: such layers read the embeddings of the model")
    count = len(target.decoder.layers)
    layer = names.layer.format(count)
    return MtpConfig(config.source, names, layer, layer if names.around is None else names.around, (count,))
