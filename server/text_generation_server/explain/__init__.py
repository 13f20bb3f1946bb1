"""Explains which kernel computes which matrix of a model at which number of tokens, and why not the kernels before it.

It needs the model's configuration alone: no weights, and no GPU.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

import torch

from text_generation_kernels.runtime.device import CARDS, meta_device_is

from ..config.fallback import FallbackConfig
from ..config.implementation import read_model_config
from ..config.shards import AskedShards, check_shards
from ..errors import ConfigurationError
from .choices import Chosen, chosen
from .matrices import Counted, Experts, Matrix, matrices_of


def explain(
    folder: Path,
    card: str,
    tokens: Sequence[int],
    shards: int = 1,
    dtype: str | None = None,
    quantize: str | None = None,
) -> Iterator[str]:
    """Yields lines of text. Raises ConfigurationError, ModelFilesError or UnsupportedModel."""
    if card not in CARDS:
        raise ConfigurationError(f"--card {card} is not known: use one of {', '.join(CARDS)}")
    config = read_model_config(folder, quantize=quantize)
    if isinstance(config, FallbackConfig):
        raise ConfigurationError(
            f"{config.architecture} runs through its class of Transformers, whose matrices only a start finds: explain "
            "takes models of our own decoder (docs/models.md)"
        )
    check_shards(config, AskedShards(shards))
    served: torch.dtype = getattr(torch, dtype or config.dtype or "bfloat16")
    with meta_device_is(CARDS[card]):
        yield f"{config.architecture} on {card}, {shards} shard{'s' * (shards > 1)}: kernels by number of tokens"
        for counted in matrices_of(config, served, shards):
            yield ""
            yield from _explained(counted, sorted(set(tokens)), shards, served)


def parse_tokens(text: str) -> tuple[int, ...]:
    """Returns numbers of tokens, such as "1,8,64". Raises ConfigurationError."""
    numbers = text.split(",")
    if not all(number.strip().isdecimal() and int(number) > 0 for number in numbers):
        raise ConfigurationError(f"--tokens {text} must be positive numbers with commas between them, such as 1,8,64")
    return tuple(map(int, numbers))


def _explained(counted: Counted, tokens: Sequence[int], shards: int, dtype: torch.dtype) -> Iterator[str]:
    part = counted.part
    times = f"{counted.times} x " if counted.times > 1 else ""
    yield f"{times}{'' if isinstance(part, Experts) else f'{part.name}: '}{part.format}"
    # With one rank alone what follows a sublayer reduces its partials.
    partials = not isinstance(part, Experts) and part.before_norm and shards == 1
    for first, last, kernels in _runs(part, tokens, partials, dtype):
        for index, choice in enumerate(kernels):
            size = f"{first}" if first == last else f"{first}-{last}"
            yield f"  {size if index == 0 else '':>9}  {choice.kernel}"
            yield from (f"{'':13}not {refusal}" for refusal in choice.refusals)


def _runs(
    part: Matrix | Experts, tokens: Sequence[int], partials: bool, dtype: torch.dtype
) -> Iterator[tuple[int, int, list[Chosen]]]:
    """Yields the first and the last of neighbouring numbers of tokens that have the same kernels."""
    kernels = ((count, list(chosen(part, count, partials, dtype))) for count in tokens)
    for same, run in groupby(kernels, key=lambda each: each[1]):
        counts = [count for count, _ in run]
        yield counts[0], counts[-1], same
