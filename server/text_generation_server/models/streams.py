"""Builds layers with several residual streams, and what layers do with inputs of their own."""

from collections.abc import Callable

from ..config.spec import LayerSpec, NormSpec, PerLayerSpec
from ..config.streams import AltUpSpec, HyperConnectionsSpec
from ..layers.infer import (
    AltUp,
    AltUpEnd,
    AltUpLayer,
    FeedForward,
    HyperConnectedLayer,
    HyperConnection,
    HyperEnd,
    LayerInput,
    Mixer,
    Norm,
    StreamEnd,
    StreamEnds,
    WeightedHyperEnd,
)
from ..layers.weights import (
    Checkpoint,
    load_altup,
    load_altup_end,
    load_hyper_connection,
    load_hyper_end,
    load_layer_input,
)

Note = Callable[[int | None, object, object], None]
"""Notes the weights of a sublayer; see `DecoderBuilder`."""


def stream_layer(
    checkpoint: Checkpoint, note: Note, index: int, spec: LayerSpec, mixer: Mixer, ffn: FeedForward
) -> AltUpLayer | HyperConnectedLayer:
    """Reads what stands around mixer and network of a layer. Raises ModelFilesError."""
    if isinstance(streams := checkpoint.spec.streams, HyperConnectionsSpec):
        return _hyper_connected(checkpoint, note, index, spec, streams, mixer, ffn)
    if streams is None:
        raise ValueError(f"layer {index} has several residual streams, and no spec of them")
    return _altup(checkpoint, note, index, spec, streams, mixer, ffn)


def _hyper_connected(
    checkpoint: Checkpoint,
    note: Note,
    index: int,
    spec: LayerSpec,
    streams: HyperConnectionsSpec,
    mixer: Mixer,
    ffn: FeedForward,
) -> HyperConnectedLayer:
    names = checkpoint.names

    def connection(name: str) -> HyperConnection:
        weights = load_hyper_connection(checkpoint, index, streams, name)
        note(index, streams, weights)
        return HyperConnection(streams, weights)

    def norm(name: str, norm: NormSpec | None) -> Norm:
        if norm is None:
            raise ValueError(f"layer {index} has hyper-connections, and no norm")
        return Norm(norm, checkpoint.norm(checkpoint.inside(index, name), norm, checkpoint.spec.hidden_size))

    def end(name: str) -> HyperEnd:
        if not streams.weighted_end or name != names.streams_out:
            return HyperEnd(streams)
        weights = load_hyper_end(checkpoint, streams, name)
        note(None, streams, weights)
        return WeightedHyperEnd(streams, weights)

    return HyperConnectedLayer(
        checkpoint.group,
        (connection(names.mixer_streams), connection(names.ffn_streams)),
        (norm(names.attention_norm, spec.attention_norm), norm(names.ffn_norm, spec.ffn_norm)),
        mixer,
        ffn,
        _ends(checkpoint, index, end),
    )


def _altup(
    checkpoint: Checkpoint,
    note: Note,
    index: int,
    spec: LayerSpec,
    streams: AltUpSpec,
    mixer: Mixer,
    ffn: FeedForward,
) -> AltUpLayer:
    names, decoder = checkpoint.names, checkpoint.spec
    inputs, norm = decoder.per_layer, spec.attention_norm
    if inputs is None or norm is None:
        raise ValueError(f"layer {index} has several residual streams, and no input or no norm")
    own = load_altup(checkpoint, index, streams, norm)
    note(index, streams, own)
    before, mixed, before_ffn, after_ffn = (
        Norm(norm, checkpoint.norm(checkpoint.inside(index, name), norm, decoder.hidden_size))
        for name in (names.attention_norm, names.attention_output_norm, names.ffn_norm, names.ffn_output_norm)
    )
    return AltUpLayer(
        checkpoint.group,
        AltUp(streams, own, Norm(norm, own.norm), Norm(norm, own.router_norm)),
        mixer,
        ffn,
        (before, mixed, before_ffn, after_ffn),
        layer_input(checkpoint, note, index, inputs),
        _ends(checkpoint, index, lambda name: _end(checkpoint, note, streams, name)),
    )


def layer_input(checkpoint: Checkpoint, note: Note, index: int, spec: PerLayerSpec) -> LayerInput:
    """Reads what a layer does with its input. Raises ModelFilesError."""
    weights = load_layer_input(checkpoint, index, spec.width, spec.norm)
    note(index, spec, weights)
    return LayerInput(index, spec, weights)


def _ends(checkpoint: Checkpoint, index: int, read: Callable[[str], StreamEnd]) -> StreamEnds:
    """`read` gets the name of an end's matrices."""
    names, last = checkpoint.names, len(checkpoint.spec.layers) - 1
    return StreamEnds(
        read(names.streams_in) if index == 0 else None, read(names.streams_out) if index == last else None
    )


def _end(checkpoint: Checkpoint, note: Note, spec: AltUpSpec, name: str) -> AltUpEnd:
    weights = load_altup_end(checkpoint, spec, name)
    for each in weights:
        note(None, spec, each)
    return AltUpEnd(weights)
