"""What `config.json` and `generation_config.json` of a model folder say, checked and in one layout.

Both are untrusted input: a wrong value is a `ConfigurationError` that names the key, before anything is allocated.
"""

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, cast, get_args

from ..errors import ModelFilesError, UnsupportedModel
from .json_object import JsonObject

Dtype = Literal["float32", "float16", "bfloat16"]
Activation = Literal["silu", "gelu", "gelu_tanh"]
RopeType = Literal["default", "linear", "dynamic", "llama3", "yarn"]

DTYPES: tuple[Dtype, ...] = get_args(Dtype)
MAX_CONTEXT_LENGTH = 2**31 - 1
"""Positions that the contract can name."""

ARCHITECTURES = ("LlamaForCausalLM",)
"""Model classes that are implemented; `models/registry.py` loads them. Known here so that others are refused early."""

# Names of the field for the three activations; "gelu" is the exact form with the error function.
_ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
}


@dataclass(frozen=True)
class RopeScaling:
    """Rotary position embedding: the base and how it is stretched (`layers/rope.py` holds the formulas).

    `original_max_position_embeddings` is the context length of pre-training. Fields that a type does not use keep
    their defaults.
    """

    rope_type: RopeType = "default"
    theta: float = 10_000.0
    factor: float = 1.0
    original_max_position_embeddings: int = 2048
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    attention_factor: float | None = None
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True


