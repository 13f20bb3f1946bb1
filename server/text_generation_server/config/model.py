"""Contents of `config.json` and `generation_config.json` of a model folder, checked and in one layout.

Both are untrusted input: a wrong value is a `ConfigurationError` that names the key, before anything is allocated.
"""

import dataclasses
from dataclasses import dataclass
from pathlib import Path

from ..errors import ConfigurationError, ModelFilesError, UnsupportedModel
from .classifier import as_classifier, generating_class, is_classifier
from .facts import Dtype, architecture_of, config_files, eos_token_ids, stored_dtype
from .families import FAMILIES, WITH_MEDIA, Family, text_part
from .families.vision import read_vision
from .json_object import JsonObject
from .names import TensorNames
from .quantisation import UNQUANTISED, Schemes, online_schemes, read_schemes
from .recurrent import LightningSpec
from .rope import refuse_unknown
from .rotary import RopeSpec, RopeType
from .spec import AttentionSpec, CompressedAttentionSpec, DecoderSpec, LatentAttentionSpec, MixerSpec
from .vision import VisionSpec

MAX_CONTEXT_LENGTH = 2**31 - 1
"""Positions that the shard contract can name."""
_OTHER_MEDIA = ("vision_config", "audio_config", "text_config")
"""Keys of multimodal models, which have a text model as a part."""
_EMBEDDING = ("Model", "ForMaskedLM")
"""Ends of names of classes without a head, and of encoders."""
_Rotating = AttentionSpec | LatentAttentionSpec | CompressedAttentionSpec | LightningSpec
"""Mixers that may have rotary embedding."""
_OF_OUTPUTS = ("bitsandbytes", "gptq")
"""Methods whose tools turn a matrix that is stored transposed before they quantise it, so that it has a usual layout.
"""


@dataclass(frozen=True)
class ModelConfig:
    """One model: its decoder, the names of its tensors, and facts about its texts."""

    architecture: str
    decoder: DecoderSpec
    names: TensorNames
    max_position_embeddings: int
    dtype: Dtype | None = None
    """The type of the stored weights; None when the file does not say."""
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    """The ids that end a text: those of `config.json` and of `generation_config.json`, ascending."""
    schemes: Schemes = UNQUANTISED
    """How its matrices are quantised."""
    has_media: bool = False
    """Whether it is the text model of a multimodal model."""
    vision: VisionSpec | None = None
    """Its encoder of images; None: it is served with text alone."""
    text_alone: str = ""
    """Why, where a multimodal model is."""

    @property
    def ropes(self) -> tuple[RopeSpec, ...]:
        """The distinct rotary embeddings of its layers."""
        attentions = (each for each in self.decoder.mixers if isinstance(each, _Rotating))
        return tuple(dict.fromkeys(each.rope for each in attentions if each.rope is not None))

    @property
    def max_context_length(self) -> int:
        """Tokens of prompt and answer together for which positions exist.

        Linear, dynamic and YaRN scaling stretch the pre-training length by `factor`, and many configurations keep
        the unstretched length in `max_position_embeddings`. llama3 configurations name the stretched length. Where
        layers differ, the shortest counts.
        """
        return min((self._reach(rope) for rope in self.ropes), default=self.max_position_embeddings)

    def _reach(self, rope: RopeSpec) -> int:
        if rope.rope_type in ("linear", "dynamic", "yarn"):
            stretched = rope.factor * rope.original_max_position_embeddings
            return max(self.max_position_embeddings, int(min(stretched, MAX_CONTEXT_LENGTH)))
        return self.max_position_embeddings

    @property
    def classes(self) -> int:
        """The classes that it scores; 0: it generates text."""
        return self.decoder.head.classes

    @property
    def is_less_than_files(self) -> bool:
        """Whether the configuration, not the size of the files, tells how much memory the weights take."""
        return bool(self.schemes.method) or self.has_media

    @property
    def largest_matrix(self) -> int:
        """The elements of the largest matrix of a layer."""
        blocks = (layer.shared.ffn for layer in self.decoder.layers if layer.shared is not None)
        networks = (each for layer in self.decoder.layers for each in (layer.ffn, layer.moe))
        inner = (each.inner for each in (*blocks, *networks) if each is not None)
        return self.decoder.hidden_size * max(inner, default=self.decoder.hidden_size)

    def with_rope(self, rope_type: RopeType, factor: float) -> "ModelConfig":
        """Returns the same model with positions stretched from the length of `max_position_embeddings`."""
        length = self.max_position_embeddings

        def stretched(mixer: MixerSpec) -> MixerSpec:
            if not isinstance(mixer, _Rotating) or (rope := mixer.rope) is None:
                return mixer
            rope = RopeSpec(
                rope_type,
                rope.theta,
                factor,
                length,
                rotary_dim=rope.rotary_dim,
                interleaved=rope.interleaved,
                query_growth=rope.query_growth,
                axes=rope.axes,
                still_pairs=rope.still_pairs,
            )
            return dataclasses.replace(mixer, rope=rope)

        layers = tuple(layer.with_mixers(stretched) for layer in self.decoder.layers)
        return dataclasses.replace(self, decoder=dataclasses.replace(self.decoder, layers=layers))

    def quantised(self, asked: str | None) -> "ModelConfig":
        """Returns the same model, served with `--quantize asked`. Raises ConfigurationError or UnsupportedModel."""
        schemes = online_schemes(asked, self.schemes)
        check_schemes(schemes, self.decoder, self.names)
        return dataclasses.replace(self, schemes=schemes)

    @classmethod
    def from_folder(cls, folder: Path) -> "ModelConfig":
        """Reads the configuration files of a model folder.

        Raises ModelFilesError (unreadable), ConfigurationError (wrong value), UnsupportedModel.
        """
        return parse_model_config(*config_files(folder), folder)


