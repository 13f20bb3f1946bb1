"""Factors of all adapters on the matrices of all experts of a mixture, in rank pages (`lora/rank_pages.py`)."""

# pyright: basic
from typing import NamedTuple

from torch import Tensor

from ..lora.rank_pages import RANK_UNITS
from ..runtime.shapes import shapes_error


class ExpertFactors(NamedTuple):
    """What adapters add to an `ExpertMatrix`: `scale * B A` of each pair of an adapter and an expert.

    An expert has its own part of each page. Units beyond the rank of an expert are zeros.
    """

    a: Tensor
    """[pages, experts, RANK_UNITS, inputs], contiguous, in the type of the inputs."""
    b: Tensor
    """[pages, experts, outputs, RANK_UNITS], likewise."""
    scale: Tensor
    """[pages, experts, RANK_UNITS] float32, contiguous."""
    spans: Tensor
    """[adapters + 1, 2] int32: the first page of each adapter, and how many it has here; none, where it changes nothing
    and for number 0, the base.
    """
    most_pages: int
    """At least the largest number of pages."""

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return self.a.nbytes + self.b.nbytes + self.scale.nbytes + self.spans.nbytes


def check_factors(name: str, factors: ExpertFactors, experts: int, outputs: int, inputs: int) -> None:
    """Raises ValueError where factors are not those of such matrices."""
    a, b, scale, spans = factors[:4]
    pages = len(a)
    expected = [
        (a, (pages, experts, RANK_UNITS, inputs)),
        (b, (pages, experts, outputs, RANK_UNITS)),
        (scale, (pages, experts, RANK_UNITS)),
        (spans, (len(spans), 2)),
    ]
    if any(tensor.shape != shape for tensor, shape in expected):
        raise shapes_error(name, a=a, b=b, scale=scale, spans=spans)
    if not all(tensor.is_contiguous() for tensor, _ in expected):
        raise ValueError(f"{name}: a, b, scale and spans must be contiguous")
