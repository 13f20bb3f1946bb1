"""A block of a vision tower."""

import torch
from torch import Tensor

from text_generation_kernels import rotate_heads

from ....config.vision import BlockSpec
from ...weights.checkpoint import NormWeights
from ...weights.vision import BlockWeights
from .functions import activated, affine, gated, normalised
from .segments import Segments


class VisionBlock:
    """Attention in both directions, then a feed-forward network, each added to the residual stream."""

    def __init__(self, spec: BlockSpec, weights: BlockWeights) -> None:
        self._spec = spec
        self._weights = weights

    def forward(self, x: Tensor, segments: Segments, rope: tuple[Tensor, Tensor] | None) -> Tensor:
        """Turns [S, hidden] into the same. `rope` has cosine and sine, float32 [S, head_dim / 2] each."""
        spec, weights = self._spec, self._weights
        x = x + self._output(self._attention(normalised(x, spec.norm, weights.norms[0]), segments, rope), 0)
        return x + self._output(self._feed_forward(normalised(x, spec.norm, weights.norms[1])), 1)

    def _output(self, x: Tensor, sublayer: int) -> Tensor:
        if self._weights.output_norms is not None:
            x = normalised(x, self._spec.norm, self._weights.output_norms[sublayer])
        return x if self._weights.scales is None else x * self._weights.scales[sublayer]

    def _attention(self, x: Tensor, segments: Segments, rope: tuple[Tensor, Tensor] | None) -> Tensor:
        spec, weights = self._spec, self._weights
        qkv = affine(x, weights.qkv).unflatten(-1, (3 * spec.heads, spec.head_dim))
        qk, v = qkv.split([2 * spec.heads, spec.heads], dim=1)
        if weights.qk_norms is not None:
            q, k = qk.chunk(2, dim=1)
            qk = torch.cat(self._normalised(q, k, weights.qk_norms), dim=1)
        if spec.value_norm:
            v = normalised(v, spec.qk_norm, None)
        if rope is not None:
            rotate_heads(qk, *rope)
        q, k = qk.chunk(2, dim=1)
        return affine(segments.attend(q, k, v, spec.softmax_scale).flatten(1), weights.out)

    def _normalised(self, q: Tensor, k: Tensor, norms: tuple[NormWeights, NormWeights]) -> list[Tensor]:
        both = zip((q, k), norms, strict=True)
        if self._spec.qk_norm_by_head:
            return [normalised(each, self._spec.qk_norm, norm) for each, norm in both]
        return [normalised(each.flatten(1), self._spec.qk_norm, norm).view_as(each) for each, norm in both]

    def _feed_forward(self, x: Tensor) -> Tensor:
        spec, weights = self._spec, self._weights
        inner = affine(x, weights.first)
        act = gated if spec.gated else activated
        return affine(act(inner, spec.activation), weights.second)
