"""How much of the host's memory a process may use: limits of containers and services, with files in memory as free."""

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from text_generation_server.config.host_memory import available_host_memory, total_host_memory

GIB = 2**30
MACHINE = 60
"""GiB that the machine has available."""


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without control groups."""
    sizes = {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 64 * GIB // 4096, "SC_AVPHYS_PAGES": 50 * GIB // 4096}
    monkeypatch.setattr(os, "sysconf", sizes.__getitem__)
    write(tmp_path / "proc/meminfo", f"MemTotal: {64 * GIB // 1024} kB\nMemAvailable: {MACHINE * GIB // 1024} kB\n")
    return tmp_path


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def first(root: Path, group: str, limit: int, used: int, files: Mapping[str, int]) -> None:
    """A group of the first version, in GiB."""
    folder = root / "sys/fs/cgroup/memory" / group
    write(folder / "memory.limit_in_bytes", f"{limit * GIB}\n")
    write(folder / "memory.usage_in_bytes", f"{used * GIB}\n")
    write(folder / "memory.stat", "".join(f"total_{name} {size * GIB}\n" for name, size in files.items()))


def second(root: Path, group: str, limit: int | None, used: int, files: Mapping[str, int]) -> None:
    """A group of the second version, in GiB."""
    folder = root / "sys/fs/cgroup" / group
    write(folder / "memory.max", "max\n" if limit is None else f"{limit * GIB}\n")
    write(folder / "memory.current", f"{used * GIB}\n")
    write(folder / "memory.stat", "".join(f"{name} {size * GIB}\n" for name, size in files.items()))


def expect(root: Path, total: int, available: int) -> None:
    assert (total_host_memory(root) / GIB, available_host_memory(root) / GIB) == (total, available)


def test_a_machine_without_limits(root: Path) -> None:
    expect(root, 64, MACHINE)
    (root / "proc/meminfo").unlink()
    expect(root, 64, 50)


def test_what_the_kernel_keeps_of_files_is_free(root: Path) -> None:
    """A checkpoint that was just downloaded is in memory, and counts as used by its control group."""
    write(root / "proc/self/cgroup", "0::/\n")
    second(root, "", 20, 12, {"anon": 1, "inactive_file": 8, "active_file": 2, "shmem": 1})
    expect(root, 20, 18)


def test_groups_above_limit_as_well(root: Path) -> None:
    write(root / "proc/self/cgroup", "0::/machine.slice/server.service\n")
    second(root, "machine.slice/server.service", None, 3, {})
    second(root, "machine.slice", 30, 25, {"inactive_file": 1})
    expect(root, 30, 6)
    second(root, "machine.slice/server.service", 10, 3, {"active_file": 1})
    expect(root, 10, 6)
    second(root, "machine.slice/server.service", 4, 3, {"active_file": 1})
    expect(root, 4, 2)


def test_the_first_version(root: Path) -> None:
    write(root / "proc/self/cgroup", "9:name=systemd:/\n4:memory:/jobs/7\n3:cpuset:/\n0::/\n")
    first(root, "", 2**33, 40, {})
    first(root, "jobs/7", 24, 20, {"inactive_file": 9, "active_file": 4})
    expect(root, 24, 17)


@pytest.mark.parametrize("version", [1, 2])
def test_a_container_that_sees_the_path_of_its_host(root: Path, version: int) -> None:
    if version == 1:
        write(root / "proc/self/cgroup", "5:cpu,memory:/docker/af01\n")
        first(root, "", 8, 6, {"inactive_file": 3})
    else:
        write(root / "proc/self/cgroup", "0::/docker/af01\n")
        second(root, "", 8, 6, {"inactive_file": 3})
    expect(root, 8, 5)


def test_a_group_that_is_over_its_limit_has_nothing_left(root: Path) -> None:
    write(root / "proc/self/cgroup", "0::/\n")
    second(root, "", 8, 9, {"inactive_file": 0})
    expect(root, 8, 0)
