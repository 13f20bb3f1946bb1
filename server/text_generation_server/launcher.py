"""How this process ends with the launcher that has started it, however that one ends.

A process that serves reads the end of its standard input then. For the time before, and where it cannot, the kernel
sees to it. Imports little: it comes before everything else.
"""

import ctypes
import os
import signal
import sys

_PROCESS_ID = "LAUNCHER_PID"
"""Of the launcher, which sets it for its children."""
_PR_SET_PDEATHSIG = 1


def die_with_launcher() -> None:
    """From now on the kernel kills this process when its launcher ends; to be called on the main thread, before anything
    that takes time. Ends the process where the launcher has ended already.
    """
    launcher = os.environ.get(_PROCESS_ID)
    if launcher is None or sys.platform != "linux":
        return
    _at_its_end(signal.SIGKILL)
    # A parent of another number may be a program between the two.
    if str(os.getppid()) != launcher and not os.path.exists(f"/proc/{launcher}"):
        os._exit(1)


def end_with_launcher() -> None:
    """From now on the end of standard input is read, and the kernel need but wake this process if something has stopped
    it; to be called on the main thread.
    """
    if _PROCESS_ID in os.environ and sys.platform == "linux":
        _at_its_end(signal.SIGCONT)


def _at_its_end(number: signal.Signals) -> None:
    """Of the parent. A kernel that cannot do it leaves it at standard input."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(number), 0, 0, 0)
