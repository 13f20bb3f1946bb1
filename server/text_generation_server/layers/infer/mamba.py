"""Selective state space (Mamba, Gu and Dao, 2023): each channel has a state, whose update depends on the input."""

from collections.abc import Sequence

from torch import Tensor

import text_generation_kernels as kernels

from ...config.recurrent import MambaSpec
from ...distributed import TensorParallelGroup
from ..weights import Activations, ActivationScheme, MambaWeights, each_alone
from .layer_state import StateShape
from .mixer import RecurrentMixer
from .state import InferState
from .state_windows import Recurrence


class Mamba(RecurrentMixer):
    """The channels of this rank in one layer."""

    def __init__(self, index: int, spec: MambaSpec, weights: MambaWeights, group: TensorParallelGroup) -> None:
        """`index` is the place of its state among the states of all layers."""
        self._index = index
        self._spec = spec
        self._weights = weights
        self.out = weights.out
        self._dynamics = kernels.ScanDynamics(weights.rate, weights.skip, weights.bias)
        self._group = group
        self._channels = len(weights.skip)
        size = (self._channels, spec.state_size)
        self.state = StateShape(spec.kernel, self._channels, size, (self._channels, self._channels, *size[1:] * 2))

    @property
    def wants(self) -> ActivationScheme | None:
        """See `Mixer`."""
        return self._weights.first.wants

    def forward(self, x: Activations, state: InferState) -> Tensor:
        """See `Mixer`."""
        inputs, gate = self._weights.first.apply(x, state.linear_block).split(self._channels, dim=1)
        recurrences = state.recurrences(self._index)
        channels = self._convolved(inputs, recurrences)
        selected = self._select(channels, state.linear_block)
        state.keep(self._index, inputs, *selected)
        return self._recur(channels, selected, gate, recurrences)

    def replay(self, read: Sequence[Tensor], tokens: Recurrence, deterministic: bool) -> None:  # noqa: ARG002 - it always is
        """See `RecurrentMixer`."""
        inputs, *selected = read
        # What gates the results does not matter: nobody reads these.
        self._recur(self._convolved(inputs, [tokens]), selected, inputs, [tokens])

    def _convolved(self, inputs: Tensor, recurrences: Sequence[Recurrence]) -> Tensor:
        weights, channels = self._weights, inputs.new_empty(inputs.shape)
        for runs, kept in recurrences:
            kernels.causal_conv(inputs, weights.conv, weights.conv_bias, kept.inputs, runs, channels)
        return channels

    def _recur(
        self, channels: Tensor, selected: Sequence[Tensor], gate: Tensor, recurrences: Sequence[Recurrence]
    ) -> Tensor:
        """Returns the results [T, channels], which `gate` multiplies. `selected` is what `_select` returns."""
        (steps, writes, reads), out = selected, channels.new_empty(channels.shape)
        for runs, kept in recurrences:
            kernels.selective_scan(channels, steps, writes, reads, gate, self._dynamics, kept.state, runs, out)
        return out

    def _select(self, channels: Tensor, block: int | None) -> tuple[Tensor, Tensor, Tensor]:
        """Returns, for each token, the channels' time steps [T, channels] (delta), and the vectors that write (B) and
        read (C) the states, [T, state_size] each. They depend on the channels of all ranks, so an all-reduce adds them
        up.
        """
        weights, spec = self._weights, self._spec
        selection = weights.selection.apply(Activations(channels), block)
        self._group.all_reduce(selection)
        parts = selection.split((spec.rank, spec.state_size, spec.state_size), dim=1)
        if weights.norms is not None and spec.norm_eps is not None:
            for part, norm in zip(parts, weights.norms, strict=True):
                for (each,) in each_alone(block, part):
                    kernels.rms_norm(each, norm, spec.norm_eps, each)
        steps, writes, reads = parts
        return weights.steps.apply(Activations(steps), block), writes, reads
