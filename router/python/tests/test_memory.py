"""Memory that was needed once is given back."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

# Frees a block of 20 MiB, so that glibc takes smaller ones for small, and then all but the last of these: what is
# before a block in use cannot be cut off the end of the heap.
BURST = """
import ctypes, sys
from text_generation_router.memory import give_memory_back
if sys.argv[1] == "fixed":
    give_memory_back()
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.malloc.argtypes = [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]
libc.free(libc.malloc(20 << 20))
blocks = [libc.malloc(1 << 20) for _ in range(100)]
for block in blocks:
    ctypes.memset(block, 1, 1 << 20)
for block in blocks[:-1]:
    libc.free(block)
resident = next(line for line in open("/proc/self/status") if line.startswith("VmRSS"))
print(int(resident.split()[1]) // 1024)
"""


def resident_after_burst(how: str) -> int:
    output = subprocess.run([sys.executable, "-c", BURST, how], check=True, capture_output=True, text=True).stdout
    return int(output)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the resident memory from /proc")
def test_large_blocks_are_given_back_when_they_are_freed() -> None:
    fixed, by_default = resident_after_burst("fixed"), resident_after_burst("default")
    assert fixed < by_default - 80, (fixed, by_default)
