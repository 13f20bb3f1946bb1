"""Signals that must not end a shard."""

import signal

_POINTLESS = ("SIGUSR1", "SIGUSR2", "SIGALRM", "SIGSTKFLT", "SIGVTALRM", "SIGPROF", "SIGIO", "SIGPWR")
"""Those for timers and for programs' own purposes: none asks for an end, and none says that the process is broken."""


def ignore_pointless(led: bool) -> None:
    """From now on these signals do nothing. `led`: a launcher decides what the end of a terminal means, not SIGHUP.

    Must be called on the main thread. Processes that are started inherit it.
    """
    numbers = [number for name in _POINTLESS if (number := getattr(signal, name, None)) is not None]
    for number in [*numbers, *range(signal.SIGRTMIN, signal.SIGRTMAX + 1)]:
        signal.signal(number, signal.SIG_IGN)
    if led:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)


def stopping() -> list[signal.Signals]:
    """Those that ask for an orderly end. The end of the terminal does not where it is ignored, as by `nohup`."""
    ends_with_terminal = signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN
    return [signal.SIGTERM, signal.SIGINT, *([signal.SIGHUP] if ends_with_terminal else [])]
