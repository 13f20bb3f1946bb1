"""Builds layers with several residual streams, and what layers do with inputs of their own."""

from collections.abc import Callable

from ..config.spec import LayerSpec, PerLayerSpec, StreamsSpec
from ..layers.infer import FeedForward, LayerInput, Mixer, Norm, StreamEnd, StreamLayer, Streams
from ..layers.weights import Checkpoint, load_layer_input, load_stream_end, load_streams

Note = Callable[[int | None, object, object], None]
"""Notes the weights of a sublayer; see `DecoderBuilder`."""


def stream_layer(
    checkpoint: Checkpoint, note: Note, index: int, spec: LayerSpec, mixer: Mixer, ffn: FeedForward
) -> StreamLayer:
    """Reads what stands around mixer and network of a layer. Raises ModelFilesError."""
    names, decoder = checkpoint.names, checkpoint.spec
    streams, inputs, norm = decoder.streams, decoder.per_layer, spec.attention_norm
    if streams is None or inputs is None or norm is None:
        raise ValueError(f"layer {index} has several residual streams, and no spec of them, no input or no norm")
    own = load_streams(checkpoint, index, streams, norm)
    note(index, streams, own)
    before, mixed, before_ffn, after_ffn = (
        Norm(norm, checkpoint.norm(checkpoint.inside(index, name), norm, decoder.hidden_size))
        for name in (names.attention_norm, names.attention_output_norm, names.ffn_norm, names.ffn_output_norm)
    )
    return StreamLayer(
        checkpoint.group,
        Streams(streams, own, Norm(norm, own.norm), Norm(norm, own.router_norm)),
        mixer,
        ffn,
        (before, mixed, before_ffn, after_ffn),
        layer_input(checkpoint, note, index, inputs),
        _end(checkpoint, note, streams, names.streams_in) if index == 0 else None,
        _end(checkpoint, note, streams, names.streams_out) if index == len(decoder.layers) - 1 else None,
    )


def layer_input(checkpoint: Checkpoint, note: Note, index: int, spec: PerLayerSpec) -> LayerInput:
    """Reads what a layer does with its input. Raises ModelFilesError."""
    weights = load_layer_input(checkpoint, index, spec.width, spec.norm)
    note(index, spec, weights)
    return LayerInput(index, spec, weights)


def _end(checkpoint: Checkpoint, note: Note, spec: StreamsSpec, name: str) -> StreamEnd:
    weights = load_stream_end(checkpoint, spec, name)
    for each in weights:
        note(None, spec, each)
    return StreamEnd(weights)
