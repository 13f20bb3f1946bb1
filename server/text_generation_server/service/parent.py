"""Messages of the parent process on standard input: a byte starts a shard on standby, and end-of-file says that the
parent is gone.
"""

import os
import threading
from collections.abc import Callable

_READ_BYTES = 4096


def start_is_due(descriptor: int = 0) -> bool:
    """Waits until the parent writes a byte. Returns False where the parent is gone instead."""
    try:
        return bool(os.read(descriptor, 1))
    except OSError:
        return False


def watch_parent(on_end: Callable[[], None], descriptor: int = 0) -> threading.Thread:
    """Calls `on_end` on another thread once `descriptor` reads end-of-file. It discards all other input."""

    def watch() -> None:
        try:
            while os.read(descriptor, _READ_BYTES):
                pass
        except OSError:
            # A closed or broken standard input means the same.
            pass
        on_end()

    thread = threading.Thread(target=watch, name="parent-watch", daemon=True)
    thread.start()
    return thread
