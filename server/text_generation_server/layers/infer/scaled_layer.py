"""Layers of Gemma 4: experts may stand beside the dense network, an input of the layer is added, and a learned number
multiplies the residual stream, which is therefore whole after each layer.
"""

import torch
from torch import Tensor

from ...distributed import TensorParallelGroup
from ..weights import Activations, Adapting
from .feed_forward import FeedForward
from .fusion import SublayerOutput
from .mixer import Mixer
from .moe import MoeFeedForward
from .norm import AddNorm, Norm
from .per_layer import LayerInput
from .state import InferState


class ExpertsBeside:
    """A mixture of experts whose output is added to that of a dense network, each behind a norm."""

    def __init__(self, experts: MoeFeedForward, router_norm: Norm, norm: Norm, output_norms: tuple[Norm, Norm]) -> None:
        """`output_norms` are that of the dense network and that of the experts."""
        self._experts = experts
        self._router_norm = router_norm
        self._norm = norm
        self._output_norms = output_norms

    def add(self, dense: Tensor, residual: Tensor, group: TensorParallelGroup, state: InferState) -> Tensor:
        """Returns the sum of both [N, hidden], all-reduced. `dense` are this rank's partial sums of the dense network,
        and `residual` is what the experts read.
        """
        read, routed = torch.empty_like(residual), torch.empty_like(residual)
        self._norm.apply(residual, read)
        self._router_norm.apply(residual, routed)
        experts = self._experts.forward_routed(Activations(read), Activations(routed), state)
        both = torch.cat((dense, experts))
        group.all_reduce(both)
        parts = both.chunk(2)
        for part, norm in zip(parts, self._output_norms, strict=True):
            norm.apply(part, part)
        return parts[0].add_(parts[1])

    def adapted(self, adapting: Adapting) -> "ExpertsBeside":
        """See `TransformerLayer.adapted`."""
        dense, out = (norm.adapted(adapting) for norm in self._output_norms)
        experts, norm = self._experts.adapted(adapting), self._norm.adapted(adapting)
        return ExpertsBeside(experts, self._router_norm, norm, (dense, out))


class ScaledLayer:
    """A mixer, a feed-forward network, the input of the layer, and the scale."""

    def __init__(
        self,
        group: TensorParallelGroup,
        before_mixer: AddNorm,
        mixer: Mixer,
        before_ffn: AddNorm,
        ffn: FeedForward,
        output_norm: Norm | None,
        beside: ExpertsBeside | None,
        own_input: LayerInput | None,
        scale: Tensor,
    ) -> None:
        """`scale` [1]; `output_norm` is that of the feed-forward network."""
        self._group = group
        self._before_mixer = before_mixer
        self.mixer = mixer
        self._before_ffn = before_ffn
        self._ffn = ffn
        self._output_norm = output_norm
        self._beside = beside
        self._own_input = own_input
        self._scale = scale

    def forward(
        self, x: SublayerOutput, residual: Tensor | None, state: InferState, kept: Tensor | None = None
    ) -> tuple[SublayerOutput, Tensor]:
        """See `TransformerLayer.forward`. Both results are the residual stream."""
        read, residual = self._before_mixer.read(x, residual)
        heads = self.mixer.forward(read, state)
        if kept is not None:
            heads, residual = heads.index_select(0, kept), residual.index_select(0, kept)
        read, residual = self._before_ffn.read(self.mixer.project(heads, state), residual)
        out = self._ffn.forward(read, state)
        if self._beside is None:
            self._group.all_reduce(out)
        else:
            out = self._beside.add(out, residual, self._group, state)
        if self._output_norm is not None:
            self._output_norm.apply(out, out)
        residual.add_(out)
        if self._own_input is not None:
            residual.add_(self._own_input.of(residual, state, kept))
        residual.mul_(self._scale)
        return residual, residual

    def adapted(self, adapting: Adapting) -> "ScaledLayer":
        """See `TransformerLayer.adapted`."""
        mixer = self._before_mixer.adapted(adapting), self.mixer.adapted(adapting)
        parts = (*mixer, self._before_ffn.adapted(adapting), self._ffn.adapted(adapting))
        norm = None if self._output_norm is None else self._output_norm.adapted(adapting)
        beside = None if self._beside is None else self._beside.adapted(adapting)
        return ScaledLayer(self._group, *parts, norm, beside, self._own_input, self._scale)
