"""Layers of a decoder."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from ..recurrent import Mamba2Spec, RecurrentSpec
from .attention import AttentionSpec, LatentAttentionSpec
from .compressed import CompressedAttentionSpec
from .feed_forward import DenseSpec, FeedForwardSpec, MoeSpec
from .norms import NormSpec

MixerSpec = AttentionSpec | LatentAttentionSpec | CompressedAttentionSpec | RecurrentSpec
"""The sublayers in which tokens of one request read each other."""


@dataclass(frozen=True)
class SkipSpec:
    """Skips of layers (Solar Pro, 2024): a layer may keep the residual stream that it reads in places with numbers, and
    may read a mix with what earlier layers kept, once for each of these places.
    """

    kept: tuple[int, ...] = ()
    """Where it keeps the stream, before it mixes."""
    mixed: tuple[int, ...] = ()
    share: float = 0.5
    """The weight of what was kept; the stream has the rest."""


@dataclass(frozen=True)
class SharedBlockSpec:
    """A call of a transformer block whose weights several layers share (Zamba 2, Glorioso et al., 2024). It reads the
    residual stream and the embedding side by side, and a matrix of the layer projects what it returns.
    """

    home: int
    """The first layer that calls the block."""
    call: int
    """The number of this call among those of all blocks."""
    attention: AttentionSpec
    """Its inputs are twice as wide as hidden states. Each call has keys and values of its own."""
    ffn: DenseSpec
    norm: NormSpec
    """Of the norm before either."""
    attention_rank: int = 0
    """Of low-rank matrices that this call adds to those of queries, keys and values; 0: it adds none."""
    ffn_rank: int = 0
    """The same of the first matrix of the network."""


@dataclass(frozen=True)
class LayerSpec:
    """One layer: a mixer, a feed-forward network, both, or neither. Each sublayer reads the residual stream through its
    input norm and adds to it through its output norm, where it has these norms.
    """

    mixer: MixerSpec | None
    ffn: FeedForwardSpec | None
    attention_norm: NormSpec | None
    """The input norm of the mixer."""
    ffn_norm: NormSpec | None
    attention_output_norm: NormSpec | None = None
    ffn_output_norm: NormSpec | None = None
    parallel: bool = False
    """Whether both sublayers read the same residual stream; without `ffn_norm`, both through `attention_norm`."""
    scaled: bool = False
    """Whether a learned number multiplies the residual stream after the layer (Gemma 4)."""
    streams: bool = False
    """Whether it has several residual streams, as `DecoderSpec.streams` says."""
    beside: MoeSpec | None = None
    """Experts beside the dense network of a scaled layer. Both read the residual stream, and the router too, each
    through a norm; their outputs pass a norm each, are added, and pass `ffn_output_norm`."""
    ahead: MoeSpec | None = None
    """Experts that read what the dense network reads, and whose output is added behind that of the next layer
    (shortcut-connected mixture, Cai et al., 2024)."""
    state_space: Mamba2Spec | None = None
    """A state space beside attention. Both read the same input, and their outputs are added."""
    mixer_factors: tuple[float, float] = (1.0, 1.0)
    """What the outputs of attention and of the state space beside it are multiplied by."""
    skip: SkipSpec | None = None
    """What it keeps of the residual stream, and mixes into it; None: nothing."""
    shared: SharedBlockSpec | None = None
    """A block before it, whose output its mixer reads added to the residual stream; the stream itself stays as it is.
    """

    @property
    def mixers(self) -> tuple[MixerSpec, ...]:
        """Its mixers, that of a shared block first."""
        shared = None if self.shared is None else self.shared.attention
        return tuple(mixer for mixer in (shared, self.mixer, self.state_space) if mixer is not None)

    def with_mixers(self, changed: Callable[[MixerSpec], MixerSpec]) -> "LayerSpec":
        """Returns the layer with its mixer, and that of a shared block, as `changed` makes them, which keeps kinds."""
        mixer, shared = self.mixer, self.shared
        if mixer is not None:
            mixer = changed(mixer)
        if shared is not None and isinstance(attention := changed(shared.attention), AttentionSpec):
            shared = replace(shared, attention=attention)
        return replace(self, mixer=mixer, shared=shared)

    @property
    def moe(self) -> MoeSpec | None:
        """Its mixture of experts, if it has one."""
        return self.ffn if isinstance(self.ffn, MoeSpec) else self.beside or self.ahead

    @property
    def is_whole(self) -> bool:
        """Whether it adds its last output to the residual stream itself, so that the next layer has nothing to add."""
        return self.scaled or self.streams

    @property
    def is_empty(self) -> bool:
        """Whether it has neither, and does nothing."""
        return self.mixer is None and self.ffn is None
