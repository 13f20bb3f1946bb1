"""GEMVs of one token, with the norm as their prologue and the residual add as their epilogue."""

import torch
from torch.nn import functional

from text_generation_server.layers.weights import Activations, Dense, RmsNorm

EPS = 1e-5


def _normalised(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x * (x.square().mean(-1, keepdim=True) + EPS).rsqrt() * weight


def test_a_norm_is_applied_once_whoever_reads_first() -> None:
    torch.manual_seed(0)
    x, norm, weight = torch.randn(1, 16), torch.rand(16), torch.randn(6, 16)
    expected = _normalised(x, norm)
    by_product, by_reader = (Activations(x, norm=RmsNorm(norm, EPS)) for _ in range(2))
    for read in (by_product, by_reader):
        if read is by_reader:
            torch.testing.assert_close(read.x, expected)
        torch.testing.assert_close(Dense(weight).apply(read), functional.linear(expected, weight))
        torch.testing.assert_close(read.x, expected)
        torch.testing.assert_close(Dense(weight).apply(read), functional.linear(expected, weight))


def test_several_tokens_are_normalised_before_their_product() -> None:
    torch.manual_seed(0)
    x, norm, weight = torch.randn(3, 16), torch.rand(16), torch.randn(6, 16)
    out = Dense(weight).apply(Activations(x, norm=RmsNorm(norm, EPS)))
    torch.testing.assert_close(out, functional.linear(_normalised(x, norm), weight))


def test_a_product_is_added_to_an_open_sum() -> None:
    torch.manual_seed(0)
    x, weight, bias, total = torch.randn(1, 16), torch.randn(6, 16), torch.randn(6), torch.randn(1, 6)
    expected = total + functional.linear(x, weight, bias)
    assert Dense(weight, bias).add(Activations(x), total) is total
    torch.testing.assert_close(total, expected)
