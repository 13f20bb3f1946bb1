"""What is done to queries, keys and values between the QKV GEMM and attention, apart from the step's tokens."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class QkvPrologue:
    """Bias and norms of one layer, whose weights own the tensors. One floating type; norms may be float32."""

    bias: Tensor | None = None
    """[(heads + 2 * kv_heads) * head_dim]"""
    q_norm: Tensor | None = None
    """[head_dim], or [heads, head_dim] where each head has its own weights. Both norms, or neither."""
    k_norm: Tensor | None = None
    """[head_dim], or [kv_heads, head_dim]"""
    norm_eps: float = 0.0
    norm_after_rope: bool = False
    """Whether heads are normalised after RoPE instead of before it."""


NO_PROLOGUE = QkvPrologue()
"""RoPE alone."""
