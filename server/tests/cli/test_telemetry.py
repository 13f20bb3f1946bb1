"""The form of log records."""

import io
import json
import logging
import re
from collections.abc import Iterator

import pytest

from text_generation_server.telemetry import TRACE, configure_logging


@pytest.fixture(autouse=True)
def restore_logging() -> Iterator[None]:
    root, own = logging.getLogger(), logging.getLogger("text_generation_server")
    before = root.handlers[:], root.level, own.level
    yield
    root.handlers[:] = before[0]
    root.setLevel(before[1])
    own.setLevel(before[2])


def log(level: str, json_output: bool) -> str:
    stream = io.StringIO()
    configure_logging(level, json_output, stream)
    logger = logging.getLogger("text_generation_server.test")
    for number in (TRACE, logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR, logging.CRITICAL):
        logger.log(number, "count is %d", number, extra={"slots": 7})
    logging.getLogger("library").info("chatter")
    return stream.getvalue()


def test_json_records_have_the_keys_and_levels_of_the_contract() -> None:
    records = [json.loads(line) for line in log("TRACE", True).splitlines()]
    own = [record for record in records if record["target"] == "text_generation_server.test"]
    assert [record["level"] for record in own] == ["TRACE", "DEBUG", "INFO", "WARN", "ERROR", "ERROR"]
    assert own[2]["message"] == "count is 20"
    assert own[2]["slots"] == 7
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", own[2]["timestamp"])


def test_the_level_holds_and_libraries_are_kept_to_warnings() -> None:
    assert [json.loads(line)["level"] for line in log("INFO", True).splitlines()] == ["INFO", "WARN", "ERROR", "ERROR"]


def test_a_traceback_stays_on_one_line() -> None:
    stream = io.StringIO()
    configure_logging("INFO", True, stream)
    try:
        raise ValueError("broken")
    except ValueError:
        logging.getLogger("text_generation_server").exception("failed")
    (line,) = stream.getvalue().splitlines()
    assert "ValueError: broken" in json.loads(line)["exception"]


def test_text_for_people() -> None:
    line = log("INFO", False).splitlines()[0]
    assert line.endswith(" INFO text_generation_server.test: count is 20 slots=7")
