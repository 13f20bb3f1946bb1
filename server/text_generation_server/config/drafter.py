"""`config.json` of a drafter: which kind it is, and how it computes. Imports no torch.

Read are EAGLE-3 heads of one layer (Li et al., 2025) in three containers: the authors' and SpecForge's, whose
`config.json` is that of the layer, and that of speculators, whose layer is under `transformer_layer_config`; heads of
Medusa (`medusa.py`); layers of the model's own checkpoint (`mtp.py`), where `--drafter` names the model; and whole
models (`draft_model.py`).
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from ..errors import ConfigurationError, ModelFilesError, UnsupportedModel
from .asked_drafter import DrafterKind
from .draft_model import DraftModelConfig, read_draft_model
from .families.common import attention, gated, rms_norm
from .implementation import AnyModelConfig
from .json_object import JsonObject
from .medusa import KEY as MEDUSA
from .medusa import MedusaConfig, read_medusa
from .model import ModelConfig
from .mtp import MtpConfig, is_mtp, read_mtp
from .spec import AttentionSpec, DecoderSpec, DenseSpec, NormSpec, QkNormSpec

FLAG = "`model` of --speculative-config"
"""What names a drafter; a shard has it as `--drafter`."""
_KIND = "speculators_model_type"
_METHOD = "`method` of --speculative-config"
"""What says which kind it is; a shard has it as `--drafter-method`."""
_IDS = "eagle_aux_hidden_state_layer_ids"
_PARALLEL = ("mask_token_id", "ptd_token_id", "pard_token")
"""Keys of heads that draft several tokens in one pass."""

FeatureNorm = Literal["none", "whole", "each"]
"""Whether the hidden states of the model pass a norm before they are joined: not, all of them one, or each its own."""


@dataclass(frozen=True)
class EagleConfig:
    """An EAGLE-3 head."""

    source: str
    """The file that says so."""
    layers: tuple[int, ...]
    """The layers of the model before which its hidden states are read; their number stands for the end of the last."""
    hidden_size: int
    target_hidden_size: int
    vocab_size: int
    """Ids of the model."""
    draft_vocab_size: int
    """Ids that it may draft."""
    attention: AttentionSpec
    ffn: DenseSpec
    norm: NormSpec
    """All of its norms."""
    norm_before_residual: bool
    """Whether the residual stream begins behind the norm of hidden states."""
    norm_output: bool
    """Whether the next pass reads hidden states behind the last norm."""
    feature_norm: FeatureNorm


@dataclass(frozen=True)
class FoundDrafter:
    """What is read for the drafter of a model."""

    folder: Path
    config: "DrafterConfig"


DrafterConfig = EagleConfig | MedusaConfig | MtpConfig | DraftModelConfig


def read_drafter_config(
    folder: Path, target: AnyModelConfig, kind: DrafterKind | None = None, of: Path | None = None
) -> DrafterConfig:
    """Reads what is in `folder`, as a drafter for `target`, of this kind where one is named. `of` is the folder of
    `target`, with whose vocabulary that of a whole model is compared. Raises `ConfigurationError` or `ModelFilesError`.
    """
    config = _read(folder, target, kind, of)
    found = _kind(config)
    if kind not in (None, found):
        raise ConfigurationError(
            f"{config.source}: {_METHOD} is {kind}, and {FLAG} names {_KINDS[found]}: set `method` to {found}, or "
            f"leave it out, or let `model` name {_KINDS[kind]}"
        )
    return config


_KINDS: dict[DrafterKind, str] = {
    "eagle3": "an EAGLE-3 head",
    "medusa": "Medusa heads",
    "mtp": "a model with layers for multi-token prediction",
    "draft_model": "a whole model",
}


def _kind(config: DrafterConfig) -> DrafterKind:
    match config:
        case EagleConfig():
            return "eagle3"
        case MedusaConfig():
            return "medusa"
        case MtpConfig():
            return "mtp"
        case DraftModelConfig():
            return "draft_model"


def _read(folder: Path, target: AnyModelConfig, kind: DrafterKind | None, of: Path | None) -> DrafterConfig:
    if not (folder / "config.json").is_file():
        raise ModelFilesError(
            f"{folder} has no config.json: {FLAG} must name a folder with an EAGLE-3 head, Medusa heads or a whole "
            "model"
        )
    config = JsonObject.from_file(folder / "config.json")
    if not isinstance(target, ModelConfig):
        raise ConfigurationError(
            f"{FLAG} does not apply to {target.architecture}, which runs through Transformers: leave it out"
        )
    if kind == "draft_model" and _is_whole(config):
        return read_draft_model(folder, target, of, FLAG)
    if is_mtp(config, target):
        if of is not None and folder.resolve() != of.resolve():
            raise ConfigurationError(
                f"{config.source} is that of another {target.architecture} than the model: layers that guess further "
                f"tokens do so for their own model: let {FLAG} name the model itself, or leave it out with the method "
                "mtp"
            )
        return read_mtp(config, target)
    if MEDUSA in config:
        return read_medusa(config, target.decoder)
    if kind == "mtp" and _KIND not in config and not _is_head(config):
        raise ConfigurationError(
            f"{config.source} says nothing of layers for multi-token prediction, which {_METHOD} mtp needs: let it be "
            "another method"
        )
    if _is_whole(config):
        return read_draft_model(folder, target, of, FLAG)
    found = _speculators(config) if _KIND in config else _plain(config)
    verifier = config.child("speculators_config").child("verifier").strings("architectures")
    if verifier and target.architecture not in verifier:
        raise ConfigurationError(
            f"{config.source}: its verifier is a {verifier[0]}, and the model a {target.architecture}: {FLAG} names a "
            f"drafter of another model: name one for {target.architecture}"
        )
    head = _eagle(*found, len(target.decoder.layers))
    _check_target(head, target)
    _check_layers(head, target, are_named=found[2].layers is not None)
    return head


@dataclass(frozen=True)
class _Found:
    """What is said beside the layer."""

    norm_before_residual: bool
    layers: tuple[int, ...] | None
    """None: the usual ones."""


def _is_head(config: JsonObject) -> bool:
    """Whether it is of an EAGLE-3 head in the authors' container."""
    return "draft_vocab_size" in config or any("eagle3" in each.lower() for each in config.strings("architectures"))


