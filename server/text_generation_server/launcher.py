"""End of this process with the launcher that has started it, however the launcher ends.

A serving process reads the end of its standard input. The kernel ends a process that does not read it yet, or cannot.
This module imports little, because it runs before everything else.
"""

import ctypes
import os
import signal
import sys

_PROCESS_ID = "LAUNCHER_PID"
"""The variable with the launcher's process id, which it sets for its children."""
_PR_SET_PDEATHSIG = 1


def die_with_launcher() -> None:
    """Makes the kernel kill this process when its launcher ends, and ends it at once where the launcher has ended
    already. The main thread calls it, before anything that takes time.
    """
    launcher = os.environ.get(_PROCESS_ID)
    if launcher is None or sys.platform != "linux":
        return
    _at_its_end(signal.SIGKILL)
    # A parent with another id may be a program between the two.
    if str(os.getppid()) != launcher and not _runs(launcher):
        os._exit(1)


def end_with_launcher() -> None:
    """Notes that this process reads the end of standard input from now on, so that the kernel only wakes it, in case a
    signal has stopped it. The main thread calls it.
    """
    if _PROCESS_ID in os.environ and sys.platform == "linux":
        _at_its_end(signal.SIGCONT)


def _runs(process: str) -> bool:
    """Whether a process runs; false for a zombie too."""
    try:
        with open(f"/proc/{process}/stat", encoding="utf-8", errors="replace") as stat:
            return stat.read().rpartition(")")[2].split()[0] not in "XZ"
    except OSError:
        return False


def _at_its_end(number: signal.Signals) -> None:
    """Asks the kernel for a signal at the end of the parent. Where it cannot, only standard input tells."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(number), 0, 0, 0)
