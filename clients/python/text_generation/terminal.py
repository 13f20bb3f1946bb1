"""Standard streams as a command needs them: any text can be written, nobody need read it to the end, paths are read."""

from __future__ import annotations

import codecs
import io
import os
import shlex
import signal
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO
from urllib.parse import urlsplit
from urllib.request import url2pathname

EXIT_STATUS = 1
"""Of a command whose output nobody reads any more."""


@contextmanager
def prepared() -> Generator[None, None, None]:
    """Run a command in this block. If nobody reads its output any more, it ends without a word, as on Ctrl-C.

    Raises:
        SystemExit: Standard output or standard error was closed by its reader, or Ctrl-C was pressed.
    """
    _open_closed()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # What the terminal cannot show is a question mark.
            stream.reconfigure(errors="replace")
    if _reads_ascii(stdin := sys.stdin) and isinstance(stdin, io.TextIOWrapper):
        stdin.reconfigure(encoding="utf-8", errors="replace")
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        _drop_output()
        raise SystemExit(EXIT_STATUS) from None
    except KeyboardInterrupt:
        raise SystemExit(128 + signal.SIGINT) from None


def typed_path(text: str) -> Path:
    """The path that somebody typed, or dragged to the terminal, which quotes it, escapes it, or makes a URL of it."""
    try:
        if text.startswith("file://"):
            return Path(url2pathname(urlsplit(text).path))
        words = [text] if os.path.exists(text) else shlex.split(text)
    except ValueError:
        words = [text]
    return Path(os.path.expanduser(words[0] if len(words) == 1 else text))


def dragged_file(line: str) -> Path | None:
    """The file whose path is the whole line, as dragging it to the terminal writes it; None if there is none."""
    path = typed_path(line)
    # What is typed is a message, though it be the name of a file in this folder.
    return path if path.is_absolute() and os.path.isfile(path) else None


def _open_closed() -> None:
    """Open what was closed before the command was started; such a stream is None."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115 - it stays open


def _reads_ascii(stream: TextIO) -> bool:
    """Whether all that is not ASCII would get lost; `encoding` is None for streams of tests."""
    return bool(stream.encoding) and codecs.lookup(stream.encoding).name == "ascii"


def _drop_output() -> None:
    """Send what is still to be written nowhere, or Python would complain when it ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
