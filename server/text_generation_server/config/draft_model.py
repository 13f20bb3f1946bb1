"""A whole model that drafts for another one of the same vocabulary. Imports no torch."""

from dataclasses import dataclass, replace
from pathlib import Path

from ..errors import ConfigurationError, UnsupportedModel
from .implementation import read_model_config
from .model import ModelConfig
from .recurrent import RecurrentSpec
from .spec import AttentionSpec, CompressedAttentionSpec, LatentAttentionSpec
from .vocabulary import check_same_vocabulary


@dataclass(frozen=True)
class DraftModelConfig:
    """A model of one of our families, of which the text model alone is read."""

    source: str
    """The file that says so."""
    model: ModelConfig
    layers: tuple[int, ...] = ()
    """It reads no hidden states of the other model."""


def read_draft_model(folder: Path, target: ModelConfig, of: Path | None, flag: str) -> DraftModelConfig:
    """Reads the model in `folder`, which `flag` names, as a drafter for `target`, whose folder is `of`; None: their
    vocabularies are not compared. Raises `ConfigurationError` or `ModelFilesError`.
    """
    try:
        config = read_model_config(folder, "native")
    except UnsupportedModel as error:
        raise ConfigurationError(f"{flag} names the model in {folder}, which cannot draft: {error}") from error
    if not isinstance(config, ModelConfig):
        raise ConfigurationError(f"{flag} names the model in {folder}, which runs through Transformers: name another")
    source = str(folder / "config.json")
    if reason := _reason_against(config, target):
        raise ConfigurationError(f"{source}: a {config.architecture} cannot draft: {reason}: let {flag} name another")
    if of is not None:
        check_same_vocabulary(folder, of, flag)
    return DraftModelConfig(source, replace(config, vision=None))


def _reason_against(config: ModelConfig, target: ModelConfig) -> str:
    """Why this model cannot draft for `target`; empty: it can."""
    decoder = config.decoder
    if config.classes:
        return "it is a classifier and has no head over the vocabulary"
    if any(isinstance(mixer, RecurrentSpec) for mixer in decoder.mixers):
        return "its recurrent layers keep a state, which passes over drafts would change"
    if any(isinstance(mixer, CompressedAttentionSpec) for mixer in decoder.mixers):
        return "its attention reads compressed positions"
    attentions = (mixer for mixer in decoder.mixers if isinstance(mixer, AttentionSpec | LatentAttentionSpec))
    if any(mixer.indexer is not None for mixer in attentions):
        return "its attention chooses positions by keys of their own"
    if decoder.embedding.positions and config.max_context_length < target.max_context_length:
        return (
            f"its table of positions ends at {config.max_context_length} tokens, and contexts of the model at "
            f"{target.max_context_length}"
        )
    return ""
