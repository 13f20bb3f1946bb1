"""Signals that must not end a shard."""

import signal

_POINTLESS = ("SIGUSR1", "SIGUSR2", "SIGALRM", "SIGSTKFLT", "SIGVTALRM", "SIGPROF", "SIGIO", "SIGPWR")
"""Signals of timers and of programs' own purposes: none asks for an end, and none means that the process is broken."""


def ignore_pointless(led: bool) -> None:
    """Ignores these signals from now on. With `led`, it ignores SIGHUP too: the launcher decides what the end of a
    terminal means. Only the main thread may call it; child processes inherit it.
    """
    numbers = [number for name in _POINTLESS if (number := getattr(signal, name, None)) is not None]
    for number in [*numbers, *range(signal.SIGRTMIN, signal.SIGRTMAX + 1)]:
        signal.signal(number, signal.SIG_IGN)
    if led:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)


def stopping() -> list[signal.Signals]:
    """Returns the signals that ask for an orderly end; SIGHUP only where it is not ignored, as `nohup` does."""
    ends_with_terminal = signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN
    return [signal.SIGTERM, signal.SIGINT, *([signal.SIGHUP] if ends_with_terminal else [])]