def _is_whole(config: JsonObject) -> bool:
    """Whether it is of a whole model, and not of a head that was trained for one."""
    of_heads = _KIND, MEDUSA, "eagle_config"
    return bool(config.strings("architectures")) and not _is_head(config) and not any(key in config for key in of_heads)


def _plain(config: JsonObject) -> tuple[JsonObject, JsonObject, _Found]:
    """The authors' container, which SpecForge and others write too. It numbers layers by what comes out of them."""
    eagle = config.child("eagle_config")
    if not eagle.boolean("use_aux_hidden_state", default=True):
        raise eagle.error("use_aux_hidden_state", f"true: {FLAG} reads EAGLE-3 heads, and not those before them")
    if not _is_head(config):
        raise ConfigurationError(
            f"{config.source} has neither `draft_vocab_size` nor `{_KIND}` nor `{MEDUSA}`: {FLAG} must name an EAGLE-3 "
            "head, Medusa heads, a whole model, or one with layers for multi-token prediction, and this is something "
            "else"
        )
    read = _layers(eagle if _IDS in eagle else config, -1)
    before = config.boolean("norm_before_residual", default=False)
    return config, config, _Found(before, read and tuple(each + 1 for each in read))


def _speculators(config: JsonObject) -> tuple[JsonObject, JsonObject, _Found]:
    """That of speculators, which numbers layers by what goes into them."""
    if config.string(_KIND) != "eagle3":
        raise config.error(_KIND, f"'eagle3', the kind that {FLAG} reads")
    read = _layers(config, 0)
    before = config.boolean("norm_before_residual", default=True)
    return config, config.child("transformer_layer_config"), _Found(before, read)


def _layers(config: JsonObject, first: int) -> tuple[int, ...] | None:
    """The numbers of layers whose hidden states are read, from `first` on; None where the file has none."""
    if _IDS not in config:
        return None
    if not (read := config.integer_or_list(_IDS, (), first, 1 << 20)):
        raise config.error(
            _IDS, "the numbers of the layers that the head reads; without the key it reads the usual three"
        )
    return read


