"""Ling and Ring 2.5 and 2.6, of which transformers has no class: that of Kimi Linear with other attention, in plain
torch by the formulas that its authors publish.
"""

from typing import Any

import torch
from torch import Tensor, nn

from support.ling3 import Latent
from support.moe_cases import with_corrections


class Lightning(nn.Module):
    """Linear attention whose states decay by a constant of each head, token by token."""

    def __init__(self, config: Any, index: int, groups: int) -> None:
        super().__init__()
        self.heads, self.size, self.groups, self.eps = 4, config.linear_head_dim, groups, config.rms_norm_eps
        hidden, width = config.hidden_size, self.heads * self.size
        self.query_key_value = nn.Linear(hidden, 3 * width, bias=False)
        self.query_layernorm = nn.RMSNorm(self.size, self.eps)
        self.key_layernorm = nn.RMSNorm(self.size, self.eps)
        self.g_proj = nn.Linear(hidden, width, bias=False)
        self.g_norm = nn.RMSNorm(width)
        self.dense = nn.Linear(width, hidden, bias=False)
        depth = 1 - (index - 1) / (config.num_hidden_layers - 1) + 1e-5
        self.decays = torch.exp(-torch.tensor([2**-2, 2**-4, 2**-6, 2**-8]) * depth)

    def forward(self, hidden_states: Tensor, **_: Any) -> Tensor:
        made = self.query_key_value(hidden_states[0]).unflatten(-1, (3, self.heads, self.size))
        q, k, v = made.unbind(1)
        q, k = _rotated(self.query_layernorm(q)) * self.size**-0.5, _rotated(self.key_layernorm(k))
        state, read = torch.zeros(self.heads, self.size, self.size), []
        for token in range(len(q)):
            state = state * self.decays[:, None, None] + k[token, :, :, None] * v[token, :, None]
            read.append((q[token, :, None] @ state).flatten())
        grouped = torch.stack(read).unflatten(-1, (self.groups, -1))
        normalised = grouped * (grouped.square().mean(-1, keepdim=True) + self.eps).rsqrt()
        opened = self.g_proj(hidden_states[0]).sigmoid()
        return self.dense(normalised.flatten(1) * self.g_norm.weight * opened)[None]


def _rotated(x: Tensor) -> Tensor:
    """Of `x` [T, heads, elements], the first half of the elements, in pairs half of these apart; the base is 10,000."""
    half = x.shape[-1] // 2
    angles = torch.arange(len(x))[:, None] * 10_000 ** (-torch.arange(0, half, 2) / half)
    cos, sin = angles.cos()[:, None], angles.sin()[:, None]
    first, second, rest = x.split((half // 2, half // 2, half), -1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin, rest), -1)


def as_ling25(groups: int) -> Any:
    """What makes a model of Kimi Linear one of Ling 2.5."""

    def prepare(model: nn.Module) -> None:
        generator = torch.Generator().manual_seed(5)
        for index, layer in enumerate(model.model.layers):
            is_linear = hasattr(layer.self_attn, "forget_gate")
            layer.self_attn = Lightning(model.config, index, groups) if is_linear else Latent(model.config, None)
            with torch.no_grad():
                for name, parameter in layer.self_attn.named_parameters():
                    mean = 1.0 if "norm" in name else 0.0
                    parameter.normal_(mean, 0.3 if parameter.dim() > 1 else 0.2, generator=generator)
        with_corrections(model)

    return prepare
