"""Files of an adapter, which are untrusted: bounds before anything is read, every value finite, one hash of all."""

import hashlib
import json
import os
import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ..config.pointer import refuse_pointer
from ..errors import AdapterError, ModelFilesError
from .threads import in_threads

_SAFETENSORS, _PICKLE = "adapter_model.safetensors", "adapter_model.bin"
MOST_BYTES = 16 << 30
MOST_HEADER = 16 << 20
MOST_TENSORS = 100_000
_READ_AT_ONCE = 4 << 20
_CHECKED_AT_ONCE = 1 << 19
"""Numbers, which stay in a core's cache."""
_TYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_EXPONENTS: dict[torch.dtype, tuple[type[np.unsignedinteger[Any]], int]] = {
    torch.float32: (np.uint32, 0x7F800000),
    torch.float16: (np.uint16, 0x7C00),
    torch.bfloat16: (np.uint16, 0x7F80),
}
"""The bits of exponents, which are all set in what is no finite number, as integers."""


@dataclass(frozen=True)
class _Stored:
    """Where a tensor is in a file."""

    kind: str
    """The type, as the format calls it."""
    shape: tuple[int, ...]
    start: int
    stop: int

    @classmethod
    def of(cls, entry: Any, end: int) -> "_Stored":
        """From an entry of a header that is known to be right, and ends at `end`."""
        first, last = entry["data_offsets"]
        return cls(entry["dtype"], tuple(entry["shape"]), end + first, end + last)


def read_tensors(folder: Path, allow_pickle: bool) -> tuple[Path, dict[str, Tensor]]:
    """Returns the file of the adapter in `folder`, and its tensors.

    A pickle is read by torch's weights-only loader, and only with `allow_pickle`. Raises AdapterError.
    """
    path = folder / _SAFETENSORS
    if path.exists():
        tensors = _copied(path)
    elif (folder / _PICKLE).exists():
        path = folder / _PICKLE
        tensors = _unpickled(path, allow_pickle)
    else:
        raise AdapterError(
            f"{folder} has no {_SAFETENSORS}: fetch all files of the adapter, or save it again with PEFT"
        )
    in_threads(lambda name: _check(path, name, tensors[name]), list(tensors))
    return path, tensors


def content_hash(tensors: Mapping[str, Tensor], meaning: str) -> str:
    """Returns the SHA-256 of names, types, shapes and the SHA-256 of the bytes of all tensors, and of what the
    configuration says.
    """
    digest, names = hashlib.sha256(meaning.encode()), sorted(tensors)
    for name, own in zip(names, in_threads(lambda name: hashlib.sha256(_raw(tensors[name]).data), names), strict=True):
        tensor = tensors[name]
        digest.update(f"\0{name}\0{tensor.dtype}\0{tuple(tensor.shape)}\0".encode())
        digest.update(own.digest())
    return digest.hexdigest()


def _copied(path: Path) -> dict[str, Tensor]:
    """Reads a copy into memory: who writes to the file meanwhile, or cuts it off, harms nobody, and the hash is that of
    what is computed.
    """
    _check_size(path)
    try:
        with path.open("rb") as file:
            stored = _bytes(path, file)
        return {name: _tensor(path, name, stored, each) for name, each in _header(path, stored).items()}
    except (SafetensorError, OSError) as error:
        _refuse_pointer(path)
        raise AdapterError(f"{path} is damaged or not a safetensors file: {error}; fetch it again") from error


def _bytes(path: Path, file: IO[bytes]) -> NDArray[np.uint8]:
    size = os.fstat(file.fileno()).st_size
    stored = np.empty(size, dtype=np.uint8)

    def read(first: int) -> None:
        stop = min(first + _READ_AT_ONCE, size)
        while first < stop:
            if not (count := os.preadv(file.fileno(), [stored[first:stop].data], first)):
                raise AdapterError(f"{path} was cut off while it was read; fetch it again")
            first += count

    in_threads(read, range(0, size, _READ_AT_ONCE))
    return stored


