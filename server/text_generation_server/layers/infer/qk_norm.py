"""QK norm that the operator before attention does not have."""

from torch import Tensor, stack
from torch.nn import functional

from ...config.spec import AttentionSpec, QkNormSpec
from ...distributed import TensorParallelGroup
from ..weights import AttentionWeights, HeadSplit, in_blocks


class QkNorm:
    """In place, before queries and keys are turned."""

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
        # A key head of which ranks hold several copies counts once; there are as many copies of each.
        self._share = spec.num_kv_heads / (heads.num_kv_heads * group.world_size)

    def apply(self, q: Tensor, k: Tensor, block: int | None = None) -> None:
        """[T, heads of this rank, head_dim] each. `block`: tokens whose sums are made at once, as of `Linear.apply`."""
        normalised = self._whole(q, k, block) if self._over_width else (self._each(q), self._each(k))
        weights = (self._weights.q_norm, self._weights.k_norm)
        for x, result, weight in zip((q, k), normalised, weights, strict=True):
            if weight is not None:
                x.copy_(result.to(weight.dtype) * weight)

    def _each(self, x: Tensor) -> Tensor:
        """Every head by itself, float32."""
        wide = x.float()
        if self._kind == "layer":
            return functional.layer_norm(wide, wide.shape[-1:], eps=self._eps)
        return wide * (wide.square().mean(-1, keepdim=True) + self._eps).rsqrt_()

    def _whole(self, q: Tensor, k: Tensor, block: int | None) -> tuple[Tensor, Tensor]:
        """All heads of all ranks together, float32: the ranks exchange two numbers a token."""
        wide_q, wide_k = q.float(), k.float()
        # On a GPU the order in which torch adds depends on how many sums there are.
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
