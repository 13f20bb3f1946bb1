"""The adapters in host memory, by generation. Threads load adapters beside the engine thread, which reads them."""

import logging
import threading

import torch

from ..config.adapters import parse_source
from ..config.server import HubConfig
from ..errors import AdapterChanged, AdapterError, OutOfMemory
from ..hub_adapters import find_adapter
from ..models.adapter_pool import HostAdapter
from ..models.adapters import ModelAdapters
from .adapter_requests import AdapterLoaded, AdapterSource
from .memory import is_out_of_memory

logger = logging.getLogger(__name__)

WITHOUT_ADAPTERS = (
    "its weights are random (--load-format dummy), have an adapter merged into them (--merge-adapter), or are computed "
    "by code of transformers, tokens of its images pass matrices of their own, or it is a classifier"
)
"""Why requests of a model can have no adapters."""
_MOST_ROW_BYTES = 8 << 30
"""Of whole embeddings and heads of all adapters on one rank."""


class AdapterStore:
    """Loads adapters for a model. Any thread may use it."""

    def __init__(self, model: ModelAdapters | None = None, hub: HubConfig | None = None) -> None:
        """`model` is None where requests can have no adapters."""
        self._model = model
        self._hub = hub or HubConfig()
        self._lock = threading.Lock()
        self._adapters: dict[int, HostAdapter] = {}

    def load(self, source: AdapterSource) -> AdapterLoaded:
        """Reads, checks and packs an adapter; one that is here with the same contents stays as it is.

        Raises `AdapterError`, `AdapterNotFound`, `AdapterChanged`, `OutOfMemory`, or `ModelFilesError` where the files
        of the model are gone. None of them changes anything.
        """
        if self._model is None:
            raise AdapterError(f"adapter `{source.name}` cannot be served beside this model: {WITHOUT_ADAPTERS}")
        try:
            with torch.inference_mode():
                return self._load(self._model, source)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            raise OutOfMemory(
                f"host memory does not suffice for adapter `{source.name}`: unload others first"
            ) from error

    def _load(self, model: ModelAdapters, source: AdapterSource) -> AdapterLoaded:
        found = find_adapter(parse_source(source.name, source.source), self._hub)
        read = model.read(source.name, found.folder, source.untrusted)
        if source.generation not in (0, read.generation):
            raise AdapterChanged(
                f"{found.folder} has other contents than adapter `{source.name}` had: put new versions of an adapter "
                "into a folder of their own"
            )
        adapter = self.get(read.generation)
        if adapter is None:
            packed = model.pack(read)
            self._check_room(model, source, packed)
            with self._lock:
                adapter = self._adapters.setdefault(read.generation, packed)
            logger.info(
                "adapter is read",
                extra={"adapter": source.name, "digest": read.adapter.digest, "tensors": len(read.adapter.changes)},
            )
        return AdapterLoaded(adapter.generation, adapter.rank, adapter.pages, adapter.num_bytes)

    def _check_room(self, model: ModelAdapters, source: AdapterSource, adapter: HostAdapter) -> None:
        """Raises AdapterError for an adapter that changes what has no room on the device."""
        if model.pool is not None and not model.pool.has_room(adapter):
            raise AdapterError(
                f"adapter `{source.name}` changes parts of the model, as embedding, head or norms, that have room for "
                "adapters of the start alone: name it with --lora-adapters"
            )
        if adapter.row_bytes and (total := sum(each.row_bytes for each in (*self.all(), adapter))) > _MOST_ROW_BYTES:
            raise AdapterError(
                f"adapters replace {total / 2**30:.1f} GiB of embeddings and heads on a rank, and at most "
                f"{_MOST_ROW_BYTES >> 30} GiB are kept beside the model's own: serve fewer of them, or merge one into "
                "the weights with --merge-adapter"
            )

    def unload(self, generation: int) -> None:
        """Drops an adapter, if it is here."""
        with self._lock:
            self._adapters.pop(generation, None)

    def get(self, generation: int) -> HostAdapter | None:
        """Returns an adapter, if it is here."""
        with self._lock:
            return self._adapters.get(generation)

    def all(self) -> list[HostAdapter]:
        """Returns all adapters that are here."""
        with self._lock:
            return list(self._adapters.values())
