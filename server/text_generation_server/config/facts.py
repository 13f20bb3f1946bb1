"""Fields of `config.json` and `generation_config.json` that both implementations of models read."""

from collections.abc import Collection
from pathlib import Path
from typing import Literal, get_args

from ..errors import ModelFilesError
from .files import PARAMS, layout_of
from .json_object import JsonObject
from .params import config_of_params
from .tokenizer import eos_tokens

Dtype = Literal["float32", "float16", "bfloat16"]

DTYPES: tuple[Dtype, ...] = get_args(Dtype)


def config_files(folder: Path) -> tuple[JsonObject, JsonObject | None]:
    """`config.json`, or what `params.json` says instead, and `generation_config.json` where there is one. Raises
    ModelFilesError; for `params.json` what `config_of_params` raises.
    """
    path = folder / layout_of(folder).config
    if not path.is_file():
        raise ModelFilesError(f"{folder} has no config.json: --model-id must name a folder with a Transformers model")
    config = JsonObject.from_file(path)
    if path.name == PARAMS.config:
        config = config_of_params(config)
    generation_path = folder / "generation_config.json"
    generation = JsonObject.from_file(generation_path) if generation_path.is_file() else None
    return config, generation


def architecture_of(config: JsonObject) -> str:
    """Returns the model class that the file names. Raises ConfigurationError."""
    names = config.strings("architectures")
    if not names:
        raise config.error("architectures", 'a list with the model class, for example ["LlamaForCausalLM"]')
    return names[0]


def stored_dtype(config: JsonObject) -> Dtype | None:
    """Returns the type of the stored weights, if the file names one that is supported."""
    # Transformers 5 writes `dtype`, older versions wrote `torch_dtype`.
    for key in ("dtype", "torch_dtype"):
        if key in config:
            name = config.string(key).removeprefix("torch.")
            return name if name in DTYPES else None
    return None


def eos_token_ids(
    config: JsonObject,
    generation: JsonObject | None,
    vocab_size: int,
    folder: Path | None = None,
    ends: Collection[int] = (),
) -> tuple[int, ...]:
    """Returns the ids that end a text, ascending: `ends`, those of both files, and those of the tokenizer in `folder`
    unless `generation_config.json` has a list. Fine-tuned models often have a new token in the tokenizer alone. Raises
    ModelFilesError or ConfigurationError.
    """
    ids = {*ends, *config.token_ids("eos_token_id")}
    if generation is not None:
        ids.update(generation.token_ids("eos_token_id"))
    is_listed = generation is not None and isinstance(generation.plain().get("eos_token_id"), list)
    if folder is not None and not is_listed:
        ids.update(eos_tokens(folder))
    # An id outside the vocabulary can never be sampled.
    return tuple(sorted(token_id for token_id in ids if token_id < vocab_size))
