"""Finds the folders of adapters: local ones, those in the cache, or downloads from the hub or an object store."""

import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from .config.adapters import AskedAdapter, FoundAdapter
from .config.object_url import is_object_url
from .config.server import HubConfig
from .errors import AdapterNotFound, ModelFilesError
from .hub import ModelSource, if_cached, is_hub_name, retried, snapshot
from .object_store import ObjectPlace

logger = logging.getLogger(__name__)

_FILES = ("adapter_config.json", "adapter_model.safetensors", "adapter_model.bin")


def find_adapter(asked: AskedAdapter, hub: HubConfig) -> FoundAdapter:
    """Returns the adapter with its folder on this machine. Raises `AdapterNotFound`."""
    return FoundAdapter(asked.name, asked.source, _found(asked, hub))


def prepare_adapters(
    asked: Sequence[AskedAdapter], hub: HubConfig, pause: Callable[[float], None] = time.sleep
) -> list[FoundAdapter]:
    """Downloads the adapters that are neither folders nor in the hub's cache. Raises `AdapterNotFound` for a name that
    neither can be, and `ModelFilesError` where a download fails.
    """
    return [FoundAdapter(each.name, each.source, _prepared(each, hub, pause)) for each in asked]


def _found(asked: AskedAdapter, hub: HubConfig) -> Path:
    folder = _local(asked) or if_cached(lambda: _snapshot(asked, hub, True))
    if folder is None:
        raise AdapterNotFound(
            f"adapter {asked.source} is neither a folder nor in the hub cache; the launcher downloads those of "
            f"{asked.flag}, as does `text-generation-server download-weights` with the same flag"
        )
    return folder


def _prepared(asked: AskedAdapter, hub: HubConfig, pause: Callable[[float], None]) -> Path:
    if (folder := _local(asked)) is not None:
        return folder
    place = "in the object store" if is_object_url(asked.source) else "on the hub"
    logger.info("looking for an adapter %s", place, extra={"adapter": asked.source, "revision": asked.revision})
    return retried(lambda: _snapshot(asked, hub, False), _source(asked), hub, pause)


def _local(asked: AskedAdapter) -> Path | None:
    """Returns a folder of this name. Raises `AdapterNotFound` for a name that neither the hub nor a store has."""
    if is_object_url(asked.source):
        try:
            ObjectPlace.of(asked.source)
        except ModelFilesError as error:
            raise AdapterNotFound(f"adapter {error}") from error
        return None
    folder = Path(asked.source).expanduser()
    if folder.is_dir():
        return folder.resolve()
    if folder.exists() or not is_hub_name(asked.source):
        raise AdapterNotFound(
            f"adapter {asked.source} is no folder on this machine, and no name on the hub: name a folder that PEFT has "
            "saved, an id such as org/name, or s3://bucket/prefix"
        )
    return None


def _snapshot(asked: AskedAdapter, hub: HubConfig, local_only: bool) -> Path:
    return snapshot(_source(asked), hub, list(_FILES), ["*/*"], local_only)


def _source(asked: AskedAdapter) -> ModelSource:
    return ModelSource(asked.source, asked.revision, flag=asked.flag, revision_flag=asked.flag)