def _header(path: Path, stored: NDArray[np.uint8]) -> dict[str, _Stored]:
    """Returns where each tensor is. The library of the format checks the header, in a file without any data."""
    header = int.from_bytes(stored[:8].tobytes().ljust(8, b"\0"), "little")
    if header > MOST_HEADER:
        raise AdapterError(f"{path}: its header has {header} bytes, and at most {MOST_HEADER} are read")
    end = min(8 + header, len(stored))
    with os.fdopen(os.memfd_create("adapter"), "w+b") as alone:
        alone.write(stored[:end].data)
        alone.truncate(len(stored))
        alone.flush()
        with safe_open(f"/proc/self/fd/{alone.fileno()}", framework="pt") as file:
            names = list(file.keys())
    if len(names) > MOST_TENSORS:
        raise AdapterError(f"{path} has {len(names)} tensors, and at most {MOST_TENSORS} are read")
    entries = json.loads(stored[8:end].tobytes())
    return {name: _Stored.of(entries[name], end) for name in names}


def _tensor(path: Path, name: str, stored: NDArray[np.uint8], each: _Stored) -> Tensor:
    dtype, data = _TYPES.get(each.kind), torch.from_numpy(stored[each.start : each.stop])
    if dtype is None:
        raise _other_type(path, name, each.kind)
    aligned = data.clone() if data.data_ptr() % dtype.itemsize else data
    return aligned.view(dtype).view(each.shape)


def _unpickled(path: Path, allowed: bool) -> dict[str, Tensor]:
    if not allowed:
        raise AdapterError(
            f"{path} is a pickle, which is only read of an adapter that the operator names at the start: convert it to "
            f"{_SAFETENSORS} with PEFT"
        )
    _check_size(path)
    try:
        values = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, OSError, ValueError, KeyError) as error:
        _refuse_pointer(path)
        raise AdapterError(f"{path} is damaged, or holds more than tensors: {error}") from error
    items = cast("dict[object, object]", values).items() if isinstance(values, dict) else ()
    tensors = {name: value for name, value in items if isinstance(name, str) and isinstance(value, Tensor)}
    if not isinstance(values, dict) or len(tensors) < len(cast("dict[object, object]", values)):
        raise AdapterError(f"{path} holds more than a table of tensors: save the adapter again with PEFT")
    return tensors


def _check_size(path: Path) -> None:
    if not path.is_file():
        # Opening a pipe would wait for a writer.
        raise AdapterError(f"{path} is not a regular file: name a folder with the files of an adapter")
    if (size := path.stat().st_size) > MOST_BYTES:
        raise AdapterError(f"{path} has {size} bytes, and adapters may have at most {MOST_BYTES}")


def _check(path: Path, name: str, tensor: Tensor) -> None:
    if tensor.dtype not in _EXPONENTS:
        raise _other_type(path, name, str(tensor.dtype).removeprefix("torch."))
    if not tensor.numel():
        raise AdapterError(f"{path}: tensor `{name}` is empty: its training has saved a shard, not the whole adapter")
    if not _is_finite(tensor):
        raise AdapterError(f"{path}: tensor `{name}` holds NaN or infinite numbers: its training has failed")


def _is_finite(tensor: Tensor) -> bool:
    kind, exponent = _EXPONENTS[tensor.dtype]
    bits = _raw(tensor).view(kind)
    parts = (bits[start : start + _CHECKED_AT_ONCE] for start in range(0, len(bits), _CHECKED_AT_ONCE))
    return all(int((part & kind(exponent)).max()) < exponent for part in parts)


def _raw(tensor: Tensor) -> NDArray[np.uint8]:
    """Returns the bytes of a tensor."""
    return tensor.detach().contiguous().view(-1).view(torch.uint8).numpy()


def _other_type(path: Path, name: str, found: str) -> AdapterError:
    known = ", ".join(str(each).removeprefix("torch.") for each in _EXPONENTS)
    return AdapterError(f"{path}: tensor `{name}` has type {found}, and only {known} are read")


def _refuse_pointer(path: Path) -> None:
    try:
        refuse_pointer(path)
    except ModelFilesError as error:
        raise AdapterError(str(error)) from error