def _eagle(config: JsonObject, layer: JsonObject, found: _Found, num_layers: int) -> EagleConfig:
    for key in ("quantization_config", "compression_config"):
        if key in config or key in layer:
            raise ConfigurationError(
                f"{config.source}: `{key}` says that the drafter is quantised: {FLAG} needs 16 bits"
            )
    for key in _PARALLEL:
        if key in config:
            raise ConfigurationError(
                f"{config.source}: `{key}` says that it drafts all tokens at once: {FLAG} reads heads that draft one "
                "after the other"
            )
    if layer.integer("num_hidden_layers", default=1) != 1:
        raise layer.error("num_hidden_layers", f"1: {FLAG} reads heads of one layer")
    if "sliding_attention" in layer.strings("layer_types"):
        raise layer.error("layer_types", "['full_attention']")
    hidden, norm, mixer = layer.integer("hidden_size"), rms_norm(layer), _attention(layer)
    if layer.string("model_type", default="llama") == "qwen3":
        mixer = replace(mixer, qk_norm=QkNormSpec(norm))
    vocab_size = layer.integer("vocab_size")
    whole, each = (config.boolean(key, default=False) for key in ("norm_before_fc", "fc_norm"))
    if whole and each:
        raise config.error("fc_norm", "false where `norm_before_fc` is true")
    return EagleConfig(
        config.source,
        found.layers or (2, num_layers // 2, num_layers - 3),
        hidden,
        config.integer("target_hidden_size", default=hidden),
        vocab_size,
        config.integer("draft_vocab_size", default=vocab_size, maximum=vocab_size),
        mixer,
        gated(layer),
        norm,
        found.norm_before_residual,
        config.boolean("norm_output", default=False),
        "whole" if whole else "each" if each else "none",
    )


def _check_target(head: EagleConfig, target: ModelConfig) -> None:
    """Raises `ConfigurationError` for a head of another model."""
    decoder, other = target.decoder, _of_another(target)
    if head.target_hidden_size != decoder.hidden_size:
        raise ConfigurationError(
            f"{head.source}: its hidden states have {head.target_hidden_size} elements, and those of "
            f"{target.architecture} {decoder.hidden_size}: {other}"
        )
    if head.vocab_size != decoder.vocab_size:
        raise ConfigurationError(
            f"{head.source}: `vocab_size` is {head.vocab_size}, and {target.architecture} has {decoder.vocab_size} "
            f"ids: {other}"
        )
    if decoder.streams is not None:
        raise ConfigurationError(f"{FLAG} does not apply to {target.architecture}, which has several residual streams")


def _check_layers(head: EagleConfig, target: ModelConfig, are_named: bool) -> None:
    """Raises `ConfigurationError` for layers that the model does not have, or that are read twice."""
    count = len(target.decoder.layers)
    if wrong := [each for each in head.layers if not _exists(target.decoder, each)]:
        fault = f"it reads hidden states before layer {wrong[0]}, and {target.architecture} has {count} layers"
    elif len(set(head.layers)) < len(head.layers):
        fault = "it reads the hidden states before a layer twice"
    else:
        return
    if are_named:
        raise ConfigurationError(f"{head.source}: {fault}: {_of_another(target)}")
    raise ConfigurationError(
        f"{head.source} has no `{_IDS}`, and the usual ones (2, half and all but 3 of the layers) do not fit: {fault}; "
        f"add those with which it was trained, or let {FLAG} name another drafter"
    )


def _attention(layer: JsonObject) -> AttentionSpec:
    """Its attention. Refusals of the rotary embedding speak of a model's file, and do not say which."""
    try:
        return attention(layer)
    except UnsupportedModel as error:
        raise ConfigurationError(
            f"{layer.source}: {error}: {FLAG} names a head with another rotary embedding; name another drafter"
        ) from error


def _of_another(target: ModelConfig) -> str:
    return f"{FLAG} names a drafter of another model: name one for {target.architecture}"


def _exists(decoder: DecoderSpec, layer: int) -> bool:
    return 0 <= layer <= len(decoder.layers) and (layer == len(decoder.layers) or not decoder.layers[layer].is_empty)