@dataclass(frozen=True)
class ModelConfig:
    """Architecture facts of one model. Counts are those of the whole model, not of a rank."""

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position_embeddings: int
    rms_norm_eps: float = 1e-6
    hidden_act: Activation = "silu"
    attention_bias: bool = False
    mlp_bias: bool = False
    tie_word_embeddings: bool = False
    dtype: Dtype | None = None
    """Type of the stored weights; None when the file does not say."""
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    """Ids that end a text: those of `config.json` and of `generation_config.json`, ascending."""
    rope: RopeScaling = field(default_factory=RopeScaling)

    @property
    def max_context_length(self) -> int:
        """Tokens of prompt and answer together for which positions exist.

        Linear, dynamic and YaRN scaling stretch the pre-training length by `factor`, and many configurations keep
        the unstretched length in `max_position_embeddings`. llama3 configurations name the stretched length.
        """
        if self.rope.rope_type in ("linear", "dynamic", "yarn"):
            stretched = self.rope.factor * self.rope.original_max_position_embeddings
            return max(self.max_position_embeddings, int(min(stretched, MAX_CONTEXT_LENGTH)))
        return self.max_position_embeddings

    def with_rope(self, rope_type: RopeType, factor: float) -> "ModelConfig":
        """The same with positions stretched from the length of `max_position_embeddings`."""
        length = self.max_position_embeddings
        rope = RopeScaling(rope_type, self.rope.theta, factor, original_max_position_embeddings=length)
        return dataclasses.replace(self, rope=rope)

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
    hidden_size = config.integer("hidden_size")
    num_heads = config.integer("num_attention_heads")
    num_kv_heads = config.integer("num_key_value_heads", default=num_heads)
    if num_heads % num_kv_heads:
        raise config.error("num_key_value_heads", f"a divisor of `num_attention_heads` ({num_heads})")
    if "head_dim" not in config and hidden_size % num_heads:
        raise config.error("num_attention_heads", f"a divisor of `hidden_size` ({hidden_size}), or `head_dim` be given")
    head_dim = config.integer("head_dim", default=hidden_size // num_heads)
    if head_dim % 2:
        raise config.error("head_dim", "even: rotary embedding turns pairs")
    max_position_embeddings = config.integer("max_position_embeddings", default=2048)
    vocab_size = config.integer("vocab_size")
    bos_token_ids = config.token_ids("bos_token_id")
    return ModelConfig(
        architecture=architecture,
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        intermediate_size=config.integer("intermediate_size"),
        num_layers=config.integer("num_hidden_layers"),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        max_position_embeddings=max_position_embeddings,
        rms_norm_eps=config.number("rms_norm_eps", default=1e-6),
        hidden_act=_activation(config),
        attention_bias=config.boolean("attention_bias", default=False),
        mlp_bias=config.boolean("mlp_bias", default=False),
        tie_word_embeddings=config.boolean("tie_word_embeddings", default=False),
        dtype=_dtype(config),
        bos_token_id=bos_token_ids[0] if bos_token_ids else None,
        eos_token_ids=_eos_token_ids(config, generation, vocab_size),
        rope=_rope(config, head_dim, max_position_embeddings),
    )


def _architecture(config: JsonObject) -> str:
    names = config.strings("architectures")
    if not names:
        raise config.error("architectures", 'a list with the model class, for example ["LlamaForCausalLM"]')
    if names[0] not in ARCHITECTURES:
        raise UnsupportedModel(f"architecture {names[0]!r} is not supported; supported: {', '.join(ARCHITECTURES)}")
    if "quantization_config" in config:
        raise UnsupportedModel("`quantization_config` in config.json: quantised checkpoints are not supported")
    return names[0]


def _activation(config: JsonObject) -> Activation:
    name = config.string("hidden_act", default="silu")
    if name not in _ACTIVATIONS:
        raise config.error("hidden_act", f"one of {', '.join(_ACTIVATIONS)}")
    return _ACTIVATIONS[name]


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


def _rope(config: JsonObject, head_dim: int, max_position_embeddings: int) -> RopeScaling:
    """One layout from three: `rope_theta` alone, `rope_theta` with `rope_scaling`, and the newer `rope_parameters`."""
    key = "rope_parameters" if "rope_parameters" in config else "rope_scaling"
    scaling = config.child(key)
    theta = scaling.number("rope_theta") if "rope_theta" in scaling else config.number("rope_theta", default=10_000.0)
    rope_type = scaling.string("rope_type" if "rope_type" in scaling else "type", default="default")
    if rope_type not in get_args(RopeType):
        raise UnsupportedModel(
            f"`{key}` in config.json asks for {rope_type!r}; known are {', '.join(get_args(RopeType))}"
        )
    if any(source.number("partial_rotary_factor", default=1.0) != 1.0 for source in (config, scaling)):
        raise UnsupportedModel(
            "`partial_rotary_factor` in config.json must be 1: partial rotary embedding is not supported"
        )
    if rope_type == "default":
        return RopeScaling(theta=theta, original_max_position_embeddings=max_position_embeddings)
    if rope_type == "dynamic" and head_dim <= 2:
        raise config.error("head_dim", "above 2 with dynamic rope scaling")
    original = scaling.integer("original_max_position_embeddings", default=max_position_embeddings)
    if rope_type in ("linear", "dynamic"):
        original = max_position_embeddings
    factor_default = max_position_embeddings / original if rope_type == "yarn" else None
    low_freq_factor = scaling.number("low_freq_factor", default=None if rope_type == "llama3" else 1.0)
    high_freq_factor = scaling.number("high_freq_factor", default=None if rope_type == "llama3" else 4.0)
    if rope_type == "llama3" and high_freq_factor <= low_freq_factor:
        raise scaling.error("high_freq_factor", f"above `low_freq_factor` ({low_freq_factor:g})")
    return RopeScaling(
        rope_type=cast("RopeType", rope_type),
        theta=theta,
        factor=scaling.number("factor", default=factor_default),
        original_max_position_embeddings=original,
        low_freq_factor=low_freq_factor,
        high_freq_factor=high_freq_factor,
        attention_factor=scaling.optional_number("attention_factor"),
        beta_fast=scaling.number("beta_fast", default=32.0),
        beta_slow=scaling.number("beta_slow", default=1.0),
        mscale=scaling.optional_number("mscale"),
        mscale_all_dim=scaling.optional_number("mscale_all_dim"),
        truncate=scaling.boolean("truncate", default=True),
    )
