"""Operators as their formulas say, in float64, without regard to speed. Independent of the code under test."""

import torch
from torch import Tensor


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """New residual, and output."""
    total = x.double() + residual.double()
    return total, total / (total.square().mean(dim=-1, keepdim=True) + eps).sqrt() * weight.double()


def act_and_mul(gate_up: Tensor, activation: str) -> Tensor:
    """`gate_up` [tokens, 2 * n]; the formulas of Ramachandran et al. (2017) and of Hendrycks and Gimpel (2016)."""
    gate, up = gate_up.double().chunk(2, dim=-1)
    formulas = {
        "silu": lambda x: x / (1 + (-x).exp()),
        "gelu": lambda x: x / 2 * (1 + (x / 2**0.5).erf()),
        "gelu_tanh": lambda x: x / 2 * (1 + ((2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3)).tanh()),
    }
    return formulas[activation](gate) * up


def rotate(heads: Tensor, angles: Tensor) -> Tensor:
    """`heads` [tokens, heads, head_dim], `angles` [tokens, head_dim / 2]: each pair as a complex number."""
    half = heads.shape[-1] // 2
    pairs = torch.complex(heads[..., :half].double(), heads[..., half:].double())
    turned = pairs * torch.polar(torch.ones_like(angles), angles)[:, None]
    return torch.cat((turned.real, turned.imag), dim=-1)


def attention(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """One query head vector [head_dim] over [context, head_dim]."""
    weights = (k.double() @ q.double() * scale).softmax(dim=0)
    return weights @ v.double()
