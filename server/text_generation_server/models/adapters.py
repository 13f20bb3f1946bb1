"""The adapters that requests of a model may use: reading their files, and the layers that add them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from text_generation_kernels import RANK_UNITS

from ..adapters import Adapter, BaseModel, Change, Delta, ModelTensors, highest_rank, read_adapter
from ..config.model import ModelConfig
from ..distributed import TensorParallelGroup
from ..errors import AdapterError
from ..layers.infer import Layer
from ..layers.weights import (
    AdaptedLinear,
    AdapterMemory,
    AdapterRoom,
    Checkpoint,
    CurrentAdapters,
    HostFactors,
    HostSite,
    Linear,
    low_rank_pages,
    unplaced,
)
from ..weights import SafetensorsSource

MOST_PAGES = 16
"""Pages of an adapter of the highest rank."""


@dataclass(frozen=True)
class HostAdapter:
    """An adapter in host memory, as this rank needs it."""

    generation: int
    """Not 0, 64 bits, the same for the same contents: keys and values of two adapters must not be taken for one."""
    rank: int
    """The highest of its matrices."""
    by_output: bool
    """Whether it multiplies outputs (DoRA) or changes biases, on any rank."""
    factors: HostFactors

    @property
    def pages(self) -> int:
        """The pages that it takes on the device."""
        return self.factors.pages


@dataclass(frozen=True)
class UnpackedAdapter:
    """An adapter whose files were read, with the checkpoint that it is for."""

    adapter: Adapter
    checkpoint: Checkpoint

    @property
    def generation(self) -> int:
        """See `HostAdapter`."""
        return int(self.adapter.digest[:16], 16) or 1


@dataclass(frozen=True)
class AdapterReader:
    """Reads adapters for the model in a folder. Any thread may use it."""

    folder: Path
    config: ModelConfig
    group: TensorParallelGroup
    dtype: torch.dtype

    def read(self, folder: Path, untrusted: bool) -> UnpackedAdapter:
        """Reads the adapter in `folder`, and opens the checkpoint that it is for, on the host. `untrusted`: whoever
        named it is not the operator. Raises AdapterError, and ModelFilesError where the model cannot be read.
        """
        # Its progress is that of a start, which this is none of: for this clock, no time passes.
        files = SafetensorsSource(self.folder, self.dtype, torch.device("cpu"), clock=lambda: 0.0)
        config = self.config
        base = BaseModel(files, ModelTensors.of(config.decoder, config.names, files))
        adapter = read_adapter(folder, base, allow_pickle=not untrusted)
        checkpoint = Checkpoint.of(files, config.decoder, config.names, self.group, config.schemes)
        return UnpackedAdapter(adapter, checkpoint)


class AdapterPool:
    """The adapters on the device, and the layers for steps in which tokens use them. The engine thread owns it."""

    def __init__(self, layers: Sequence[Layer], memory: AdapterMemory, numbers: Mapping[int, int]) -> None:
        """`numbers` has the number of each site, by the identity of its linear layer in `layers`."""
        self.current = CurrentAdapters()
        self.memory = memory

        def wrap(linear: Linear) -> Linear:
            number = numbers.get(id(linear))
            pages = None if number is None else memory.of_site(number)
            return linear if pages is None else AdaptedLinear(linear, pages, self.current)

        self.layers = [layer.adapted(wrap) for layer in layers]


class ModelAdapters:
    """What a model knows of adapters. Threads may read and pack adapters beside the engine thread, which calls
    `allocate`.
    """

    def __init__(self, reader: AdapterReader, layers: Sequence[Layer], device: torch.device) -> None:
        self._reader = reader
        self._layers = layers
        self._device = device
        self._sites: list[HostSite] = []
        self._numbers: dict[int, int] = {}

        def note(linear: Linear) -> Linear:
            if linear.site is not None and id(linear) not in self._numbers:
                self._numbers[id(linear)] = len(self._sites)
                self._sites.append(HostSite.of(linear, linear.site))
            return linear

        for layer in layers:
            layer.adapted(note)
        self.pool: AdapterPool | None = None
        """What `allocate` has made."""

    def read(self, name: str, folder: Path, untrusted: bool) -> UnpackedAdapter:
        """Reads the adapter in `folder`. Raises AdapterError, also for what requests cannot have for themselves."""
        read = self._reader.read(folder, untrusted)
        if names := unplaced(read.adapter.changes, [each.site for each in self._sites]):
            raise AdapterError(
                f"adapter `{name}` changes {_listed(names)}, for which requests have no factors of their own: merge it "
                "into the weights with --merge-adapter"
            )
        return read

    def pack(self, read: UnpackedAdapter) -> HostAdapter:
        """Brings what this rank needs of an adapter into memory from which the device copies. Raises AdapterError, and
        errors of the allocator.
        """
        if self._device.type == "cuda":
            # Threads begin with the first device, on which a rank must not take memory.
            torch.cuda.set_device(self._device)
        changes = read.adapter.changes
        rank = max(map(highest_rank, changes.values()), default=0)
        pages = max(1, -(-rank // RANK_UNITS))
        changed = {
            number: made
            for number, each in enumerate(self._sites)
            if (made := low_rank_pages(read.checkpoint, each.site, changes, RANK_UNITS)) is not None
        }
        for number, made in changed.items():
            if not (bool(made.a.isfinite().all()) and bool(made.b.isfinite().all())):
                raise AdapterError(
                    f"{read.adapter.path}: the factors of `{self._sites[number].site.modules[0]}` are beyond the range "
                    f"of {str(made.a.dtype).removeprefix('torch.')}, in which they are computed"
                )
        factors = HostFactors.of(self._sites, changed, pages, self._device)
        return HostAdapter(read.generation, rank, any(map(_is_by_output, changes.values())), factors)

    def room(self, pages: int, adapters: Sequence[HostAdapter], later: bool) -> AdapterRoom:
        """Returns the room for so many pages: for what these adapters change, or with `later` for any."""
        if later:
            return AdapterRoom.for_all(self._sites, pages)
        return AdapterRoom.for_these(self._sites, pages, [each.factors for each in adapters])

    def bytes_of(self, room: AdapterRoom) -> int:
        """Returns the bytes that `allocate` takes."""
        return room.num_bytes(self._sites, self._reader.dtype)

    def allocate(self, room: AdapterRoom) -> AdapterPool:
        """Allocates memory for adapters on the device, and makes the layers that read it. Raises the allocator's own
        errors.
        """
        memory = AdapterMemory(self._sites, room, self._reader.dtype, self._device)
        self.pool = AdapterPool(self._layers, memory, self._numbers)
        return self.pool


def _is_by_output(change: Change) -> bool:
    return isinstance(change, Delta) and (change.magnitude is not None or change.bias is not None)


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(f"`{name}`" for name in names[:3])
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} others"
