"""QK norms that `qkv_postprocess` lacks: over all heads, per head with a weight of its own, and layer norms."""

from torch import Tensor, stack
from torch.nn import functional

from ...config.spec import AttentionSpec, QkNormSpec
from ...distributed import TensorParallelGroup
from ..weights import AttentionWeights, HeadSplit, in_blocks


class QkNorm:
    """Normalises queries and keys in place, before RoPE."""

    def __init__(
        self,
        spec: AttentionSpec,
        norm: QkNormSpec,
        weights: AttentionWeights,
        heads: HeadSplit,
        group: TensorParallelGroup,
    ) -> None:
        self._over_width = norm.over == "width"
        self._kind = norm.norm.kind
        self._eps = norm.norm.eps
        self._weights = weights
        self._group = group
        self._widths = (spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim)
        # A key head that several ranks hold counts once; all key heads have equally many copies.
        self._share = spec.num_kv_heads / (heads.num_kv_heads * group.world_size)

    def apply(self, q: Tensor, k: Tensor, block: int | None = None) -> None:
        """Normalises `q` and `k`, [T, heads of this rank, head_dim] each. `block` has the meaning of `Linear.apply`."""
        normalised = self._whole(q, k, block) if self._over_width else (self._each(q), self._each(k))
        weights = (self._weights.q_norm, self._weights.k_norm)
        for x, result, weight in zip((q, k), normalised, weights, strict=True):
            if weight is not None:
                x.copy_(result.to(weight.dtype) * weight)

    def _each(self, x: Tensor) -> Tensor:
        """Normalises every head by itself, in float32."""
        wide = x.float()
        if self._kind == "layer":
            return functional.layer_norm(wide, wide.shape[-1:], eps=self._eps)
        return wide * (wide.square().mean(-1, keepdim=True) + self._eps).rsqrt_()

    def _whole(self, q: Tensor, k: Tensor, block: int | None) -> tuple[Tensor, Tensor]:
        """Normalises all heads of all ranks together, in float32. The ranks all-reduce two numbers per token."""
        wide_q, wide_k = q.float(), k.float()
        # On a GPU, torch's order of addition depends on how many sums it computes at once.
        sum_q, sum_k = (in_blocks((wide,), block, _sum_of_squares) for wide in (wide_q, wide_k))
        squares = stack((sum_q, sum_k * self._share))
        self._group.all_reduce(squares)
        scales = [
            (total / width + self._eps).rsqrt_()[:, None, None]
            for total, width in zip(squares, self._widths, strict=True)
        ]
        return wide_q * scales[0], wide_k * scales[1]


def _sum_of_squares(x: Tensor) -> Tensor:
    """[T, heads, head_dim] to [T]"""
    return x.square().sum((1, 2))
