"""Configuration of a model that runs through a class of Transformers (`models/fallback/`).

The class itself reads its sizes. This module reads what the server must know, and refuses what it can without torch.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from ..errors import UnsupportedModel
from .facts import Dtype, architecture_of, eos_token_ids, stored_dtype
from .json_object import JsonObject
from .quantisation import UNQUANTISED, Schemes, online_schemes, read_schemes

_LAYERS = ("full_attention", "sliding_attention")
_LENGTH_DEPENDENT = ("dynamic", "longrope")
_POSITIONS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "model_max_length")
_SPELLINGS = {"ExaoneMoEForCausalLM": "ExaoneMoeForCausalLM"}
"""Names in published files, and those that the library has for the same classes."""
_MAX_LAYERS = 1024
_MAX_VOCABULARY = 2**31 - 1


@dataclass(frozen=True)
class FallbackConfig:
    """One model, as far as its files describe it without the code of its class."""

    architecture: str
    values: Mapping[str, object]
    """The contents of `config.json`."""
    max_position_embeddings: int | None
    """None where the file leaves it to the class."""
    largest_matrix: int
    """Elements of the largest matrix of a layer, as far as the file tells."""
    dtype: Dtype | None = None
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    has_media: bool = False
    """As of `ModelConfig`."""
    schemes: Schemes = UNQUANTISED
    """How its matrices are quantised."""
    classes: int = 0
    """As of `ModelConfig`: classes of Transformers generate text."""

    def quantised(self, asked: str | None) -> "FallbackConfig":
        """The same served with `--quantize asked`. Raises ConfigurationError or UnsupportedModel."""
        return replace(self, schemes=online_schemes(asked, self.schemes))


def is_candidate(architecture: str) -> bool:
    """Whether a class of this name generates text from left to right."""
    return re.fullmatch(r"\w+(ForCausalLM|LMHeadModel)", architecture) is not None


def parse_fallback_config(
    config: JsonObject, generation: JsonObject | None, folder: Path | None = None
) -> FallbackConfig:
    """`folder`: where the tokenizer may say which token ends a text, and other files how weights are quantised. Raises
    ConfigurationError (wrong value), ModelFilesError or UnsupportedModel, before anything of the model is built.
    """
    architecture = _SPELLINGS.get(architecture_of(config), architecture_of(config))
    schemes = read_schemes(config, folder)
    if schemes.method == "mxfp4":
        raise unsupported(architecture, "mxfp4 is read of the experts of gpt-oss only")
    if config.boolean("is_encoder_decoder", default=False):
        raise unsupported(architecture, "it has an encoder; only decoders of text run")
    layers = config.integer("num_hidden_layers", default=1, maximum=_MAX_LAYERS)
    for kind in config.strings("layer_types"):
        if kind not in _LAYERS:
            raise unsupported(
                architecture, f"`layer_types` in config.json has {kind!r}; only {' and '.join(_LAYERS)} run"
            )
    for kind in _rope_types(config):
        if kind in _LENGTH_DEPENDENT:
            raise unsupported(architecture, f"its rotary embedding of type {kind!r} depends on the length of a request")
    vocab_size = config.integer("vocab_size", default=_MAX_VOCABULARY)
    positions = next((key for key in _POSITIONS if key in config), None)
    bos_token_ids = config.token_ids("bos_token_id")
    return FallbackConfig(
        architecture,
        config.plain(),
        None if positions is None else config.integer(positions),
        config.integer("hidden_size", default=4096)
        * max(config.integer_each("intermediate_size", layers, default=4096)),
        dtype=stored_dtype(config),
        bos_token_id=bos_token_ids[0] if bos_token_ids else None,
        eos_token_ids=eos_token_ids(config, generation, vocab_size, folder),
        schemes=schemes,
    )


def unsupported(architecture: str, reason: str) -> UnsupportedModel:
    """Returns the error for a model that cannot run through its class."""
    return UnsupportedModel(
        f"{architecture} cannot run through Transformers: {reason}; choose a model of docs/models.md"
    )


def _rope_types(config: JsonObject) -> Iterator[str]:
    """Yields the RoPE types of all layers; the keys may be nested by the type of a layer."""
    for key in ("rope_scaling", "rope_parameters"):
        scaling = config.child(key)
        for each in (scaling, *(scaling.child(kind) for kind in _LAYERS)):
            name = "rope_type" if "rope_type" in each else "type"
            if name in each:
                yield each.string(name)
