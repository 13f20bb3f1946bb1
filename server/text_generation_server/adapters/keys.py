"""Names of tensors in an adapter's file: which module of the trained model each belongs to, and what it is to it."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Part = Literal["a", "b", "bias", "embedding_a", "embedding_b", "magnitude", "tokens", "base", "base_bias", "whole"]
"""`base`: the whole weight below a change; `whole`: a tensor that the adapter replaces, of which `module` is the name.
"""

_SUFFIXES: dict[Part, re.Pattern[str]] = {
    "a": re.compile(r"(.+)\.lora_A\.weight"),
    "b": re.compile(r"(.+)\.lora_B\.weight"),
    "bias": re.compile(r"(.+)\.lora_B\.bias"),
    "embedding_a": re.compile(r"(.+)\.lora_embedding_A"),
    "embedding_b": re.compile(r"(.+)\.lora_embedding_B"),
    "magnitude": re.compile(r"(.+)\.lora_magnitude_vector(?:\.weight)?"),
    "tokens": re.compile(r"(.+)\.token_adapter\.trainable_tokens_delta"),
    "base": re.compile(r"(.+)\.base_layer\.weight"),
    "base_bias": re.compile(r"(.+)\.base_layer\.bias"),
}


@dataclass(frozen=True)
class Site:
    """The tensors of an adapter that belong to one module, or to one parameter of it."""

    module: str
    """Its name in the trained model, after PEFT's own prefix."""
    inner: int
    """How many wrappers of further parameters of the module lie around this one."""
    tensors: dict[Part, str]
    """Names in the file."""


def sites(names: Iterable[str]) -> list[Site]:
    """Groups the tensors of a file by module."""
    found: dict[tuple[str, int], Site] = {}
    for name in sorted(names):
        module, part = _parse(name)
        inner = 0
        while module.endswith(".base_layer"):
            module, inner = module.removesuffix(".base_layer"), inner + 1
        site = found.setdefault((module, inner), Site(module, inner, {}))
        site.tensors[part] = name
    return list(found.values())


def _parse(name: str) -> tuple[str, Part]:
    plain = name.removeprefix("base_model.model.")
    for part, pattern in _SUFFIXES.items():
        if match := pattern.fullmatch(plain):
            return match[1], part
    return plain, "whole"
