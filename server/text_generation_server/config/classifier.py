"""Classifiers and reward models: decoders whose head scores classes in place of token ids. Imports no torch."""

from dataclasses import replace

from ..errors import ConfigurationError, UnsupportedModel
from .json_object import JsonObject
from .names import TensorNames
from .spec import DecoderSpec, HeadSpec

_SUFFIX = "ForSequenceClassification"
_GENERATING = {
    "GPT2ForSequenceClassification": "GPT2LMHeadModel",
    "Gemma3TextForSequenceClassification": "Gemma3ForCausalLM",
}
"""Classes with the same decoder, where they have another name before `ForCausalLM`."""
_PROBLEMS = ("regression", "single_label_classification", "multi_label_classification")
_HEAD = "score"
MAX_CLASSES = 65_536
"""Upper bound of the classes of a model: a reply has a number for each."""


def is_classifier(architecture: str) -> bool:
    """Whether the head of a class of this name scores classes."""
    return architecture.endswith(_SUFFIX)


def generating_class(architecture: str) -> str:
    """Returns the class that generates text with the same decoder; the class itself where it does."""
    if not is_classifier(architecture):
        return architecture
    return _GENERATING.get(architecture, f"{architecture.removesuffix(_SUFFIX)}ForCausalLM")


def as_classifier(
    architecture: str, config: JsonObject, decoder: DecoderSpec, names: TensorNames
) -> tuple[DecoderSpec, TensorNames]:
    """Returns the spec and the names of a model of this class, of those of the model that generates. Raises
    ConfigurationError or UnsupportedModel.
    """
    if not is_classifier(architecture):
        return decoder, names
    if decoder.embedding.width:
        raise UnsupportedModel(
            f"{architecture} is not served: its embedding has other columns than its layers (`word_embed_proj_dim`), "
            "which its head would read; choose a classifier of another size"
        )
    problem = config.string("problem_type", default="")
    if problem and problem not in _PROBLEMS:
        raise config.error("problem_type", f"one of {', '.join(_PROBLEMS)}")
    head = HeadSpec(classes=_classes(config))
    return replace(decoder, head=head), replace(names, head=_HEAD, heads={})


def _classes(config: JsonObject) -> int:
    """The number of classes: that of the names in `id2label`, as in Transformers; without names 2."""
    named = len(list(config.child("id2label")))
    if not named:
        return config.integer("num_labels", default=2, maximum=MAX_CLASSES)
    if named > MAX_CLASSES:
        raise config.error("id2label", f"at most {MAX_CLASSES} names")
    return named


def check_classifier(classes: int, flags: dict[str, bool]) -> None:
    """Raises `ConfigurationError` for a flag of `flags` that is set beside a model with so many `classes`, if any."""
    asked = next((flag for flag, is_set in flags.items() if is_set), None)
    if classes and asked is not None:
        raise ConfigurationError(
            f"{asked} does not apply to a classifier, which generates no text and whose head no adapter changes: leave "
            "it out"
        )
