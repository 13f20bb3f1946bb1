"""The host's memory, as far as this process may use it: the machine's, within the limits of its control groups."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_ROOT = Path("/")


def total_host_memory(root: Path = _ROOT) -> int:
    """Bytes that this process may use at most. `root`: where `proc` and `sys` are."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min([total, *(group.limit for group in _control_groups(root))])


def available_host_memory(root: Path = _ROOT) -> int:
    """Bytes that this process can still use. What the kernel keeps of files counts as free: it gives that up when
    programs need memory, and after a download it is as much as the weights.
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
    """Without what the kernel keeps of files."""


@dataclass(frozen=True)
class _Version:
    """How a version of control groups calls its files, and what the kernel keeps of files in `memory.stat`. All numbers
    are those of a group together with the groups below it.
    """

    limit: str
    used: str
    of_files: tuple[str, ...]


_FIRST = _Version("memory.limit_in_bytes", "memory.usage_in_bytes", ("total_inactive_file", "total_active_file"))
_SECOND = _Version("memory.max", "memory.current", ("inactive_file", "active_file"))


def _control_groups(root: Path) -> Iterator[_ControlGroup]:
    """Those with a limit: the process's own and all above it, as each of them holds.

    A container sees its group as the root, or sees the host's path of it though that leads nowhere; then the root is
    its group as well.
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
    """None where there is no such folder, or no limit."""
    limit, used = _number(folder / version.limit), _number(folder / version.used)
    if limit is None or used is None:
        return None
    fields = _fields(folder / "memory.stat")
    return _ControlGroup(limit, used - sum(fields.get(name, 0) for name in version.of_files))


def _number(path: Path) -> int | None:
    """None for a file that is not there, and for `max`."""
    text = "".join(_lines(path)).strip()
    return int(text) if text.isdigit() else None


def _fields(path: Path) -> dict[str, int]:
    """Lines with a name, a number, and maybe a unit."""
    words = [line.split() for line in _lines(path)]
    return {each[0]: int(each[1]) for each in words if len(each) > 1 and each[1].isdigit()}


def _lines(path: Path) -> list[str]:
    """None at all where the file cannot be read: other systems do not have it."""
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
