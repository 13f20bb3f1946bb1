"""Builds a decoder from its spec. This and `mixers.py` are the only places that choose the classes of its layers."""

import logging
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import torch

from text_generation_kernels import LONGEST_NORMALISED

from ..config.kv_cache import QuantisedKvCache
from ..config.model import ModelConfig
from ..config.sizes import dense_macs
from ..config.spec import (
    FeedForwardSpec,
    LayerSpec,
    MoeSpec,
    NormSpec,
    SharedBlockSpec,
)
from ..distributed import TensorParallelGroup
from ..errors import ModelFilesError
from ..layers.infer import (
    AddNorm,
    BlockCall,
    CacheShape,
    CallingLayer,
    ContextParallel,
    DenseFeedForward,
    Embedding,
    ExpertLoad,
    ExpertsBeside,
    FeedForward,
    FeedForwardLayer,
    Head,
    Layer,
    Mixer,
    MixerLayer,
    MixerPair,
    MoeFeedForward,
    Norm,
    OutputFusions,
    OverlappedHalves,
    ParallelLayer,
    PerLayerInputs,
    ScaledFeedForward,
    ScaledLayer,
    ShortcutEnd,
    ShortcutStart,
    SkipLayer,
    SparseFeedForward,
    Taps,
    TransformerLayer,
    add_norm,
)
from ..layers.rope import RopeTable
from ..layers.weights import (
    ActivationScheme,
    Checkpoint,
    EmbeddingWeights,
    HeadSplit,
    ImageMatrices,
    NormWeights,
    PrefillCopies,
    SharedBlockWeights,
    VocabularyShard,
    as_called,
    load_call,
    load_class_head,
    load_dense,
    load_embedding,
    load_head,
    load_moe,
    load_per_layer,
    load_shared_block,
)
from ..weights import WeightSource
from .adapter_parts import Parts
from .adapters import AdapterReader, ModelAdapters
from .decoder import Decoder, ImageLayers
from .encoder import Encoder
from .mixers import MixerBuilder
from .streams import layer_input, stream_layer
from .vision import load_encoder

logger = logging.getLogger(__name__)


class Sublayer(NamedTuple):
    """What is read of a sublayer."""

    layer: LayerSpec | None
    """None: it is of no layer."""
    spec: object
    weights: object
    """Its record of weights, or the `Linear` of the head."""


class Ends(NamedTuple):
    """What is before and behind the layers."""

    embedding: Embedding
    embedded: EmbeddingWeights
    head: Head
    final_norm: Norm | None


class SingleLayer(NamedTuple):
    """A layer, and what it needs."""

    layer: Layer
    output_norm: Norm | None
    """Of its last sublayer, which whoever adds that to the residual stream applies."""
    caches: list[CacheShape]
    ropes: tuple[RopeTable, ...]


