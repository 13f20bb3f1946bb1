"""The adapters that requests of a model may use: reading their files into host memory."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from text_generation_kernels import RANK_UNITS

from ..adapters import (
    Adapter,
    BaseModel,
    Change,
    Delta,
    ExpertDeltas,
    ModelTensors,
    Replaced,
    TokenRows,
    highest_rank,
    read_adapter,
)
from ..adapters.threads import give_way
from ..config.model import ModelConfig
from ..distributed import TensorParallelGroup
from ..errors import AdapterError
from ..layers.weights import (
    AdapterRoom,
    Checkpoint,
    EmbeddingChange,
    ExpertShard,
    ExpertSite,
    HostFactors,
    LowRankPages,
    NewNorm,
    NewRows,
    changed_of,
    low_rank_pages,
    rows_change,
)
from ..weights import SafetensorsSource
from .adapter_parts import AdaptableParts, Parts
from .adapter_pool import AdapterPool, HostAdapter


@dataclass(frozen=True)
class UnpackedAdapter:
    """An adapter whose files were read, with the checkpoint that it is for."""

    adapter: Adapter
    checkpoint: Checkpoint
    changes: Mapping[str, Change]
    """As parts of the model take them."""

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
        config, cpu = self.config, torch.device("cpu")
        files = SafetensorsSource(self.folder, self.dtype, cpu, clock=lambda: 0.0, twins=config.names.others)
        base = BaseModel(files, ModelTensors.of(config.decoder, config.names, files))
        adapter = read_adapter(folder, base, allow_pickle=not untrusted)
        checkpoint = Checkpoint.of(files, config.decoder, config.names, self.group, config.schemes)
        return UnpackedAdapter(adapter, checkpoint, _served(adapter.changes, checkpoint))


class ModelAdapters:
    """What a model knows of adapters. Threads may read and pack adapters beside the engine thread, which calls
    `allocate`.
    """

    def __init__(self, reader: AdapterReader, parts: Parts, device: torch.device) -> None:
        self._reader = reader
        self._parts = AdaptableParts(parts)
        self._device = device
        self.pool: AdapterPool | None = None
        """What `allocate` has made."""

    def read(self, name: str, folder: Path, untrusted: bool) -> UnpackedAdapter:
        """Reads the adapter in `folder`. Raises AdapterError, also for what requests cannot have for themselves."""
        read = self._reader.read(folder, untrusted)
        if names := sorted(read.changes.keys() - self._placed(read)):
            raise AdapterError(
                f"adapter `{name}` changes {_listed(names)}, which requests cannot have for themselves: merge it into "
                "the weights with --merge-adapter"
            )
        return read

    def pack(self, read: UnpackedAdapter) -> HostAdapter:
        """Brings what this rank needs of an adapter into memory from which the device copies. Raises AdapterError, and
        errors of the allocator.
        """
        if self._device.type == "cuda":
            # Threads begin with the first device, on which a rank must not take memory.
            torch.cuda.set_device(self._device)
        parts, changes, checkpoint = self._parts, read.changes, read.checkpoint
        give_way()
        pages = max(1, -(-_units(changes, checkpoint) // RANK_UNITS))
        changed = {
            number: made
            for number, each in enumerate(parts.sites)
            if (made := low_rank_pages(checkpoint, each.site, changes, each.bias)) is not None
        }
        for number, made in changed.items():
            _check_finite(read.adapter.path, parts.sites[number].site.modules[0], made)
        give_way()
        embedding = EmbeddingChange.of(checkpoint, parts.embedding_weights, changes)
        factors = HostFactors.of(parts.sites, changed, pages, self._device)
        return HostAdapter(
            read.generation,
            max(map(highest_rank, changes.values()), default=0),
            any(_is_by_output(name, each) for name, each in changes.items()),
            factors,
            None if embedding is None else embedding.pinned(self._device),
            self._head_rows(read),
            {
                number: made
                for number, each in enumerate(parts.norms)
                if (made := NewNorm.of(each, changes)) is not None
            },
            {
                number: made.pinned(self._device)
                for number, each in enumerate(parts.experts_of)
                if (made := _from(each, checkpoint).of(changes)) is not None
            },
        )

    def room(self, pages: int, adapters: Sequence[HostAdapter], later: bool) -> AdapterRoom:
        """Returns the room of linear layers: for what these adapters change, or with `later` for any in a layer."""
        return AdapterRoom.of(self._parts.sites, pages, [each.factors for each in adapters], later)

    def bytes_of(self, room: AdapterRoom) -> int:
        """Returns the bytes that `allocate` takes for linear layers."""
        return room.num_bytes(self._parts.sites, self._reader.dtype)

    def allocate(self, room: AdapterRoom, adapters: Sequence[HostAdapter]) -> AdapterPool:
        """Allocates memory for adapters on the device, and makes the layers that read it. Embeddings, heads and norms
        are there of `adapters` alone. Raises the allocator's own errors.
        """
        self.pool = AdapterPool(self._parts, room, adapters, self._reader.dtype, self._device)
        return self.pool

    def _placed(self, read: UnpackedAdapter) -> set[str]:
        """Returns the changed tensors that parts of the model take."""
        parts, changes = self._parts, read.changes
        placed: set[str] = set()
        for each in parts.sites:
            placed |= changed_of(each.site, changes, each.has_bias)
        for each in parts.norms:
            placed |= NewNorm.names_of(each, changes)
        for each in parts.experts_of:
            placed |= each.names_of(changes)
        if parts.embedding_weights.module:
            placed.add(f"{parts.embedding_weights.module}.weight")
        if (head := parts.head_module) and rows_change(changes, f"{head}.weight") is not None:
            placed.add(f"{head}.weight")
        return placed

    def _head_rows(self, read: UnpackedAdapter) -> NewRows | None:
        if not (head := self._parts.head_module):
            return None
        change = rows_change(read.changes, f"{head}.weight")
        return NewRows.of(change, self._parts.head_span, read.checkpoint.source.empty((0,)))


def _served(changes: Mapping[str, Change], checkpoint: Checkpoint) -> dict[str, Change]:
    """Returns changes as parts of the model take them: a change of a matrix that the adapter has trained whole is a new
    matrix, new rows of an embedding that is the head too are rows of both, and experts whose matrices of one kind lie
    in one tensor have changes of their own.
    """
    found = dict(changes)
    for name, change in changes.items():
        if checkpoint.names.experts_apart and isinstance(change, ExpertDeltas):
            del found[name]
            module = name.removesuffix(".weight")
            found |= {f"{module}.{number}.weight": each for number, each in enumerate(change.experts)}
        elif isinstance(change, Delta) and change.base is not None:
            found[name] = Replaced(change.merged(change.base.float()))
    head, embedding = checkpoint.head, checkpoint.outside(checkpoint.names.embedding)
    rows = found.get(f"{embedding}.weight")
    if checkpoint.spec.head.tied and isinstance(rows, TokenRows):
        found.setdefault(f"{head}.weight", rows)
    return found


def _from(site: ExpertSite, checkpoint: Checkpoint) -> ExpertSite:
    """Returns the same experts of this rank, read from another place."""
    return ExpertSite(replace(site.shard, checkpoint=checkpoint))


def _units(changes: Mapping[str, Change], checkpoint: Checkpoint) -> int:
    """Returns the rank units that an adapter needs in its largest layer."""
    found = ((index, layer.moe) for index, layer in enumerate(checkpoint.spec.layers) if layer.moe is not None)
    # Those of all ranks, so that pages are the same on each.
    shards = (replace(ExpertShard.of(checkpoint, *each), experts=range(each[1].experts)) for each in found)
    experts = (ExpertSite(shard).units(changes) for shard in shards)
    ranks = (highest_rank(each) for each in changes.values())
    return max((*experts, *ranks), default=0)


def _is_by_output(name: str, change: Change) -> bool:
    if isinstance(change, Replaced):
        return name.endswith(".bias")
    return isinstance(change, Delta) and (change.magnitude is not None or change.bias is not None)


def _check_finite(path: Path, module: str, made: LowRankPages) -> None:
    """Checks what was read as another type: the reader has checked what the file has."""
    if not all(bool(torch.stack(torch.aminmax(each)).isfinite().all()) for each in made.converted if each.numel()):
        dtype = str(made.converted[0].dtype).removeprefix("torch.")
        raise AdapterError(
            f"{path}: the factors of `{module}` are beyond the range of {dtype}, in which they are computed"
        )


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(f"`{name}`" for name in names[:3])
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} others"
