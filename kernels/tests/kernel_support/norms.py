"""Norms of tokens whose adapters have weights of their own, and what they must be."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from text_generation_kernels import layer_norm, rms_norm

EPS = 1e-5


def replaced(operator: Callable[..., Any], is_rms: bool, has_bias: bool, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Of 20 tokens of four adapters, two of which have weights; elsewhere NaN stays."""
    torch.manual_seed(0)
    numbers = torch.randint(0, 4, (20,), dtype=torch.int32)
    places = torch.tensor([-1, 1, -1, 0], dtype=torch.int32)
    x, weights = torch.randn(20, 70).to(dtype), torch.randn(2, 70).to(dtype)
    biases = torch.randn(2, 70).to(dtype) if has_bias else None
    out, expected = torch.full_like(x, float("nan")), torch.full_like(x, float("nan"))
    for token, number in enumerate(numbers.tolist()):
        if (place := int(places[number])) < 0:
            continue
        own = slice(token, token + 1)
        if is_rms:
            rms_norm(x[own], weights[place], EPS, expected[own])
        else:
            layer_norm(x[own], weights[place], None if biases is None else biases[place], EPS, expected[own])
    operator(x, numbers, places, weights, biases, EPS, is_rms, out)
    return out, expected
