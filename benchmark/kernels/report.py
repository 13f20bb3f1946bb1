"""What the programs of this folder print: one JSON object, a row a line."""

import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch

from ..compact import dumps
from .timing import Plan, Row


def print_rows(rows: Sequence[Row], **head: object) -> None:
    """Prints `rows` behind the command and `head`."""
    program = f"{__package__}.{Path(sys.argv[0]).stem}".removesuffix(".__main__")
    command = " ".join(("python -m", program, *sys.argv[1:]))
    sys.stdout.write(dumps({"command": command} | head | {"rows": rows}))


def of_plan(plan: Plan) -> dict[str, str]:
    """On what a bar runs."""
    return {
        "device": "cpu" if plan.dry_run else torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "dtype": str(plan.dtype).removeprefix("torch."),
    }


def read_rows(paths: Iterable[Path]) -> tuple[str, list[dict[str, Any]]]:
    """The device of the first of these files, and the rows of all."""
    files = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
    return (files[0]["device"] if files else ""), [row for file in files for row in file["rows"]]
