"""Files of an adapter, which are untrusted: bounds before anything is read, every value finite, one hash of all."""

import hashlib
import os
import pickle
import shutil
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import IO, cast

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ..config.pointer import refuse_pointer
from ..errors import AdapterError, ModelFilesError

_SAFETENSORS, _PICKLE = "adapter_model.safetensors", "adapter_model.bin"
MOST_BYTES = 16 << 30
MOST_HEADER = 16 << 20
MOST_TENSORS = 100_000
_COPIED_AT_ONCE = 1 << 20
_TYPES = (torch.float32, torch.float16, torch.bfloat16)


def read_tensors(folder: Path, allow_pickle: bool) -> tuple[Path, dict[str, Tensor]]:
    """Returns the file of the adapter in `folder`, and its tensors.

    A pickle is read by torch's weights-only loader, and only with `allow_pickle`. Raises AdapterError.
    """
    path = folder / _SAFETENSORS
    if path.exists():
        tensors = _mapped(path)
    elif (folder / _PICKLE).exists():
        path = folder / _PICKLE
        tensors = _unpickled(path, allow_pickle)
    else:
        raise AdapterError(
            f"{folder} has no {_SAFETENSORS}: fetch all files of the adapter, or save it again with PEFT"
        )
    for name, tensor in tensors.items():
        _check(path, name, tensor)
    return path, tensors


def content_hash(tensors: Mapping[str, Tensor], meaning: str) -> str:
    """Returns the SHA-256 of names, types, shapes and bytes of all tensors, and of what the configuration says."""
    digest = hashlib.sha256(meaning.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"\0{name}\0{tensor.dtype}\0{tuple(tensor.shape)}\0".encode())
        digest.update(tensor.contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _mapped(path: Path) -> dict[str, Tensor]:
    """Maps a copy in memory: who writes to the file meanwhile, or cuts it off, harms nobody, and the hash is that of
    what is computed.
    """
    _check_size(path)
    try:
        with os.fdopen(os.memfd_create("adapter"), "w+b") as copied, path.open("rb") as file:
            shutil.copyfileobj(file, copied, _COPIED_AT_ONCE)
            copied.flush()
            return _read(path, copied)
    except (SafetensorError, OSError) as error:
        _refuse_pointer(path)
        raise AdapterError(f"{path} is damaged or not a safetensors file: {error}; fetch it again") from error


def _read(path: Path, copied: IO[bytes]) -> dict[str, Tensor]:
    copied.seek(0)
    header = struct.unpack("<Q", copied.read(8).ljust(8, b"\0"))[0]
    if header > MOST_HEADER:
        raise AdapterError(f"{path}: its header has {header} bytes, and at most {MOST_HEADER} are read")
    with safe_open(f"/proc/self/fd/{copied.fileno()}", framework="pt") as file:
        names = list(file.keys())
        if len(names) > MOST_TENSORS:
            raise AdapterError(f"{path} has {len(names)} tensors, and at most {MOST_TENSORS} are read")
        return {name: file.get_tensor(name) for name in names}


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
    if tensor.dtype not in _TYPES:
        known = ", ".join(str(each).removeprefix("torch.") for each in _TYPES)
        raise AdapterError(f"{path}: tensor `{name}` has type {tensor.dtype}, and only {known} are read")
    if not tensor.numel():
        raise AdapterError(f"{path}: tensor `{name}` is empty: its training has saved a shard, not the whole adapter")
    if not bool(torch.stack(torch.aminmax(tensor)).isfinite().all()):
        raise AdapterError(f"{path}: tensor `{name}` holds NaN or infinite numbers: its training has failed")


def _refuse_pointer(path: Path) -> None:
    try:
        refuse_pointer(path)
    except ModelFilesError as error:
        raise AdapterError(str(error)) from error