class DecoderBuilder:
    """Reads this rank's shard of a model. It is for one use, because it holds the files."""

    def __init__(
        self,
        config: ModelConfig,
        group: TensorParallelGroup,
        source: WeightSource,
        device: torch.device,
        kv_cache: QuantisedKvCache | None = None,
        taps: Taps | None = None,
    ) -> None:
        """`kv_cache` is the type of a quantised KV cache; None: the model's type. `taps` get what a drafter reads."""
        self.taps = taps
        self._config = config
        self._checkpoint = Checkpoint.of(source, config.decoder, config.names, group, config.schemes)
        self._device = device
        self._copies = PrefillCopies(self._checkpoint.dtype)
        self._mixers = MixerBuilder(self._checkpoint, config.schemes.kv_cache, kv_cache, device, self._note)
        self._blocks: dict[int, SharedBlockWeights] = {}
        self._load = ExpertLoad.of(config.decoder.layers, group, device)
        self.sublayers: list[Sublayer] = []
        """All sublayers, in the order in which they are read, and the head."""
        self.ends: Ends | None = None
        """What is before and behind the layers, once it is built."""

    def build(self, reader: AdapterReader | None = None) -> Decoder:
        """Builds the decoder; requests can have the adapters that `reader` reads. Raises ConfigurationError or
        ModelFilesError.
        """
        spec, names, checkpoint = self._config.decoder, self._config.names, self._checkpoint
        if checkpoint.group.context_parallel and checkpoint.group.world_size > 1:
            self._mixers.parallel = ContextParallel(checkpoint.group)
        weights = load_embedding(checkpoint)
        embedding_norm = self._norm(checkpoint.outside(names.embedding_norm), spec.embedding.norm)
        embedding = Embedding(spec.embedding, weights, embedding_norm, checkpoint.group)
        layers = [self._layer(index, layer) for index, layer in enumerate(spec.layers) if not layer.is_empty]
        final_norm = self._norm(checkpoint.outside(names.final_norm), spec.final_norm)
        last = self._add_norm(len(spec.layers), final_norm, self._ffn_output_norm(len(spec.layers) - 1))
        head = self._head(weights)
        mixers = self._mixers
        halves = OverlappedHalves(checkpoint.group, layers)
        products = dense_macs(self._config) // checkpoint.group.world_size
        kept = mixers.caches, mixers.recurrent
        longest = self._config.max_context_length
        inputs = self._inputs()
        encoder, of_images = self._encoder(layers)
        parts = Parts(embedding, weights, layers, last, head)
        # Adapters change the layers of text alone.
        adapters = None if reader is None or of_images is not None else ModelAdapters(reader, parts, self._device)
        others = self._copies, products, inputs, encoder, adapters
        self.ends = Ends(embedding, weights, head, final_norm)
        others = *others, self.taps, of_images, None if self._load is None else self._load.pairs
        return Decoder(embedding, layers, halves, last, head, *kept, mixers.ropes, longest, *others)

    def _encoder(self, layers: Sequence[Layer]) -> tuple[Encoder | None, ImageLayers | None]:
        """Builds the encoder of images, and layers with the matrices of tokens of images, where there are such."""
        encoder = load_encoder(self._config, self._checkpoint.source)
        if encoder is None or not encoder.own_matrices:
            return encoder, None
        try:
            matrices = ImageMatrices(self._checkpoint)
            return encoder, ImageLayers([layer.adapted(matrices) for layer in layers], matrices.tokens)
        except ModelFilesError as error:
            logger.warning("images are refused, as matrices of their tokens cannot be read: %s", error)
            return None, None

    def _head(self, embedding: EmbeddingWeights) -> Head:
        """Builds the LM head, or that of a classifier, whose logits no other rank has a part of."""
        checkpoint, spec = self._checkpoint, self._checkpoint.spec
        if spec.head.classes:
            weights, place = load_class_head(checkpoint), (0, 1)
        else:
            weights, place = load_head(checkpoint, embedding), (checkpoint.group.rank, checkpoint.group.world_size)
        self.sublayers.append(Sublayer(None, spec.head, weights))
        return Head(spec.head, weights, VocabularyShard.of(spec.vocab_size, *place))

    def build_layer(self) -> SingleLayer:
        """Builds the only layer of the model's spec, without what is before and behind it. Raises ConfigurationError
        or ModelFilesError.
        """
        layer = self._layer(0, self._config.decoder.layers[0])
        return SingleLayer(layer, self._ffn_output_norm(0), self._mixers.caches, self._mixers.ropes)

    def _layer(self, index: int, spec: LayerSpec) -> Layer:
        inside, names = partial(self._checkpoint.inside, index), self._checkpoint.names
        before = partial(self._add_norm, index, output_norm=self._ffn_output_norm(index - 1))
        fusions = OutputFusions(self._checkpoint.group, self._adds_are_plain(spec))
        attention_norm = self._norm(inside(names.attention_norm), spec.attention_norm)
        ffn_norm = self._norm(inside(names.ffn_norm), spec.ffn_norm)
        mixer = None if spec.mixer is None else self._mixers.build(index, spec.mixer)
        if mixer is not None and (beside := spec.state_space) is not None:
            width = beside.num_heads * beside.head_dim // self._checkpoint.group.world_size
            mixer = MixerPair((mixer, self._mixers.build(index, beside)), width, spec.mixer_factors)
        ffn = None if spec.ffn is None else self._feed_forward(index, spec.ffn)
        if mixer is None or ffn is None:
            if mixer is not None and spec.shared is not None and attention_norm is not None:
                return CallingLayer(before(None), self._call(index, spec.shared), attention_norm, mixer)
            if mixer is not None:
                return MixerLayer(before(attention_norm, wants=mixer.wants), mixer, fusions)
            if ffn is not None:
                return FeedForwardLayer(before(ffn_norm, wants=ffn.wants), ffn, fusions)
            raise ValueError(f"layer {index} is empty")
        if spec.streams:
            return stream_layer(self._checkpoint, self._note, index, spec, mixer, ffn)
        if spec.parallel:
            return ParallelLayer(before(attention_norm, wants=mixer.wants), mixer, ffn_norm, ffn)
        output_norm = self._norm(inside(names.attention_output_norm), spec.attention_output_norm)
        between = self._add_norm(None, ffn_norm, output_norm, ffn.wants)
        if spec.scaled:
            return self._scaled_layer(index, spec, before(attention_norm, wants=mixer.wants), mixer, between, ffn)
        if spec.skip is not None:
            # The stream enters where it is mixed.
            inner = self._add_norm(None, attention_norm, None, mixer.wants)
            return SkipLayer(spec.skip, before(None), TransformerLayer(inner, mixer, between, ffn, fusions))
        parts = before(attention_norm, wants=mixer.wants), mixer, between, ffn, fusions
        if spec.ahead is not None:
            return ShortcutStart(*parts, self._feed_forward(index, spec.ahead))
        is_end = index > 0 and self._checkpoint.spec.layers[index - 1].ahead is not None
        return ShortcutEnd(*parts) if is_end else TransformerLayer(*parts)

    def _call(self, index: int, spec: SharedBlockSpec) -> BlockCall:
        """Builds the call of a block. The first one reads the block."""
        checkpoint = self._checkpoint.of_blocks
        heads = HeadSplit.of(spec.attention.num_heads, spec.attention.num_kv_heads, checkpoint.group)
        if (block := self._blocks.get(spec.home)) is None:
            block = self._blocks[spec.home] = load_shared_block(checkpoint, spec, heads)
            self._note(index, spec.attention, block.attention)
            self._note(index, spec.ffn, block.ffn)
        own = load_call(checkpoint, index, spec, block)
        self._note(index, spec, own)
        block = as_called(block, own, checkpoint.inside(spec.home, ""), checkpoint.inside(index, ""))
        attention = self._mixers.attention_of(checkpoint, spec.home, spec.attention, block.attention, heads)
        self._mixers.caches.append(attention.cache)
        norms = Norm(spec.norm, block.attention_norm), Norm(spec.norm, block.ffn_norm)
        return BlockCall(checkpoint.group, norms, attention, DenseFeedForward(spec.ffn, block.ffn), own.out)

    def _scaled_layer(
        self, index: int, spec: LayerSpec, before: AddNorm, mixer: Mixer, between: AddNorm, ffn: FeedForward
    ) -> ScaledLayer:
        """Builds a layer that leaves its residual stream whole."""
        checkpoint, inputs = self._checkpoint, self._checkpoint.spec.per_layer
        own_input = None if inputs is None else layer_input(checkpoint, self._note, index, inputs)
        name = checkpoint.inside(index, checkpoint.names.ffn_output_norm)
        output_norm = self._norm(name, spec.ffn_output_norm)
        beside = None if spec.beside is None else self._beside(index, spec, spec.beside)
        scale = checkpoint.source.read(checkpoint.inside(index, checkpoint.names.scale), (1,))
        return ScaledLayer(checkpoint.group, before, mixer, between, ffn, output_norm, beside, own_input, scale)

    def _beside(self, index: int, spec: LayerSpec, moe: MoeSpec) -> ExpertsBeside:
        """Builds the experts beside a dense network."""
        checkpoint, names = self._checkpoint, self._checkpoint.names
        if (norm := spec.ffn_norm) is None:
            raise ValueError(f"layer {index} has experts beside a network, and no norm before them")
        experts = self._experts(index, moe)
        hidden = checkpoint.spec.hidden_size
        scale = checkpoint.source.read(checkpoint.inside(index, names.router_scale), (hidden,), dtype=torch.float32)
        router_norm = Norm(norm, NormWeights(scale * hidden**-0.5, None))
        own, dense, out = (
            Norm(norm, checkpoint.norm(checkpoint.inside(index, name), norm, hidden))
            for name in (names.beside_norm, names.dense_output_norm, names.beside_output_norm)
        )
        return ExpertsBeside(experts, router_norm, own, (dense, out))

    def _inputs(self) -> PerLayerInputs | None:
        """Builds what makes the inputs of layers, where they have some."""
        checkpoint = self._checkpoint
        if (spec := checkpoint.spec.per_layer) is None:
            return None
        weights = load_per_layer(checkpoint, spec)
        self._note(None, spec, weights)
        return PerLayerInputs(spec, weights, checkpoint.group)

    def _adds_are_plain(self, spec: LayerSpec) -> bool:
        """Whether GEMVs may add the outputs of both sublayers to the residual stream. The norm that follows must then
        be the prologue of a GEMV as well, or no kernel is saved.
        """
        decoder, alone = self._checkpoint.spec, self._checkpoint.group.world_size == 1
        has_output_norm = spec.attention_output_norm is not None or spec.ffn_output_norm is not None
        is_plain = decoder.residual_scale == 1.0 and not decoder.sum_is_normalised and not has_output_norm
        return alone and is_plain and decoder.hidden_size <= LONGEST_NORMALISED

    def _feed_forward(self, index: int, spec: FeedForwardSpec) -> FeedForward:
        """Builds the feed-forward network of a layer."""
        if isinstance(spec, MoeSpec):
            return self._experts(index, spec)
        weights = load_dense(self._checkpoint, index, spec)
        self._note(index, spec, weights)
        if (spec.gate_factor, spec.out_factor) != (1.0, 1.0):
            return ScaledFeedForward(spec, weights)
        if spec.cutoff is not None:
            return SparseFeedForward(spec, weights, self._checkpoint.group, spec.cutoff)
        return DenseFeedForward(spec, weights)

    def _experts(self, index: int, spec: MoeSpec) -> MoeFeedForward:
        """Builds the mixture of experts of a layer."""
        mixture = load_moe(self._checkpoint, index, spec)
        self._note(index, spec, mixture)
        return MoeFeedForward(spec, mixture, None if self._load is None else self._load.of_layer(index, spec.experts))

    def _note(self, index: int | None, spec: object, weights: object) -> None:
        """Notes the weights of a sublayer of layer `index`, or of none."""
        layer = None if index is None else self._checkpoint.spec.layers[index]
        self.sublayers.append(Sublayer(layer, spec, weights))
        self._copies.note(weights)

    def _ffn_output_norm(self, index: int) -> Norm | None:
        """Returns the output norm of layer `index`, which the first `AddNorm` of the next layer applies."""
        checkpoint = self._checkpoint
        if index < 0 or checkpoint.spec.layers[index].is_whole:
            return None
        name = checkpoint.inside(index, checkpoint.names.ffn_output_norm)
        return self._norm(name, checkpoint.spec.layers[index].ffn_output_norm)

    def _norm(self, name: str, spec: NormSpec | None) -> Norm | None:
        """Builds a norm of hidden states, if the layer has it."""
        if spec is None:
            return None
        return Norm(spec, self._checkpoint.norm(name, spec, self._checkpoint.spec.hidden_size))

    def _add_norm(
        self,
        layer: int | None,
        input_norm: Norm | None,
        output_norm: Norm | None,
        wants: ActivationScheme | None = None,
    ) -> AddNorm:
        """`layer` is the one that the residual stream enters here; None: it is within a layer."""
        group, spec = self._checkpoint.group, self._checkpoint.spec
        if spec.sum_is_normalised and (norm := output_norm or input_norm) is not None:
            return add_norm(self.taps, layer, group, norm, None, spec.residual_scale, wants, replaces=True)
        return add_norm(self.taps, layer, group, input_norm, output_norm, spec.residual_scale, wants)
