"""Messages of the parent process on standard input: that a shard on standby is to start, and, by its end, that the
parent is gone.
"""

import os
import threading
from collections.abc import Callable

_READ_BYTES = 4096


def start_is_due(descriptor: int = 0) -> bool:
    """Waits until the parent writes a byte. False where it is gone instead."""
    try:
        return bool(os.read(descriptor, 1))
    except OSError:
        return False


def watch_parent(on_end: Callable[[], None], descriptor: int = 0) -> threading.Thread:
    """Calls `on_end` on a thread of its own once `descriptor` reads end-of-file. What it holds is thrown away."""

    def watch() -> None:
        try:
            while os.read(descriptor, _READ_BYTES):
                pass
        except OSError:
            # A closed or broken standard input says the same.
            pass
        on_end()

    thread = threading.Thread(target=watch, name="parent-watch", daemon=True)
    thread.start()
    return thread
