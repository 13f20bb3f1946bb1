"""Operators as their formulas say, in float64, without regard to speed. Independent of the code under test."""

import torch
from torch import Tensor

from text_generation_kernels import AttentionOptions, ExpertMlps, Routing


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """New residual, and output."""
    total = x.double() + residual.double()
    return total, rms_norm(total, weight, eps)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x.double() / (x.double().square().mean(dim=-1, keepdim=True) + eps).sqrt() * weight.double()


def gated_norm(x: Tensor, gate: Tensor, weight: Tensor, eps: float, gate_first: bool, opening: str = "silu") -> Tensor:
    opening = activate(gate, "silu") if opening == "silu" else 1 / (1 + (-gate.double()).exp())
    return rms_norm(x.double() * opening, weight, eps) if gate_first else rms_norm(x, weight, eps) * opening


def activate(x: Tensor, activation: str) -> Tensor:
    """The formulas of Ramachandran et al. (2017), of Hendrycks and Gimpel (2016) and of So et al. (2021)."""
    formulas = {
        "silu": lambda x: x / (1 + (-x).exp()),
        "gelu": lambda x: x / 2 * (1 + (x / 2**0.5).erf()),
        "gelu_tanh": lambda x: x / 2 * (1 + ((2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3)).tanh()),
        "relu": lambda x: (x + x.abs()) / 2,
        "relu2": lambda x: ((x + x.abs()) / 2) ** 2,
    }
    return formulas[activation](x.double())


def act_and_mul(gate_up: Tensor, activation: str) -> Tensor:
    """`gate_up` [tokens, 2 * n]; "clamped_swiglu" as in the model file of gpt-oss, "silu_within_7" of Step 3.5,
    "silu_below_10" of GLM 5.3."""
    gate, up = gate_up.double().chunk(2, dim=-1)
    if activation.startswith("silu_within_"):
        bound = float(activation.split("_")[-1])
        return activate(gate, "silu").clamp(max=bound) * up.clamp(min=-bound, max=bound)
    if activation.startswith("silu_below_"):
        bound = float(activation.split("_")[-1])
        return activate(gate.clamp(max=bound), "silu") * up.clamp(min=-bound, max=bound)
    if activation != "clamped_swiglu":
        return activate(gate, activation) * up
    gate, up = gate.clamp(max=7.0), up.clamp(min=-7.0, max=7.0)
    return (up + 1) * gate / (1 + (-1.702 * gate).exp())


def rotate(heads: Tensor, angles: Tensor) -> Tensor:
    """`heads` [tokens, heads, head_dim], `angles` [tokens, head_dim / 2]: each pair as a complex number."""
    half = heads.shape[-1] // 2
    pairs = torch.complex(heads[..., :half].double(), heads[..., half:].double())
    turned = pairs * torch.polar(torch.ones_like(angles), angles)[:, None]
    return torch.cat((turned.real, turned.imag), dim=-1)


def causal_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    options: AttentionOptions | None = None,
) -> Tensor:
    """`q` [tokens, heads, head_dim], the last tokens of the context of `k`, `v` [context, kv_heads, head_dim].

    Nothing to attend to gives zeros. One head at a time, so that a long context fits in memory. A sink is the score of
    one more key, whose value is zero.
    """
    options = options or AttentionOptions()
    tokens, context, heads = q.shape[0], k.shape[0], q.shape[1]
    distances = (
        torch.arange(context, device=q.device) - torch.arange(context - tokens, context, device=q.device)[:, None]
    )
    seen = (distances <= 0) & (distances > (-options.window if options.window else -context - 1))
    out = q.new_zeros(tokens, heads, v.shape[2], dtype=torch.float64)
    for head in range(heads if context else 0):
        kv_head = head * k.shape[1] // heads
        scores = q[:, head].double() @ k[:, kv_head].double().t() * scale
        if options.softcap:
            scores = (scores / options.softcap).tanh() * options.softcap
        if options.slopes is not None:
            scores += options.slopes[head].double() * distances
        sink = None if options.sinks is None else options.sinks[head].double().exp()
        exponentials = scores.masked_fill(~seen, float("-inf")).exp()
        total = exponentials.sum(dim=1, keepdim=True) + (0 if sink is None else sink)
        out[:, head] = exponentials / total @ v[:, kv_head].double()
    return out


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
    centred = x.double() - x.double().mean(dim=-1, keepdim=True)
    scaled = centred / (centred.square().mean(dim=-1, keepdim=True) + eps).sqrt() * weight.double()
    return scaled if bias is None else scaled + bias.double()


def moe_experts(x: Tensor, routing: Routing, mlps: ExpertMlps) -> Tensor:
    """Each token alone, each of its experts alone."""
    rows, (gate_up, down, activation) = [], (mlps.gate_up, mlps.down, mlps.activation)
    for token, experts, shares in zip(x.double(), routing.ids.tolist(), routing.weights.double(), strict=True):
        total = torch.zeros_like(token)
        for expert, share in zip(experts, shares, strict=True):
            inner = gate_up.of(expert, len(token)).double() @ token
            inner += 0 if gate_up.bias is None else gate_up.bias[expert].double()
            name = activation.removesuffix("_alone")
            activated = act_and_mul(inner[None], name)[0] if name == activation else activate(inner, name)
            output = down.of(expert, len(activated)).double() @ activated
            total += share * (output + (0 if down.bias is None else down.bias[expert].double()))
        rows.append(total)
    return torch.stack(rows)


def stored_in_8_bits(heads: Tensor, dtype: torch.dtype, scale: Tensor | None = None) -> Tensor:
    """`heads` [..., head_dim] as a cache of 8 bits gives them back. int8: 127 steps to each side; floats round as torch
    does. The scale of a head is measured and rounded up to a bfloat16, or given [...].
    """
    largest = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0, torch.float8_e5m2: 1.75}[dtype]
    if scale is None:
        exact = heads.float().abs().amax(-1).clamp(min=1e-6) / largest
        near = exact.bfloat16()
        scale = torch.where(near.float() < exact, torch.nextafter(near, torch.full_like(near, torch.inf)), near).float()
    codes = heads.float() / scale[..., None]
    most = 127.0 if dtype == torch.int8 else torch.finfo(dtype).max
    codes = codes.clamp(-most, most)
    codes = codes.round() if dtype == torch.int8 else codes.to(dtype).float()
    return (codes * scale[..., None]).to(heads.dtype)


def stored_in_4_bits(heads: Tensor) -> Tensor:
    """`heads` [..., head_dim] as a cache of 4 bits gives them back: 16 steps from the smallest to the largest of each
    group, of which a head has 1, 2, 4 or 8, as few as let none have more than 64 elements.
    """
    groups = next(each for each in (1, 2, 4, 8) if heads.shape[-1] <= 64 * each)
    wide = heads.float().unflatten(-1, (groups, -1))
    least, most = wide.amin(-1, keepdim=True), wide.amax(-1, keepdim=True)
    exact = (most - least).clamp(min=1e-6) / 15
    near = exact.bfloat16()
    scale = torch.where(near.float() < exact, torch.nextafter(near, torch.full_like(near, torch.inf)), near).float()
    zero = (least + 8 * scale).bfloat16().float()
    codes = ((wide - zero) / scale).round().clamp(-8, 7)
    return (codes * scale + zero).flatten(-2).to(heads.dtype)
