"""Files of an adapter, which are untrusted: bounds before anything is read, every value finite, one hash of all."""

import hashlib
import json
import os
import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

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
_CHECKED_AT_ONCE = 1 << 18
"""Numbers, which stay in a core's cache."""
_TYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_INFINITIES: dict[torch.dtype, tuple[type[np.signedinteger[Any]], type[np.unsignedinteger[Any]], int]] = {
    torch.float32: (np.int32, np.uint32, 0x7F800000),
    torch.float16: (np.int16, np.uint16, 0x7C00),
    torch.bfloat16: (np.int16, np.uint16, 0x7F80),
}
"""Integers of the size of a type, and the bits of infinity. What is no finite number has those or more beside the sign.
"""


class _Stored(NamedTuple):
    """Where a tensor is behind the header of a file."""

    kind: str
    """The type, as the format calls it."""
    shape: tuple[int, ...]
    start: int
    stop: int

    @classmethod
    def of(cls, entry: Any) -> "_Stored":
        """From an entry of a header that is known to be right."""
        return cls(entry["dtype"], tuple(entry["shape"]), *entry["data_offsets"])


@dataclass(frozen=True)
class Contents:
    """What is in the file of an adapter."""

    path: Path
    tensors: Mapping[str, Tensor]
    digests: Mapping[str, bytes]
    """The SHA-256 of the bytes of each tensor."""

    def digest(self, meaning: str) -> str:
        """Returns the SHA-256 of names, types, shapes and digests of tensors, and of what the configuration says."""
        digest = hashlib.sha256(meaning.encode())
        for name in sorted(self.tensors):
            tensor = self.tensors[name]
            digest.update(f"\0{name}\0{tensor.dtype}\0{tuple(tensor.shape)}\0".encode())
            digest.update(self.digests[name])
        return digest.hexdigest()


def read_contents(folder: Path, allow_pickle: bool) -> Contents:
    """Reads the file of the adapter in `folder`.

    A pickle is read by torch's weights-only loader, and only with `allow_pickle`. Raises AdapterError.
    """
    path = folder / _SAFETENSORS
    if path.exists():
        return _copied(path)
    path = folder / _PICKLE
    if path.exists():
        tensors = _unpickled(path, allow_pickle)
        digests = in_threads(lambda name: _digest_of(path, name, tensors[name]), list(tensors))
        return Contents(path, tensors, dict(zip(tensors, digests, strict=True)))
    raise AdapterError(f"{folder} has no {_SAFETENSORS}: fetch all files of the adapter, or save it again with PEFT")


def _copied(path: Path) -> Contents:
    """Reads a copy into memory: who writes to the file meanwhile, or cuts it off, harms nobody, and the hash is that of
    what is computed. A thread hashes and checks a tensor while the bytes that it has read are in its core's cache.
    """
    _check_size(path)
    _refuse_pointer(path)
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            end, stored = _header(path, file, size)
            data = np.empty(size - end, dtype=np.uint8)

            def read(name: str) -> tuple[Tensor, bytes]:
                each = stored[name]
                own = data[each.start : each.stop]
                _fill(path, file, own, end + each.start)
                if (dtype := _TYPES.get(each.kind)) is None:
                    raise _other_type(path, name, each.kind)
                digest = _digest(path, name, dtype, own)
                # A tensor begins at a multiple of its element size.
                at, start = (own.copy(), 0) if each.start % dtype.itemsize else (data, each.start)
                tensor = torch.frombuffer(at, dtype=dtype, count=len(own) // dtype.itemsize, offset=start)
                return tensor.view(each.shape), digest

            found = dict(zip(stored, in_threads(read, list(stored)), strict=True))
    except (SafetensorError, OSError) as error:
        raise AdapterError(f"{path} is damaged or not a safetensors file: {error}; fetch it again") from error
    tensors = {name: tensor for name, (tensor, _) in found.items()}
    return Contents(path, tensors, {name: digest for name, (_, digest) in found.items()})


def _fill(path: Path, file: IO[bytes], out: NDArray[np.uint8], start: int) -> None:
    """Reads what begins at byte `start` of a file."""
    done = 0
    while done < len(out):
        if not (count := os.preadv(file.fileno(), [out[done:].data], start + done)):
            raise AdapterError(f"{path} was cut off while it was read; fetch it again")
        done += count


def _header(path: Path, file: IO[bytes], size: int) -> tuple[int, dict[str, _Stored]]:
    """Returns where the header ends, and where each tensor is behind that. The library of the format checks the header,
    in a file without any data.
    """
    length = int.from_bytes(os.pread(file.fileno(), 8, 0).ljust(8, b"\0"), "little")
    if length > MOST_HEADER:
        raise AdapterError(f"{path}: its header has {length} bytes, and at most {MOST_HEADER} are read")
    header = np.empty(min(8 + length, size), dtype=np.uint8)
    _fill(path, file, header, 0)
    with os.fdopen(os.memfd_create("adapter"), "w+b") as alone:
        alone.write(header.data)
        alone.truncate(size)
        alone.flush()
        with safe_open(f"/proc/self/fd/{alone.fileno()}", framework="pt") as checked:
            names = list(checked.keys())
    if len(names) > MOST_TENSORS:
        raise AdapterError(f"{path} has {len(names)} tensors, and at most {MOST_TENSORS} are read")
    entries = json.loads(header[8:].tobytes())
    if any(not isinstance(entries[name], dict) for name in names):
        raise AdapterError(f"{path} is damaged: its header has tensors that are no objects; fetch it again")
    return len(header), {name: _Stored.of(entries[name]) for name in names}


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


def _digest_of(path: Path, name: str, tensor: Tensor) -> bytes:
    if tensor.dtype not in _INFINITIES:
        raise _other_type(path, name, str(tensor.dtype).removeprefix("torch."))
    return _digest(path, name, tensor.dtype, tensor.detach().contiguous().view(-1).view(torch.uint8).numpy())


def _digest(path: Path, name: str, dtype: torch.dtype, raw: NDArray[np.uint8]) -> bytes:
    """Returns the SHA-256 of the bytes of a tensor. Raises AdapterError for one that is empty or not finite."""
    if not len(raw):
        raise AdapterError(f"{path}: tensor `{name}` is empty: its training has saved a shard, not the whole adapter")
    if not _is_finite(raw, dtype):
        raise AdapterError(f"{path}: tensor `{name}` holds NaN or infinite numbers: its training has failed")
    return hashlib.sha256(raw.data).digest()


def _is_finite(raw: NDArray[np.uint8], dtype: torch.dtype) -> bool:
    """Whether all numbers are finite: the highest signed integer tells of positive ones, the highest unsigned one of
    negative ones. Masks of exponents would need memory, which a thread gets from the system anew each time.
    """
    signed, unsigned, infinity = _INFINITIES[dtype]
    sign = 1 << 8 * dtype.itemsize - 1
    numbers = raw.view(signed)
    parts = (numbers[start : start + _CHECKED_AT_ONCE] for start in range(0, len(numbers), _CHECKED_AT_ONCE))
    return all(int(part.max()) < infinity and int(part.view(unsigned).max()) < infinity + sign for part in parts)


def _other_type(path: Path, name: str, found: str) -> AdapterError:
    known = ", ".join(str(each).removeprefix("torch.") for each in _INFINITIES)
    return AdapterError(f"{path}: tensor `{name}` has type {found}, and only {known} are read")


def _refuse_pointer(path: Path) -> None:
    try:
        refuse_pointer(path)
    except ModelFilesError as error:
        raise AdapterError(str(error)) from error
