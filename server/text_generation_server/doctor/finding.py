"""One line of the report."""

from dataclasses import dataclass
from typing import Literal

Status = Literal["plan", "ok", "warning", "error"]
"""`plan` says what a start would do; `warning` would not keep it from working; `error` would."""


@dataclass(frozen=True)
class Finding:
    """`remedy`: what to run or change, for warnings and errors."""

    subject: str
    status: Status
    text: str
    remedy: str | None = None
