"""The tensors of a drafter's folder, which are untrusted: each is checked, and each must be read."""

import pickle
from pathlib import Path
from typing import cast

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ..config.drafter import FLAG
from ..config.pointer import refuse_pointer
from ..errors import ModelFilesError

_FLOATS = (torch.float32, torch.float16, torch.bfloat16)
_NO_WEIGHTS = ("training", "optimizer", "scheduler")
_SHOWN = 5


class DrafterTensors:
    """What the files of a folder hold, until it is taken."""

    def __init__(self, folder: Path, dtype: torch.dtype, device: torch.device) -> None:
        """Weights are taken in `dtype`, to `device`. Raises ModelFilesError."""
        self._folder = folder
        self._dtype = dtype
        self.device = device
        self._tensors: dict[str, Tensor] = {}
        for path in _files(folder):
            self._tensors.update(_stored(path))

    def renamed(self, prefix: str, other: str) -> None:
        """Names tensors that begin with `prefix` by `other` instead."""
        self._tensors = {
            other + name.removeprefix(prefix) if name.startswith(prefix) else name: each
            for name, each in self._tensors.items()
        }

    def has(self, name: str) -> bool:
        """Whether a tensor of this name is left."""
        return name in self._tensors

    def weight(self, name: str, *shape: int) -> Tensor:
        """Takes a tensor of weights. Raises ModelFilesError."""
        tensor = self._take(name, shape, _FLOATS).to(device=self.device, dtype=self._dtype)
        if not bool(torch.stack(torch.aminmax(tensor)).isfinite().all()):
            raise self._error(name, "holds NaN or infinite numbers: its training has failed")
        return tensor.contiguous()

    def integers(self, name: str, *shape: int) -> Tensor:
        """Takes a tensor of whole numbers, as int64. Raises ModelFilesError."""
        return self._take(name, shape, (torch.int64, torch.int32, torch.bool)).to(torch.int64).to(self.device)

    def drop(self, name: str) -> None:
        """Takes a tensor that nobody needs, if it is there."""
        self._tensors.pop(name, None)

    def check_all_taken(self) -> None:
        """Raises ModelFilesError that names the tensors which are left."""
        if names := sorted(self._tensors):
            rest = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
            listed = ", ".join(f"`{name}`" for name in names[:_SHOWN])
            raise ModelFilesError(
                f"{self._folder}: what {FLAG} reads has no {listed}{rest}: name a drafter in one of the layouts that "
                "docs/speculation.md lists"
            )

    def _take(self, name: str, shape: tuple[int, ...], types: tuple[torch.dtype, ...]) -> Tensor:
        if name not in self._tensors:
            raise ModelFilesError(
                f"{self._folder} has no tensor `{name}`, which {FLAG} needs: fetch all files of the drafter, or name "
                "one in another layout that docs/speculation.md lists"
            )
        tensor = self._tensors[name]
        if tuple(tensor.shape) != shape:
            raise self._error(name, f"has shape {list(tensor.shape)}, but config.json asks for {list(shape)}")
        if tensor.dtype not in types:
            known = ", ".join(str(each).removeprefix("torch.") for each in types)
            raise self._error(name, f"has type {str(tensor.dtype).removeprefix('torch.')}; only {known} work")
        return self._tensors.pop(name)

    def _error(self, name: str, fault: str) -> ModelFilesError:
        return ModelFilesError(f"{self._folder}: tensor `{name}` of {FLAG} {fault}")


def _files(folder: Path) -> list[Path]:
    found = _of_medusa(folder) or sorted(folder.glob("*.safetensors"))
    if not found:
        found = [path for path in sorted(folder.glob("*.bin")) if not path.name.startswith(_NO_WEIGHTS)]
    if not found:
        raise ModelFilesError(f"{folder} has neither *.safetensors nor *.bin: fetch all files of the drafter ({FLAG})")
    for path in found:
        if not path.is_file():
            # Opening a pipe would wait for a writer.
            raise ModelFilesError(f"{path} is not a regular file: {FLAG} must name a folder with files of a drafter")
    return found


def _of_medusa(folder: Path) -> list[Path]:
    """The file that Medusa's heads have, also where the weights of the whole model lie beside it."""
    named = (folder / f"medusa_lm_head.{ending}" for ending in ("safetensors", "pt"))
    return [path for path in named if path.exists()][:1]


def _stored(path: Path) -> dict[str, Tensor]:
    if path.suffix != ".safetensors":
        return _unpickled(path)
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
    except (SafetensorError, OSError) as error:
        refuse_pointer(path)
        raise ModelFilesError(f"{path} is damaged or not a safetensors file: {error}") from error


def _unpickled(path: Path) -> dict[str, Tensor]:
    """By torch's weights-only loader, which runs no code from the file."""
    try:
        values: object = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, OSError, ValueError, KeyError) as error:
        refuse_pointer(path)
        raise ModelFilesError(f"{path} is damaged, or holds more than tensors, and is not loaded: {error}") from error
    items = cast("dict[object, object]", values).items() if isinstance(values, dict) else ()
    tensors = {name: value for name, value in items if isinstance(name, str) and isinstance(value, Tensor)}
    if not isinstance(values, dict) or len(tensors) < len(cast("dict[object, object]", values)):
        raise ModelFilesError(f"{path} holds more than a table of tensors, and is not loaded")
    return tensors
