"""What both fakes share: a journal that tests read, log records, and the end of standard input."""

import json
import os
import sys
import threading
from collections.abc import Callable

RANKS = ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "SHARD_GROUP"]
NAMES = [*RANKS, "API_KEY", "LOG_LEVEL", "COMPUTE_TYPE", "HF_TOKEN", "NOTIFY_SOCKET", "PROMETHEUS_PORT"]


def note(process: str, event: str) -> None:
    """Appends one line to the journal; a single write, so lines of several processes do not mix."""
    env = {name: os.environ[name] for name in NAMES if name in os.environ}
    entry = {"process": process, "event": event, "pid": os.getpid(), "argv": sys.argv[1:], "env": env}
    with open(os.environ["FAKE_JOURNAL"], "a") as journal:
        journal.write(json.dumps(entry) + "\n")


def log(level: str, message: str, **fields: object) -> None:
    record = {"timestamp": "2026-01-01T00:00:00Z", "level": level, "message": message, "target": "fake", **fields}
    print(json.dumps(record), flush=True)


def at_end_of_input(action: Callable[[], None]) -> None:
    def wait() -> None:
        # A thread inside the buffered reader would abort the interpreter at exit.
        while os.read(0, 1024):
            pass
        action()

    if "--exit-on-stdin-eof" in sys.argv:
        threading.Thread(target=wait, daemon=True).start()


def mode(variable: str) -> str:
    return os.environ.get(variable, "")


def mode_of_start(variable: str, process: str) -> str:
    """The mode of this start of `process`: of several with commas between them that in its place, or the last."""
    with open(os.environ["FAKE_JOURNAL"], "a+") as journal:
        journal.seek(0)
        # Another process may be at the last line.
        entries = [json.loads(line) for line in journal if line.endswith("\n")]
    earlier = sum(entry["process"] == process and entry["event"] == "start" for entry in entries)
    modes = mode(variable).split(",")
    return modes[min(earlier, len(modes) - 1)]


def option(name: str) -> str:
    return sys.argv[sys.argv.index(name) + 1]
