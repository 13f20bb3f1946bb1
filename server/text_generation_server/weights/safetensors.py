"""Reading of safetensors folders: each rank maps the files and copies only its shards.

Model folders are untrusted: names in the index must be plain file names beside it, shapes must be those that the
configuration asks for, and every failure names the file and the tensor.
"""

import logging
import time
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase as fnmatch
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ..config.pointer import refuse_pointer
from ..errors import ModelFilesError
from ..telemetry import Progress
from .index import weight_files
from .source import Slice, WeightSource

_FLOATING_TYPES = ("F32", "F16", "BF16", "F64")
_BYTE_TYPES = ("U8",)
_STORED_TYPES = {
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F64": torch.float64,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E8M0": torch.float8_e8m0fnu,
    "I8": torch.int8,
    "U8": torch.uint8,
    "I32": torch.int32,
    "I64": torch.int64,
}
"""The types that `raw` reads."""

logger = logging.getLogger(__name__)


class _Stored(NamedTuple):
    """Where a tensor is."""

    path: Path
    file: safe_open
    name: str
    """Its name in the file."""


class SafetensorsSource(WeightSource):
    """The tensors of one folder, cast to `dtype` on `device` as they are read. Files stay mapped while it lives."""

    def __init__(
        self,
        folder: Path,
        dtype: torch.dtype,
        device: torch.device,
        clock: Callable[[], float] = time.monotonic,
        twins: Callable[[str], Sequence[str]] | None = None,
    ) -> None:
        """`twins` returns the other names by which the tensor that files call so is read as well."""
        self._progress = Progress(logger, "loading", "loading weights", clock)
        self._dtype = dtype
        self._device = device
        self._extremes: list[tuple[str, Tensor]] = []
        """The minimum and the maximum of each tensor, on the device; `warn_not_finite` reads them at the end."""
        self._tensors: dict[str, _Stored] = {}
        for path in weight_files(folder):
            file = _open(path)
            self._tensors.update((name, _Stored(path, file, name)) for name in file.keys())  # noqa: SIM118 - not a dict
        self._unread = set(self._tensors)
        self._count = len(self._tensors)
        if twins is not None:
            for name in sorted(self._unread):
                self._tensors.update((twin, self._tensors[name]) for twin in twins(name) if not self.has(twin))

    def read(
        self, name: str, shape: tuple[int, ...], part: Slice | None = None, dtype: torch.dtype | None = None
    ) -> Tensor:
        """See `WeightSource`."""
        allowed = _BYTE_TYPES if dtype == torch.uint8 else _FLOATING_TYPES
        tensor = self._stored(name, part, shape, allowed)
        # A slice may be a view of the mapped file; the model must own its memory.
        return self.noted(name, tensor.to(device=self._device, dtype=dtype or self._dtype, copy=True))

    def noted(self, name: str, loaded: Tensor) -> Tensor:
        """Returns a tensor that was loaded, after it remembers for `warn_not_finite` whether it is finite."""
        if loaded.numel() and loaded.is_floating_point():
            self._extremes.append((name, torch.stack(torch.aminmax(loaded)).float()))
        return loaded

    def raw(
        self,
        name: str,
        part: Slice | None = None,
        shape: tuple[int, ...] | None = None,
        dtypes: Sequence[torch.dtype] = (),
    ) -> Tensor:
        """See `WeightSource`."""
        allowed = [stored for stored, dtype in _STORED_TYPES.items() if dtype in dtypes] or list(_STORED_TYPES)
        return self._stored(name, part, shape, allowed).to(device=self._device, copy=True)

    def shape(self, name: str) -> tuple[int, ...]:
        """See `WeightSource`."""
        path, file, stored = self._file(name)
        try:
            return tuple(file.get_slice(stored).get_shape())
        except SafetensorError as error:
            raise _unreadable(path, name, error) from error

    def empty(self, shape: tuple[int, ...]) -> Tensor:
        """See `WeightSource`."""
        return torch.empty(shape, dtype=self._dtype, device=self._device)

    def names(self) -> list[str]:
        """See `WeightSource`. Twins are among them."""
        return list(self._tensors)

    @property
    def dtype(self) -> torch.dtype:
        """The type of the model."""
        return self._dtype

    def is_plain(self, name: str) -> bool:
        """Whether a tensor of this name is stored with 16 bits or more."""
        if not self.has(name):
            return False
        path, file, stored = self._file(name)
        try:
            return file.get_slice(stored).get_dtype() in _FLOATING_TYPES
        except SafetensorError as error:
            raise _unreadable(path, name, error) from error

    def has(self, name: str) -> bool:
        """See `WeightSource`."""
        return name in self._tensors

    def _file(self, name: str) -> _Stored:
        if name not in self._tensors:
            raise ModelFilesError(f"tensor `{name}` is in none of the model's safetensors files")
        return self._tensors[name]

    def _stored(self, name: str, part: Slice | None, shape: tuple[int, ...] | None, allowed: Sequence[str]) -> Tensor:
        """Returns a tensor or a slice of it, which may be a view of the mapped file."""
        path, file, inside = self._file(name)
        try:
            stored = file.get_slice(inside)
            found = tuple(stored.get_shape())
            _check(path, name, found, found if shape is None else shape, stored.get_dtype(), allowed)
            region: list[slice | int] = [slice(None)] * len(found)
            if part is not None and part.entry is not None:
                region[0] = part.entry
            if part is not None and len(found) > (before := int(part.entry is not None)):
                region[before + part.dim] = slice(part.start, part.stop)
            # A scalar has no dimensions to slice.
            tensor: Tensor = stored[tuple(region)] if found else file.get_tensor(inside)
        except SafetensorError as error:
            raise _unreadable(path, name, error) from error
        self._unread.discard(inside)
        self._progress.report(self._count - len(self._unread), self._count)
        return tensor

    def warn_unread(self, ignored: Sequence[str] = ()) -> None:
        """Logs the tensors that the model did not read, a sign of a configuration that does not fit the weights. It
        leaves out names that match the patterns `ignored`.
        """
        names = sorted(name for name in self._unread if not any(fnmatch(name, pattern) for pattern in ignored))
        if names:
            logger.warning("%d tensors of the model folder are not used, such as %s", len(names), ", ".join(names[:3]))

    def warn_not_finite(self) -> None:
        """Logs the tensors with NaN or infinite values, from the file or from the cast to a narrower type."""
        if not self._extremes:
            return
        finite = torch.stack([extremes for _, extremes in self._extremes]).isfinite().all(dim=1).tolist()
        names = sorted({name for (name, _), good in zip(self._extremes, finite, strict=True) if not good})
        if names:
            logger.warning(
                "%d tensors of the model hold NaN or infinite numbers as %s, such as %s: requests may fail",
                len(names),
                str(self._dtype).removeprefix("torch."),
                ", ".join(names[:3]),
            )


def _open(path: Path) -> safe_open:
    if not path.is_file():
        # Opening a pipe would wait for a writer.
        raise ModelFilesError(
            f"{path} is not a regular file: a pipe, a device, a folder or a broken link holds no weights"
        )
    try:
        return safe_open(path, framework="pt")
    except (SafetensorError, OSError) as error:
        refuse_pointer(path)
        raise ModelFilesError(f"{path} is damaged or not a safetensors file: {error}") from error


def _unreadable(path: Path, name: str, error: SafetensorError) -> ModelFilesError:
    return ModelFilesError(f"{path}: tensor `{name}` cannot be read: {error}")


def _check(
    path: Path, name: str, found: tuple[int, ...], expected: tuple[int, ...], dtype: str, allowed: Sequence[str]
) -> None:
    if found != expected:
        raise ModelFilesError(
            f"{path}: tensor `{name}` has shape {list(found)}, but config.json asks for {list(expected)}"
        )
    if dtype not in allowed:
        raise ModelFilesError(f"{path}: tensor `{name}` has type {dtype}; only {', '.join(allowed)} work")