def parse_model_config(config: JsonObject, generation: JsonObject | None, folder: Path | None = None) -> ModelConfig:
    """Checks the contents of `config.json`, and of `generation_config.json` if it exists. Other files of `folder` may
    say how the weights are quantised, and which token ends a text.

    Raises ConfigurationError (wrong value) or UnsupportedModel.
    """
    # The architecture comes first, because others have other keys.
    architecture = _known_architecture(config)
    whole = config
    family, config = _family(architecture, config)
    has_media = architecture in WITH_MEDIA or family.tower in config
    config = config.for_family(family.defaults, family.aliases, family.older, family.unread)
    decoder = family.decoder(config)
    refuse_unknown(config)
    bos_token_ids = config.token_ids("bos_token_id")
    decoder, names = as_classifier(architecture, config, decoder, family.tensor_names(config))
    schemes = family.schemes(config, read_schemes(config, folder)).without(names.unstored)
    check_schemes(schemes, decoder, names)
    vision, text_alone = _vision(architecture, whole, config, folder) if has_media else (None, "")
    return ModelConfig(
        architecture=architecture,
        decoder=decoder,
        names=names,
        max_position_embeddings=family.positions(config)
        or config.integer("max_position_embeddings", default=config.integer(family.longest, default=2048)),
        dtype=stored_dtype(config),
        bos_token_id=bos_token_ids[0] if bos_token_ids else None,
        eos_token_ids=eos_token_ids(config, generation, decoder.vocab_size, folder, family.ends),
        schemes=schemes,
        has_media=has_media,
        vision=vision,
        text_alone=text_alone,
    )


def _vision(
    architecture: str, whole: JsonObject, text: JsonObject, folder: Path | None
) -> tuple[VisionSpec | None, str]:
    """Returns the encoder of images, or why there is none: text is served whatever is wrong with it."""
    try:
        return read_vision(architecture, whole, text, folder), ""
    except (ConfigurationError, ModelFilesError, UnsupportedModel) as error:
        return None, str(error)


def _family(architecture: str, config: JsonObject) -> tuple[Family, JsonObject]:
    """Returns the family of a known class, and the configuration of its model of text."""
    return text_part(config) if architecture in WITH_MEDIA else (FAMILIES[generating_class(architecture)], config)


def _known_architecture(config: JsonObject) -> str:
    name = architecture_of(config)
    sees = is_classifier(name) and any(key in config for key in _OTHER_MEDIA)
    if sees or (generating_class(name) not in FAMILIES and name not in WITH_MEDIA):
        raise UnsupportedModel(f"architecture {name!r} is not supported{_cause(config)}; {supported()}")
    return name


def _cause(config: JsonObject) -> str:
    """Returns why an architecture is unsupported, if the file tells."""
    if any(key in config for key in _OTHER_MEDIA):
        titles = ", ".join(WITH_MEDIA.values())
        return f": it is for images or sound beside text, and of such models only {titles} run, with text alone"
    if config.boolean("is_encoder_decoder", default=False):
        return ": it has an encoder, and only decoders of text run"
    name = architecture_of(config)
    if is_classifier(name):
        return (
            ": of classifiers those run whose decoder does; encoders that classify or rerank (BERT) are served by Text "
            "Embeddings Inference"
        )
    if name.endswith(_EMBEDDING):
        return ": it makes embeddings, which Text Embeddings Inference serves"
    return ""


def check_schemes(schemes: Schemes, decoder: DecoderSpec, names: TensorNames) -> None:
    """Raises UnsupportedModel for a family whose tensors cannot be read in these formats."""
    has_experts = any(layer.moe is not None for layer in decoder.layers)
    if schemes.method == "mxfp4" and not (has_experts and names.experts_layout == "interleaved"):
        raise UnsupportedModel("`quantization_config` in config.json: mxfp4 is read of the experts of gpt-oss only")
    if not schemes.used or schemes.online or schemes.method == "mxfp4":
        return
    if has_experts and names.experts_layout not in ("each", "stacked"):
        raise UnsupportedModel(
            f"checkpoints of this family quantised by {schemes.method!r} are not supported, since their experts lie in "
            "one tensor; use the 16-bit checkpoint, with --quantize fp8 or eetq"
        )
    if names.transposed and schemes.method not in _OF_OUTPUTS:
        raise UnsupportedModel(
            f"checkpoints of this family quantised by {schemes.method!r} are not supported, since their matrices are "
            "transposed; use the 16-bit checkpoint, with --quantize fp8 or eetq"
        )


def supported() -> str:
    """Returns the list of supported families, for messages about an unsupported architecture."""
    known = ", ".join(sorted({family.title.split()[0] for family in FAMILIES.values()}, key=str.lower))
    return f"supported are models of {known} (docs/models.md has the list)"
