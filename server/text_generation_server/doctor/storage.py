"""Folders that a start writes to."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from ..config.server import HubConfig, triton_cache
from .finding import Finding

_SUBJECT = "storage"
_GIB = 2**30
_LITTLE = 2 * _GIB
"""Free bytes below which a download or compiled kernels would soon fill the disk."""


def hub_cache(hub: HubConfig) -> Path:
    """Where downloads go."""
    from huggingface_hub import constants

    return hub.cache_dir or Path(constants.HF_HUB_CACHE)


def storage_findings(hub: HubConfig) -> Iterator[Finding]:
    """Whether the caches can be written to, and how much room they have."""
    yield from folder_findings("downloads", hub_cache(hub), "HF_HOME or --huggingface-hub-cache")
    yield from folder_findings("compiled kernels", triton_cache(), "TRITON_CACHE_DIR")


def folder_findings(purpose: str, folder: Path, variable: str) -> Iterator[Finding]:
    """Judges a folder that need not exist yet. `variable` says where another one is named."""
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    if not _is_writable(existing):
        yield Finding(
            _SUBJECT,
            "error",
            f"{folder}, for {purpose}, cannot be written to",
            f"chown -R {os.getuid()} {existing}, or name another folder with {variable}",
        )
        return
    free = shutil.disk_usage(existing).free
    text = f"{folder}, for {purpose}, has {free / _GIB:.1f} GiB free"
    if free < _LITTLE:
        yield Finding(_SUBJECT, "warning", text, f"make room, or name another folder with {variable}")
    else:
        yield Finding(_SUBJECT, "ok", text)


def _is_writable(folder: Path) -> bool:
    """Tried, because permissions do not tell of a file system that is mounted read-only."""
    if not folder.is_dir():
        return False
    try:
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False
