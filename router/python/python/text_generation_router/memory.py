"""Settings of the C library's allocator for memory that was freed."""

from __future__ import annotations

import ctypes

# Parameters of mallopt(3).
M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3
THRESHOLD = 128 * 1024


def give_memory_back() -> None:
    """Have large blocks returned to the system when they are freed, for the whole process and from now on.

    glibc maps large blocks on their own and unmaps them when they are freed. But it raises its idea of "large" with
    each of them, up to 32 MiB, and keeps the smaller ones. That is for what Python and C libraries allocate: the
    router's own memory is mimalloc's. Other C libraries have no such function and need none.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, THRESHOLD)
        mallopt(M_TRIM_THRESHOLD, THRESHOLD)
