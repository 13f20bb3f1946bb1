"""Ling and Ring 3, of which transformers has no class: that of Kimi Linear with other gates and other attention, in
plain torch by the formulas that its authors publish.
"""

import re
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from support.families import SIZES, Raw, State
from support.moe_cases import with_corrections


class Decays(nn.Module):
    """Logarithms of decays, above a lower bound."""

    def __init__(self, hidden: int, heads: int, size: int, least: float | None) -> None:
        super().__init__()
        self.f_proj = nn.Linear(hidden, heads * size, bias=False)
        self.dt_bias = nn.Parameter(torch.empty(heads * size))
        self.A_log = nn.Parameter(torch.empty(heads))
        self.least = least

    def forward(self, x: Tensor) -> Tensor:
        opened = (self.f_proj(x) + self.dt_bias).unflatten(-1, (len(self.A_log), -1))
        speed = self.A_log.exp()[:, None]
        if self.least is None:
            return -speed * functional.softplus(opened)
        return self.least * torch.sigmoid(speed * opened)


class Latent(nn.Module):
    """Latent attention with neighbours rotated as pairs, and gates."""

    def __init__(self, config: Any, gates: str | None) -> None:
        super().__init__()
        self.config, heads, hidden = config, config.num_attention_heads, config.hidden_size
        queries, keys = heads * config.qk_head_dim, config.qk_nope_head_dim + config.v_head_dim
        if config.q_lora_rank is None:
            self.q_proj = nn.Linear(hidden, queries, bias=False)
        else:
            self.q_a_proj = nn.Linear(hidden, config.q_lora_rank, bias=False)
            self.q_a_layernorm = nn.RMSNorm(config.q_lora_rank, 1e-6)
            self.q_b_proj = nn.Linear(config.q_lora_rank, queries, bias=False)
        self.kv_a_proj_with_mqa = nn.Linear(hidden, config.kv_lora_rank + config.qk_rope_head_dim, bias=False)
        self.kv_a_layernorm = nn.RMSNorm(config.kv_lora_rank, 1e-6)
        self.kv_b_proj = nn.Linear(config.kv_lora_rank, heads * keys, bias=False)
        if gates is not None:
            self.g_proj = nn.Linear(hidden, heads * (1 if gates == "head_wise" else config.v_head_dim), bias=False)
        self.dense = nn.Linear(heads * config.v_head_dim, hidden, bias=False)

    def forward(self, hidden_states: Tensor, **_: Any) -> tuple[Tensor, None]:
        x, config, heads = hidden_states, self.config, self.config.num_attention_heads
        low = x if config.q_lora_rank is None else self.q_a_layernorm(self.q_a_proj(x))
        q = (self.q_proj if config.q_lora_rank is None else self.q_b_proj)(low).unflatten(-1, (heads, -1))
        latent, key = self.kv_a_proj_with_mqa(x).split((config.kv_lora_rank, config.qk_rope_head_dim), -1)
        made = self.kv_b_proj(self.kv_a_layernorm(latent)).unflatten(-1, (heads, -1))
        k, v = made.split((config.qk_nope_head_dim, config.v_head_dim), -1)
        turned = self._rotated(key[:, :, None]).expand(-1, -1, heads, -1)
        still, rest = q.split((config.qk_nope_head_dim, config.qk_rope_head_dim), -1)
        q, k = torch.cat((still, self._rotated(rest)), -1), torch.cat((k, turned), -1)
        q, k, v = (each.transpose(1, 2) for each in (q, k, v))
        out = functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)
        if hasattr(self, "g_proj"):
            out = out * self.g_proj(x).sigmoid().unflatten(-1, (heads, -1))
        return self.dense(out.flatten(2)), None

    def _rotated(self, x: Tensor) -> Tensor:
        """Of `x` [1, T, heads, elements]: neighbours are complex numbers, with the base 10,000."""
        size = x.shape[-1]
        angles = torch.arange(x.shape[1])[:, None] * 10_000 ** (-torch.arange(0, size, 2) / size)
        pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2).contiguous())
        return torch.view_as_real(pairs * torch.polar(torch.ones_like(angles), angles)[:, None]).flatten(-2)


def as_ling3(gates: str | None = "head_wise", least: float | None = -5.0) -> Any:
    """What makes a model of Kimi Linear one of Ling 3."""

    def prepare(model: nn.Module) -> None:
        config, generator = model.config, torch.Generator().manual_seed(5)
        hidden, heads, size = config.hidden_size, config.linear_num_heads, config.linear_head_dim
        for layer in model.model.layers:
            mixer, parts = layer.self_attn, []
            if hasattr(mixer, "forget_gate"):
                mixer.forget_gate = Decays(hidden, heads, size, least)
                mixer.g_a_proj, mixer.g_b_proj = nn.Identity(), nn.Linear(hidden, heads * size, bias=False)
                parts = [mixer.forget_gate, mixer.g_b_proj]
            else:
                layer.self_attn = Latent(config, gates)
                parts = [layer.self_attn]
            with torch.no_grad():
                for part in parts:
                    for name, parameter in part.named_parameters():
                        mean = 1.0 if "layernorm" in name else 0.0
                        parameter.normal_(mean, 0.3 if parameter.dim() > 1 else 0.2, generator=generator)
        with_corrections(model)

    return prepare


_WRITTEN = {
    **SIZES,
    "linear_conv_kernel_dim": 3,
    "linear_head_dim": 8,
    "model_max_length": 64,
    "num_shared_experts": 1,
    "q_lora_rank": None,
    "rms_norm_eps": 1e-5,
    "routed_scaling_factor": 2.446,
}
"""What transformers writes for values that a case leaves out."""


def ling3(**keys: Any) -> Any:
    """Names and keys of Ling 3. `keys`: those that transformers does not write."""
    names = (
        (r"embed_tokens", "word_embeddings"),
        (r"forget_gate\.", ""),
        (r"self_attn\.g_b_proj", "self_attn.g_proj"),
        (r"self_attn\.", "attention."),
        (r"block_sparse_moe", "mlp"),
        (r"\.w1\.", ".gate_proj."),
        (r"\.w2\.", ".down_proj."),
        (r"\.w3\.", ".up_proj."),
        (r"e_score_correction_bias", "expert_bias"),
    )

    def relayout(state: State, raw: Raw) -> tuple[State, Raw]:
        raw = {**_WRITTEN, **raw}
        for pattern, target in names:
            state = {re.sub(pattern, target, name): tensor for name, tensor in state.items()}
        same = ("eos_token_id", "hidden_size", "intermediate_size", "kv_lora_rank", "moe_intermediate_size")
        same += ("num_attention_heads", "num_experts", "num_hidden_layers", "num_shared_experts", "q_lora_rank")
        same += ("qk_nope_head_dim", "qk_rope_head_dim", "rms_norm_eps", "routed_scaling_factor", "topk_group")
        own = {
            **{key: raw[key] for key in (*same, "v_head_dim", "vocab_size")},
            "architectures": ["BailingMoeV3ForCausalLM"],
            "head_dim": raw["linear_head_dim"],
            "layer_group_size": 2,
            "max_position_embeddings": raw["model_max_length"],
            "n_group": raw["num_expert_group"],
            "num_experts_per_tok": raw["num_experts_per_token"],
            "rope_theta": 10_000,
            "short_conv_kernel_size": raw["linear_conv_kernel_dim"],
            **keys,
        }
        return state, own

    return relayout
