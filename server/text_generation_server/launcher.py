"""End of this process with the launcher that has started it, however that one ends.

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
    """From now on the kernel kills this process when its launcher ends. Ends it where the launcher has ended already.

    To be called on the main thread, before anything that takes time.
    """
    launcher = os.environ.get(_PROCESS_ID)
    if launcher is None or sys.platform != "linux":
        return
    _at_its_end(signal.SIGKILL)
    # A parent of another number may be a program between the two.
    if str(os.getppid()) != launcher and not _runs(launcher):
        os._exit(1)


def end_with_launcher() -> None:
    """From now on this process reads the end of standard input, and the kernel only wakes it, if something has stopped
    it; to be called on the main thread.
    """
    if _PROCESS_ID in os.environ and sys.platform == "linux":
        _at_its_end(signal.SIGCONT)


def _runs(process: str) -> bool:
    """Also false for one that has ended, and whose parent has not asked for its status yet."""
    try:
        with open(f"/proc/{process}/stat", encoding="utf-8", errors="replace") as stat:
            return stat.read().rpartition(")")[2].split()[0] not in "XZ"
    except OSError:
        return False


def _at_its_end(number: signal.Signals) -> None:
    """Of the parent. A kernel that cannot do it leaves it at standard input."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(number), 0, 0, 0)
