"""Folders that a start writes to."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from ..config.server import HubConfig, triton_cache
from ..hub import hub_cache
from .finding import Finding, Status

_SUBJECT = "storage"
_GIB = 2**30
_LITTLE = 2 * _GIB
"""Free bytes below which a download or compiled kernels would soon fill the disk."""


def storage_findings(hub: HubConfig, downloads: bool | None, on_gpus: bool) -> Iterator[Finding]:
    """Yields findings about the folders that a start writes to: whether they are writable, and their free space.

    `downloads` says whether a start would download a model, None if unknown; `on_gpus`, whether it compiles kernels.
    """
    if downloads is not False:
        status: Status = "warning" if downloads is None else "error"
        yield folder_finding("downloads", hub_cache(hub), "HF_HOME or --huggingface-hub-cache", status)
    if on_gpus:
        yield folder_finding("compiled kernels", triton_cache(), "TRITON_CACHE_DIR")


def folder_finding(purpose: str, folder: Path, variable: str, status: Status = "error") -> Finding:
    """Judges a folder that need not exist yet. `variable` names another one; an unwritable folder has `status`."""
    # Nothing can be seen below a folder that this user may not search.
    existing = next(path for path in (folder, *folder.parents) if os.path.exists(path))
    if not _is_writable(existing):
        text = f"{folder}, for {purpose}, cannot be written to"
        return Finding(_SUBJECT, status, text, f"{_remedy(folder, existing)}, or name another folder with {variable}")
    free = shutil.disk_usage(existing).free
    text = f"{folder}, for {purpose}, has {free / _GIB:.1f} GiB free"
    if free < _LITTLE:
        return Finding(_SUBJECT, "warning", text, f"make room, or name another folder with {variable}")
    return Finding(_SUBJECT, "ok", text)


def _remedy(folder: Path, existing: Path) -> str:
    """Returns the remedy; `existing` is the nearest parent of `folder` that exists."""
    if not os.path.isdir(existing):
        return f"remove {existing}, which is not a folder"
    if existing == folder:
        return f"chown -R {os.getuid()} {folder}"
    # Folders above it belong to others, and must stay theirs.
    return f"let an administrator make it (install -d -o {os.getuid()} {folder})"


def _is_writable(folder: Path) -> bool:
    """Finds out by trial, because permissions do not tell of a file system that is mounted read-only."""
    if not os.path.isdir(folder):
        return False
    try:
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False
