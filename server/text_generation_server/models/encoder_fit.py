"""Whether a decoder computes what an encoder of images asks of it."""

from collections.abc import Sequence

from ..layers.infer import Attention, Layer, ScaledLayer, TransformerLayer
from ..layers.rope import RopeTable
from .encoder import Encoder


def reason_against(encoder: Encoder, layers: Sequence[Layer], ropes: Sequence[RopeTable]) -> str:
    """Returns why images of this encoder cannot be served; empty where they can."""
    if encoder.levels > len(layers):
        return f"its encoder adds to the output of {encoder.levels - 1} layers, and more of the decoder must follow"
    if encoder.axes and not any(table.has_axes for table in ropes):
        return "`mrope_section` is missing in config.json: positions of images count along axes"
    if encoder.whole_spans and not all(takes_spans(layer) for layer in layers):
        return "tokens of an image attend to each other, which is not implemented for the attention of this model"
    return ""


def takes_spans(layer: Layer) -> bool:
    """Whether tokens of an image attend to each other in a layer, as far as its model wants them to."""
    is_known = isinstance(layer, TransformerLayer | ScaledLayer)
    return is_known and isinstance(layer.mixer, Attention) and layer.mixer.takes_spans
