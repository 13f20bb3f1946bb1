"""The modules of a class, built from `config.json` before weights are read."""

# Switches of the library have names with an underscore.
# pyright: reportPrivateUsage=false

import inspect
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import torch
import transformers
from torch import nn
from transformers import CONFIG_MAPPING, PreTrainedModel
from transformers.initialization import no_init_weights
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
)
from transformers.utils import logging as transformers_logging

from ...config.fallback import FallbackConfig, is_candidate, unsupported
from ...config.model import supported
from ...errors import ConfigurationError, UnsupportedModel
from .interfaces import SERVING, register_interfaces

_UNREAD = ("auto_map", "_attn_implementation", "attn_implementation", "quantization_config", "compression_config")
"""Keys that name code of the model, an attention that is not ours, or a quantisation that our readers know."""


def build_skeleton(config: FallbackConfig, dtype: torch.dtype) -> PreTrainedModel:
    """Builds the model with parameters on the meta device and buffers on the CPU. Tied parameters are one.

    Raises UnsupportedModel, or ConfigurationError for values that its class refuses.
    """
    # The library's warnings are for those who train, or call its own attention.
    transformers_logging.set_verbosity_error()
    register_interfaces()
    model_class = _class_of(config)
    settings = _settings(config, model_class)
    try:
        with no_init_weights(), _parameters_on_meta():
            model = model_class._from_config(
                settings, dtype=dtype, attn_implementation=SERVING, experts_implementation=SERVING
            )
        model.tie_weights()
    except Exception as error:  # whatever the class raises for values that it does not take
        raise ConfigurationError(
            f"{config.architecture} cannot be built from config.json: {type(error).__name__}: {error}"
        ) from error
    return model.eval().requires_grad_(False)


def count_parameters(config: FallbackConfig) -> int:
    """Counts the parameters of the whole model, tied ones once. Raises what `build_skeleton` raises."""
    with torch.inference_mode(False):
        return sum(parameter.numel() for parameter in build_skeleton(config, torch.float16).parameters())


def _class_of(config: FallbackConfig) -> type[PreTrainedModel]:
    """Returns the class of this name in the library; no other code is looked up."""
    name = config.architecture
    known = {*MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()}
    # That of Mistral 4, which is a part of a model for images only.
    known |= {each for each in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES.values() if is_candidate(each)}
    if name not in known or not hasattr(transformers, name):
        raise UnsupportedModel(
            f"architecture {name!r} is not supported: it is not in Transformers {transformers.__version__} either; "
            f"{supported()}"
        )
    model_class: type[PreTrainedModel] = getattr(transformers, name)
    if model_class._is_stateful:
        raise unsupported(name, "it keeps a state beside keys and values")
    if not model_class._supports_attention_backend:
        raise unsupported(name, "its attention does not go through the library's attention interface")
    return model_class


def _settings(config: FallbackConfig, model_class: type[PreTrainedModel]) -> Any:
    values = {key: value for key, value in config.values.items() if key not in _UNREAD}
    model_type = values.get("model_type")
    settings_class: Any = model_class.config_class
    if isinstance(model_type, str) and MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(model_type) == config.architecture:
        settings_class = CONFIG_MAPPING[model_type]
    try:
        settings = settings_class.from_dict(values)
    except Exception as error:  # its checks raise errors of many kinds
        raise ConfigurationError(f"config.json: {type(error).__name__}: {' '.join(str(error).split())}") from error
    settings.use_cache = False
    return settings


@contextmanager
def _parameters_on_meta() -> Generator[None, None, None]:
    """Puts new parameters on the meta device, where they take no memory; the class computes buffers, which no
    checkpoint has. A matrix is allocated for a moment and never written. Only the engine thread may use this: it
    patches torch.
    """
    register = nn.Module.register_parameter

    def on_meta(module: nn.Module, name: str, param: nn.Parameter | None) -> None:
        register(module, name, param if param is None else nn.Parameter(param.to("meta"), requires_grad=False))

    nn.Module.register_parameter = on_meta  # type: ignore[assignment]
    try:
        yield
    finally:
        nn.Module.register_parameter = register


def decoder_name(model: PreTrainedModel) -> str:
    """Returns the path of the module that turns ids into hidden states. Raises UnsupportedModel."""
    decoder = model.get_decoder()
    name = next((name for name, module in model.named_modules() if module is decoder), "")
    if not name:
        raise unsupported(type(model).__name__, "it has no decoder of its own")
    if "position_ids" not in inspect.signature(inspect.unwrap(type(decoder).forward)).parameters:
        raise unsupported(type(model).__name__, "it counts positions itself, and a step holds tokens of many requests")
    return name


def layers_of(model: PreTrainedModel) -> int:
    """Returns the number of layers in the configuration."""
    return int(model.config.get_text_config().num_hidden_layers)


class _Result:
    """The result of a decoder, with hidden states alone; every other attribute is None."""

    def __init__(self, hidden: torch.Tensor | None) -> None:
        self.last_hidden_state = hidden

    def __getitem__(self, index: int) -> torch.Tensor | None:
        return (self.last_hidden_state,)[index]

    def __getattr__(self, _: str) -> None:
        return None


class Given(nn.Module):
    """Stands in for a decoder whose result is known, so that the class does the rest with that."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden: torch.Tensor | None = None
        """[N, hidden]"""

    def forward(self, *_: object, **__: object) -> _Result:
        """See above."""
        return _Result(None if self.hidden is None else self.hidden[None])
