"""The router of the text-generation server: the command, and its parts for tests and simulation."""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING

from text_generation_router import _router
from text_generation_router._router import (
    ChatTemplate,
    Detokenizer,
    Plan,
    Queued,
    Running,
    Scheduler,
    SlotAllocator,
    StepCost,
    Tokenizer,
    __version__,
)
from text_generation_router.memory import give_memory_back
from text_generation_router.slow_tokenizer import convert

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import NoReturn

__all__ = [
    "ChatTemplate",
    "Detokenizer",
    "Plan",
    "Queued",
    "Running",
    "Scheduler",
    "SlotAllocator",
    "StepCost",
    "Tokenizer",
    "__version__",
    "cli",
    "main",
]


def main(argv: Sequence[str]) -> int:
    """Run the router until it is told to stop; return its exit code.

    `argv` starts with the name of the program. Blocks with the interpreter lock released, and handles SIGINT and
    SIGTERM while it runs.
    """
    return _router.main(list(argv), convert)


def cli() -> NoReturn:
    """The command `text-generation-router`."""
    # Python's own handler would raise KeyboardInterrupt after an orderly stop.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if sys.argv[1:2] == ["check"]:
        # It runs beside shards that load, and should not take their time: a tokenizer may have to be converted.
        os.nice(10)
    give_memory_back()
    sys.exit(main(sys.argv))
