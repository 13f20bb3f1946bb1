"""Random weights, for benchmarks and for tests of everything but the answers. They need nothing but a configuration."""

import zlib
from collections.abc import Sequence

import torch
from torch import Tensor

from ..errors import ModelFilesError
from .source import Slice, WeightSource

# Small enough that deep models stay finite in float16.
_STANDARD_DEVIATION = 0.02
_STORED_ONLY = ("_scale", "_scale_inv", "_scales", ".scales", "_blocks", ".qweight", ".weight_packed", ".SCB", ".g_idx")


class DummySource(WeightSource):
    """Makes normally distributed matrices, unit norm weights and zero biases.

    A tensor depends on its name and shape alone, so ranks hold shards of the same tensor. Each is made whole on the
    device before its shard is taken: while loading, the largest matrix needs its memory once more.
    """

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self._dtype = dtype
        self._device = device

    def read(
        self, name: str, shape: tuple[int, ...], part: Slice | None = None, dtype: torch.dtype | None = None
    ) -> Tensor:
        """See `WeightSource`; never fails."""
        # The shard is allocated first, so that the whole tensor leaves no gap behind it.
        out = None
        if part is not None:
            held = [part.stop - part.start if dim == part.dim else size for dim, size in enumerate(shape)]
            out = torch.empty(held, dtype=dtype or self._dtype, device=self._device)
        tensor = torch.empty(shape, dtype=dtype or self._dtype, device=self._device)
        if len(shape) == 1:
            tensor.fill_(0.0 if name.endswith(".bias") else 1.0)
        else:
            generator = torch.Generator(self._device).manual_seed(zlib.crc32(name.encode()))
            tensor.normal_(std=_STANDARD_DEVIATION, generator=generator)
        if part is None or out is None:
            return tensor
        return out.copy_(tensor.narrow(part.dim, part.start, part.stop - part.start))

    def raw(
        self,
        name: str,
        part: Slice | None = None,  # noqa: ARG002 - there is none
        shape: tuple[int, ...] | None = None,  # noqa: ARG002
        dtypes: Sequence[torch.dtype] = (),  # noqa: ARG002
    ) -> Tensor:
        """See `WeightSource`: always raises, because random weights are quantised after they are made."""
        raise ModelFilesError(f"random weights have no stored layout of `{name}`")

    def shape(self, name: str) -> tuple[int, ...]:
        """See `WeightSource`: always raises."""
        raise ModelFilesError(f"random weights have no stored layout of `{name}`")

    def empty(self, shape: tuple[int, ...]) -> Tensor:
        """See `WeightSource`."""
        return torch.empty(shape, dtype=self._dtype, device=self._device)

    def has(self, name: str) -> bool:
        """See `WeightSource`: everything but scales and packed codes, which `raw` would have to make."""
        return not name.endswith(_STORED_ONLY)

    def names(self) -> Sequence[str]:
        """See `WeightSource`."""
        return ()
