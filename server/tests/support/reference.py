"""Operators as their formulas say, in float64, without regard to speed. Independent of the code under test."""

import torch
from torch import Tensor


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """New residual, and output."""
    total = x.double() + residual.double()
    return total, rms_norm(total, weight, eps)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x.double() / (x.double().square().mean(dim=-1, keepdim=True) + eps).sqrt() * weight.double()


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


def causal_attention(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """`q` [tokens, heads, head_dim], the last tokens of the context of `k`, `v` [context, kv_heads, head_dim].

    Nothing to attend to gives zeros. One head at a time, so that a long context fits in memory.
    """
    tokens, context, heads = q.shape[0], k.shape[0], q.shape[1]
    seen = torch.arange(context, device=q.device) <= torch.arange(context - tokens, context, device=q.device)[:, None]
    out = q.new_zeros(q.shape, dtype=torch.float64)
    for head in range(heads if context else 0):
        kv_head = head * k.shape[1] // heads
        scores = q[:, head].double() @ k[:, kv_head].double().t() * scale
        out[:, head] = scores.masked_fill(~seen, float("-inf")).softmax(dim=1) @ v[:, kv_head].double()
    return out
