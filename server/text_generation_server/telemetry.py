"""Logging of the shard: one record a line on standard output, JSON or text (docs/architecture.md).

Log with the standard library and name extra facts by keyword: `logger.info("warmed up", extra={"slots": 4096})`.
Prompts, token ids and secrets never go into a record.
"""

import datetime
import json
import logging
import sys
import time
from collections.abc import Callable
from typing import Any, Literal, TextIO

TRACE = 5
LEVELS = {"TRACE": TRACE, "DEBUG": logging.DEBUG, "INFO": logging.INFO, "WARN": logging.WARNING, "ERROR": logging.ERROR}
PROGRESS_INTERVAL_S = 2.0
_STANDARD_ATTRIBUTES = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}


def _level_name(levelno: int) -> str:
    """Returns the contract's name of a level: the highest of the five that is not above `levelno`."""
    names = [name for name, number in LEVELS.items() if number <= levelno]
    return names[-1] if names else "TRACE"


def _timestamp(created: float) -> str:
    moment = datetime.datetime.fromtimestamp(created, datetime.timezone.utc)
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


def _extra(record: logging.LogRecord) -> dict[str, Any]:
    return {key: value for key, value in record.__dict__.items() if key not in _STANDARD_ATTRIBUTES}


class Progress:
    """Logs the progress of a slow part of a start every few seconds; a quick part logs nothing.

    The launcher reads the fields `phase` and `percent` and serves them to probes. One thread at a time may call it.
    """

    def __init__(
        self,
        logger: logging.Logger,
        phase: Literal["downloading", "loading", "warming up"],
        message: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._logger = logger
        self._phase = phase
        self._message = message
        self._clock = clock
        self._reported = clock()

    def report(self, done: int, total: int) -> None:
        """Notes that `done` of `total` parts are done."""
        now = self._clock()
        if now - self._reported >= PROGRESS_INTERVAL_S:
            self._reported = now
            percent = 100 * done // max(total, 1)
            self._logger.info(self._message, extra={"phase": self._phase, "percent": percent})


class JsonFormatter(logging.Formatter):
    """One JSON object a line; a traceback travels in the key `exception`, so a record never spans lines."""

    def format(self, record: logging.LogRecord) -> str:
        """Formats `record` as one line, without the line break."""
        fields: dict[str, Any] = {
            "timestamp": _timestamp(record.created),
            "level": _level_name(record.levelno),
            "message": record.getMessage(),
            "target": record.name,
            **_extra(record),
        }
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json.dumps(fields, ensure_ascii=False, default=str)


class TextFormatter(logging.Formatter):
    """Text for people: time, level, target, message, extra facts as key=value."""

    def format(self, record: logging.LogRecord) -> str:
        """Formats `record` as one line, or more with a traceback."""
        extra = "".join(f" {key}={value}" for key, value in _extra(record).items())
        line = f"{_timestamp(record.created)} {_level_name(record.levelno):>5} {record.name}: "
        line += record.getMessage() + extra
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def configure_logging(level: str, json_output: bool, stream: TextIO | None = None) -> None:
    """Sends every record at or above `level` (a key of `LEVELS`) to `stream`, standard output by default.

    Libraries are kept to warnings unless `level` is DEBUG or TRACE.
    """
    handler = logging.StreamHandler(stream or sys.stdout)
    handler.setFormatter(JsonFormatter() if json_output else TextFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    number = LEVELS[level]
    root.setLevel(number if number <= logging.DEBUG else max(number, logging.WARNING))
    logging.getLogger("text_generation_server").setLevel(number)
