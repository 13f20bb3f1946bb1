"""Parts that families of vision towers share."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ....errors import UnsupportedModel
from ...json_object import JsonObject
from ...pixels import PixelSpec
from ...spec import NormSpec
from ...tokenizer import token_id
from ...vision import LinearSpec, VisionActivation, VisionSpec

ACTIVATIONS: Mapping[str, VisionActivation] = {
    "quick_gelu": "quick_gelu",
    "gelu": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "silu": "silu",
    "relu": "relu",
}
"""By the names of Transformers."""
MOST_BLOCKS = 1_000
"""A list of blocks is made: a hostile number must not fill the memory."""
LARGEST_VIEW = 2**14
"""Pixels along a side of a view."""
MOST_QUERIES = 2**14
"""Learned queries."""
CLIP_PIXELS = PixelSpec(mean=(0.48145466, 0.4578275, 0.40821073), std=(0.26862954, 0.26130258, 0.27577711))
"""The normalisation of CLIP, where no file says it."""


@dataclass(frozen=True)
class Whole:
    """The configuration of a model for images, as the family of its tower reads it."""

    config: JsonObject
    """`config.json`."""
    vision: JsonObject
    """Its part that is a tower."""
    text: JsonObject
    """The part that is a model of text."""
    pixels: PixelSpec
    folder: Path | None = None
    """Where the files of the model are."""

    def token_named(self, name: str, default: int | None = None) -> int:
        """The placeholder of files whose configuration does not have it. Raises UnsupportedModel without a default."""
        found = None if self.folder is None else token_id(self.folder, name)
        found = default if found is None else found
        if found is None:
            raise UnsupportedModel(
                f"no file of the tokenizer tells the id of {name}, which stands for images in prompts"
            )
        return found

    @property
    def token_id(self) -> int:
        """The placeholder in prompts, under the name that newer or older files have."""
        key = "image_token_id" if "image_token_id" in self.config else "image_token_index"
        return self.config.integer(key, minimum=0)

    @property
    def hidden(self) -> int:
        """The width of the decoder's hidden states."""
        return self.text.integer("hidden_size")


@dataclass(frozen=True)
class VisionFamily:
    """Towers whose configuration and tensors are read in the same way."""

    read: Callable[[Whole], VisionSpec]
    """Raises ConfigurationError or UnsupportedModel."""
    defaults: Mapping[str, object] = field(default_factory=dict[str, object])
    """What it means when keys of the part that is a tower are absent."""
    of_whole: Mapping[str, object] = field(default_factory=dict[str, object])
    """Likewise of `config.json`."""
    older: Mapping[str, str] = field(default_factory=dict[str, str])
    """From keys of the part that is a tower to other names that files have."""
    pixels: PixelSpec | None = None
    """How pixels are read, where no file says it."""
    part: str = "vision_config"
    """The key of the part that is a tower."""


def activation(config: JsonObject, key: str = "hidden_act") -> VisionActivation:
    """Reads the name of an activation."""
    return config.choice(key, ACTIVATIONS)


def blocks(config: JsonObject, key: str = "num_hidden_layers") -> int:
    """Reads the number of blocks."""
    return config.integer(key, maximum=MOST_BLOCKS)


def side(config: JsonObject, key: str, maximum: int = LARGEST_VIEW) -> int:
    """Reads a number of pixels along a side, which some files give twice, for height and width."""
    sides = config.integer_or_list(key, (), 1, maximum)
    if not sides or len(set(sides)) != 1:
        raise config.error(key, "the pixels along a side, the same for height and width")
    return sides[0]


def head_dim(config: JsonObject, hidden: int, key: str = "num_attention_heads", multiple: int = 1) -> int:
    """Returns the elements of a head: a multiple of 4 where rows and columns rotate pairs of them. `key` has the number
    of heads.
    """
    if hidden % (config.integer(key) * multiple):
        of = f" of {multiple} elements or a multiple" if multiple > 1 else ""
        raise config.error(key, f"a number of heads{of} that divide the {hidden} elements of a hidden state")
    return hidden // config.integer(key)


def layer_norm(eps: float) -> NormSpec:
    """A layer norm with a bias."""
    return NormSpec(eps, kind="layer", bias=True)


def linear(name: str, outputs: int, bias: bool = True, then: VisionActivation | None = None) -> LinearSpec:
    """A linear layer of a projector with the usual names."""
    return LinearSpec(f"{name}.weight", outputs, f"{name}.bias" if bias else None, then)


def feature_layers(config: JsonObject, count: int, key: str = "vision_feature_layer") -> tuple[int, ...]:
    """Reads which hidden states of `count` blocks a projector has: numbers as in `LevelSpec.reads`; negative ones count
    from the end.
    """
    layers = config.integer_or_list(key, (), -count - 1, count)
    if not layers:
        raise config.error(key, "the number of a block, or a list of some")
    return tuple(each % (count + 1) for each in layers)


def keeps_class(config: JsonObject) -> bool:
    """Reads whether the first element of a view takes a position of the prompt."""
    return config.choice("vision_feature_select_strategy", {"default": False, "full": True})


TWO_PREFIXES = (
    ("vision_tower.vision_model.", "multi_modal_projector."),
    ("vision_tower.", "multi_modal_projector."),
    ("model.vision_tower.vision_model.", "model.multi_modal_projector."),
    ("model.vision_tower.", "model.multi_modal_projector."),
)
"""Of most models whose projector stands beside the tower: published files, those of Transformers 5, and those of its
versions that wrote `model.` in front.
"""
