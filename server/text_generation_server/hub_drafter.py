"""Finds the folder of a drafter: a local one, one in the cache, or a download from the hub or an object store."""

import logging
import time
from collections.abc import Callable
from pathlib import Path

from .config.asked_drafter import AskedDrafter
from .config.drafter import FLAG
from .config.object_url import is_object_url
from .config.server import HubConfig
from .errors import ModelFilesError
from .hub import SMALL_FILES, ModelSource, if_cached, is_hub_name, retried, snapshot
from .object_store import ObjectPlace

logger = logging.getLogger(__name__)

_SAFE, _PICKLED = [*SMALL_FILES, "*.safetensors"], ["config.json", "*.bin", "medusa_lm_head.pt"]


def find_drafter(asked: AskedDrafter, hub: HubConfig) -> Path:
    """Returns the folder of the drafter on this machine. Raises `ModelFilesError`."""
    source = _source(asked)
    folder = _local(asked.source) or if_cached(lambda: _complete(source, hub, True))
    if folder is None:
        raise ModelFilesError(
            f"{FLAG} {asked.source} is neither a folder nor in the hub cache; the launcher downloads it, as does "
            "`text-generation-server download-weights` with the same flag"
        )
    return folder


def prepare_drafter(asked: AskedDrafter, hub: HubConfig, pause: Callable[[float], None] = time.sleep) -> Path:
    """Downloads a drafter that is neither a folder nor in the hub's cache, and returns its folder. Raises
    `ModelFilesError`.
    """
    if (folder := _local(asked.source)) is not None:
        return folder
    source = _source(asked)
    logger.info("looking for a drafter on the hub", extra={"drafter": asked.source, "revision": asked.revision})
    return retried(lambda: _complete(source, hub, False), source, hub, pause)


def _source(asked: AskedDrafter) -> ModelSource:
    return ModelSource(asked.source, asked.revision, flag=FLAG, revision_flag="`revision` of --speculative-config")


def _complete(source: ModelSource, hub: HubConfig, local_only: bool) -> Path:
    """Pickles are fetched where there is nothing else."""
    folder = snapshot(source, hub, _SAFE, ["*/*", "consolidated*"], local_only)
    if any(folder.glob("*.safetensors")):
        return folder
    return snapshot(source, hub, _PICKLED, ["*/*"], local_only)


def _local(name: str) -> Path | None:
    folder = Path(name).expanduser()
    if folder.is_dir():
        return folder.resolve()
    if is_object_url(name):
        ObjectPlace.of(name)
        return None
    if folder.exists() or not is_hub_name(name):
        raise ModelFilesError(
            f"{FLAG} {name} is no folder on this machine, and no name on the hub: name a folder with an EAGLE-3 head, "
            "Medusa heads or a whole model, or an id such as org/name"
        )
    return None
