"""A whole decoder: embedding, layers and head."""

from dataclasses import dataclass, field

from ..streams import StreamsSpec
from .feed_forward import Activation
from .layer import LayerSpec, MixerSpec
from .norms import NormSpec


@dataclass(frozen=True)
class EmbeddingSpec:
    """The input embedding: from token ids to the residual stream."""

    scale: float = 1.0
    scale_rounded: bool = False
    """Whether `scale` is rounded to the type of the weights before it multiplies, as Gemma does."""
    positions: int = 0
    """Rows of the table of positions, which are learned or sinusoidal; 0: the model has none."""
    first_position: int = 0
    """The row of position 0."""
    sinusoidal: bool = False
    """Whether positions are sines, then cosines, of falling frequencies, which are computed and not stored."""
    norm: NormSpec | None = None
    kept: bool = False
    """Whether layers read it beside the residual stream."""
    width: int = 0
    """Columns of the embedding, which one matrix projects to the hidden size; another one projects hidden states to the
    columns of the head. 0: both have the hidden size."""


@dataclass(frozen=True)
class PerLayerSpec:
    """Inputs of each layer (Gemma 3n, 2025): vectors of the token's id and of its embedding, which the layer multiplies
    by a gate of its hidden state, projects and adds to the residual stream.
    """

    width: int
    vocab_size: int
    """Rows of the table of vectors."""
    activation: Activation
    norm: NormSpec
    """Of the vectors that are made of the embedding, and of what a layer adds."""
    media_id: int = 0
    """The token whose vectors positions of images have."""
    outside_id: int | None = None
    """The token whose vectors ids beyond the table have; None: there are none."""


@dataclass(frozen=True)
class HeadSpec:
    """The LM head, from hidden states to logits: `cap * tanh(scale * (W h + b) / cap)`; or the head of a classifier."""

    classes: int = 0
    """Rows of W where it scores classes in place of token ids: then it is on every rank, and without what follows."""
    tied: bool = False
    """Whether W is the embedding."""
    bias: bool = False
    scale: float = 1.0
    softcap: float = 0.0
    """Soft cap of the logits; 0 means none."""
    unit_rows: bool = False
    """Whether the rows of W are normalised to length 1."""
    unit_columns: bool = False
    """Whether its columns are, over the whole vocabulary."""


@dataclass(frozen=True)
class DecoderSpec:
    """A whole model."""

    vocab_size: int
    hidden_size: int
    layers: tuple[LayerSpec, ...]
    final_norm: NormSpec | None
    embedding: EmbeddingSpec = field(default_factory=EmbeddingSpec)
    head: HeadSpec = field(default_factory=HeadSpec)
    per_layer: PerLayerSpec | None = None
    """The inputs of layers that are scaled or have several residual streams; None: there are none."""
    streams: StreamsSpec | None = None
    """The residual streams, where there are several."""
    residual_scale: float = 1.0
    """Factor of the output of each sublayer before it is added to the residual stream."""
    image_rank: int = 0
    """Rank of the matrices beside all those of layers that tokens of images alone pass (partial LoRA, Dong et al.,
    2024); 0: there are none.
    """
    sum_is_normalised: bool = False
    """Whether the model is post-norm, as the original transformer (Vaswani et al., 2017): the norm of the residual
    stream replaces it. The norms after a sublayer are its output norms here."""

    @property
    def mixers(self) -> tuple[MixerSpec, ...]:
        """The mixers of all layers, those beside attention and of shared blocks too."""
        return tuple(mixer for layer in self.layers for mixer in layer.mixers)
