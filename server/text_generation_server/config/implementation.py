"""Choice of the code that computes a model: our one decoder, or the class of Transformers."""

from dataclasses import replace
from pathlib import Path
from typing import Literal

from ..errors import UnsupportedModel
from .facts import architecture_of, config_files
from .fallback import FallbackConfig, is_candidate, parse_fallback_config
from .families import FAMILIES, WITH_MEDIA, class_of_part, refuse_missing
from .model import ModelConfig, parse_model_config, supported

ModelImpl = Literal["auto", "native", "transformers"]
"""`auto` uses our decoder where it knows the family, else the class of Transformers."""

AnyModelConfig = ModelConfig | FallbackConfig


def read_model_config(folder: Path, impl: ModelImpl = "auto", quantize: str | None = None) -> AnyModelConfig:
    """Reads the configuration files of a model folder for the implementation and the `--quantize` of the operator.

    Raises ModelFilesError (unreadable), ConfigurationError (wrong value), UnsupportedModel.
    """
    config, generation = config_files(folder)
    architecture = architecture_of(config)
    refuse_missing(architecture)
    has_media = architecture in WITH_MEDIA
    ours = has_media or architecture in FAMILIES or not is_candidate(architecture)
    if impl == "native" or (impl == "auto" and ours):
        return parse_model_config(config, generation, folder).quantised(quantize)
    if has_media:
        config = class_of_part(config)
    elif not is_candidate(architecture):
        raise UnsupportedModel(
            f"architecture {architecture!r} cannot run with --model-impl transformers, which takes `...ForCausalLM` "
            f"classes, and models of text in others that docs/models.md names; {supported()}"
        )
    return replace(parse_fallback_config(config, generation, folder), has_media=has_media).quantised(quantize)
