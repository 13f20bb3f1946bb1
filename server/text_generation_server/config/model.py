"""What `config.json` and `generation_config.json` of a model folder say, checked and in one layout.

Both are untrusted input: a wrong value is a `ConfigurationError` that names the key, before anything is allocated.
"""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from ..errors import ModelFilesError, UnsupportedModel
from .families import FAMILIES
from .json_object import JsonObject
from .names import TensorNames
from .spec import DecoderSpec, LayerSpec, RopeSpec, RopeType

Dtype = Literal["float32", "float16", "bfloat16"]

DTYPES: tuple[Dtype, ...] = get_args(Dtype)
MAX_CONTEXT_LENGTH = 2**31 - 1
"""Positions that the contract can name."""


@dataclass(frozen=True)
class ModelConfig:
    """One model: what it computes, where its tensors are, and facts about its texts."""

    architecture: str
    decoder: DecoderSpec
    names: TensorNames
    max_position_embeddings: int
    dtype: Dtype | None = None
    """Type of the stored weights; None when the file does not say."""
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    """Ids that end a text: those of `config.json` and of `generation_config.json`, ascending."""

    @property
    def ropes(self) -> tuple[RopeSpec, ...]:
        """The different rotary embeddings of its layers."""
        ropes = (layer.attention.rope for layer in self.decoder.layers)
        return tuple(dict.fromkeys(rope for rope in ropes if rope is not None))

    @property
    def max_context_length(self) -> int:
        """Tokens of prompt and answer together for which positions exist.

        Linear, dynamic and YaRN scaling stretch the pre-training length by `factor`, and many configurations keep
        the unstretched length in `max_position_embeddings`. llama3 configurations name the stretched length. Where
        layers differ, those that reach least count.
        """
        return min((self._reach(rope) for rope in self.ropes), default=self.max_position_embeddings)

    def _reach(self, rope: RopeSpec) -> int:
        if rope.rope_type in ("linear", "dynamic", "yarn"):
            stretched = rope.factor * rope.original_max_position_embeddings
            return max(self.max_position_embeddings, int(min(stretched, MAX_CONTEXT_LENGTH)))
        return self.max_position_embeddings

    def with_rope(self, rope_type: RopeType, factor: float) -> "ModelConfig":
        """The same with positions stretched from the length of `max_position_embeddings`."""
        length = self.max_position_embeddings

        def stretched(layer: LayerSpec) -> LayerSpec:
            if (rope := layer.attention.rope) is None:
                return layer
            plain = RopeSpec(theta=rope.theta, rotary_dim=rope.rotary_dim, interleaved=rope.interleaved)
            rope = dataclasses.replace(
                plain, rope_type=rope_type, factor=factor, original_max_position_embeddings=length
            )
            return dataclasses.replace(layer, attention=dataclasses.replace(layer.attention, rope=rope))

        layers = tuple(stretched(layer) for layer in self.decoder.layers)
        return dataclasses.replace(self, decoder=dataclasses.replace(self.decoder, layers=layers))

    @classmethod
    def from_folder(cls, folder: Path) -> "ModelConfig":
        """Reads the configuration files of a model folder.

        Raises ModelFilesError (unreadable), ConfigurationError (wrong value), UnsupportedModel.
        """
        if not (folder / "config.json").is_file():
            raise ModelFilesError(
                f"{folder} has no config.json: --model-id must name a folder with a Transformers model"
            )
        config = JsonObject.from_file(folder / "config.json")
        generation_path = folder / "generation_config.json"
        generation = JsonObject.from_file(generation_path) if generation_path.is_file() else None
        return parse_model_config(config, generation)


def parse_model_config(config: JsonObject, generation: JsonObject | None) -> ModelConfig:
    """Checks the contents of `config.json`, and of `generation_config.json` where there is one.

    Raises ConfigurationError (wrong value) or UnsupportedModel.
    """
    # First: other architectures have other keys.
    architecture = _architecture(config)
    family = FAMILIES[architecture]
    config = config.for_family(family.defaults, family.aliases)
    decoder = family.decoder(config)
    bos_token_ids = config.token_ids("bos_token_id")
    return ModelConfig(
        architecture=architecture,
        decoder=decoder,
        names=family.tensor_names(config),
        max_position_embeddings=config.integer(
            "max_position_embeddings", default=config.integer(family.longest, default=2048)
        ),
        dtype=_dtype(config),
        bos_token_id=bos_token_ids[0] if bos_token_ids else None,
        eos_token_ids=_eos_token_ids(config, generation, decoder.vocab_size),
    )


def _architecture(config: JsonObject) -> str:
    names = config.strings("architectures")
    if not names:
        raise config.error("architectures", 'a list with the model class, for example ["LlamaForCausalLM"]')
    if names[0] not in FAMILIES:
        known = ", ".join(sorted({family.title.split()[0] for family in FAMILIES.values()}, key=str.lower))
        raise UnsupportedModel(
            f"architecture {names[0]!r} is not supported; supported are models of {known} (docs/models.md has the list)"
        )
    method = config.child("quantization_config").string("quant_method", default="")
    if "quantization_config" in config and method not in FAMILIES[names[0]].quantisations:
        raise UnsupportedModel(
            f"`quantization_config` in config.json: checkpoints quantised by {method!r} are not supported"
        )
    return names[0]


def _dtype(config: JsonObject) -> Dtype | None:
    # Transformers 5 writes `dtype`, older versions wrote `torch_dtype`.
    for key in ("dtype", "torch_dtype"):
        if key in config:
            name = config.string(key).removeprefix("torch.")
            return name if name in DTYPES else None
    return None


def _eos_token_ids(config: JsonObject, generation: JsonObject | None, vocab_size: int) -> tuple[int, ...]:
    ids = set(config.token_ids("eos_token_id"))
    if generation is not None:
        ids.update(generation.token_ids("eos_token_id"))
    # An id that the vocabulary lacks can never be chosen.
    return tuple(sorted(token_id for token_id in ids if token_id < vocab_size))
