"""The host memory that this process may use: that of the machine, within the limits of its control groups."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_ROOT = Path("/")


def total_host_memory(root: Path = _ROOT) -> int:
    """Returns the most bytes that this process may use. `root` is the folder of `proc` and `sys`."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min([total, *(group.limit for group in _control_groups(root))])


def available_host_memory(root: Path = _ROOT) -> int:
    """Returns the bytes that this process can still use. The page cache counts as free: the kernel gives it up when
    programs need memory, and after a download it is as large as the weights.
    """
    available = _fields(root / "proc/meminfo").get("MemAvailable:", 0) * 1024
    if not available:
        available = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return max(0, min([available, *(group.limit - group.used for group in _control_groups(root))]))


@dataclass(frozen=True)
class _ControlGroup:
    """A group of processes with a common limit, in bytes."""

    limit: int
    used: int
    """Used memory without the page cache."""


@dataclass(frozen=True)
class _Version:
    """The file names of a version of control groups, and the names of the page cache in `memory.stat`. All numbers
    include the groups below a group.
    """

    limit: str
    used: str
    of_files: tuple[str, ...]


_FIRST = _Version("memory.limit_in_bytes", "memory.usage_in_bytes", ("total_inactive_file", "total_active_file"))
_SECOND = _Version("memory.max", "memory.current", ("inactive_file", "active_file"))


def _control_groups(root: Path) -> Iterator[_ControlGroup]:
    """Yields the groups with a limit: the process's own and all above it, each of which applies.

    A container sees its group as the root, or sees the host's path of the group, which does not exist in it; then the
    root is its group too.
    """
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            version, mount = _FIRST, root / "sys/fs/cgroup/memory"
        elif not controllers:
            version, mount = _SECOND, root / "sys/fs/cgroup"
        else:
            continue
        own = mount / path.lstrip("/")
        for folder in (own, *own.parents):
            if folder.is_relative_to(mount) and (group := _group_of(folder, version)) is not None:
                yield group


def _group_of(folder: Path, version: _Version) -> _ControlGroup | None:
    """Reads a control group. None: the folder does not exist, or the group has no limit."""
    limit, used = _number(folder / version.limit), _number(folder / version.used)
    if limit is None or used is None:
        return None
    fields = _fields(folder / "memory.stat")
    return _ControlGroup(limit, used - sum(fields.get(name, 0) for name in version.of_files))


def _number(path: Path) -> int | None:
    """Reads a number. None: the file does not exist, or holds `max`."""
    text = "".join(_lines(path)).strip()
    return int(text) if text.isdigit() else None


def _fields(path: Path) -> dict[str, int]:
    """Reads lines with a name, a number, and maybe a unit."""
    words = [line.split() for line in _lines(path)]
    return {each[0]: int(each[1]) for each in words if len(each) > 1 and each[1].isdigit()}


def _lines(path: Path) -> list[str]:
    """Reads the lines of a file; an unreadable file, which other systems lack, has none."""
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
