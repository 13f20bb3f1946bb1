"""What `make` says alone: every command of the Makefile, with what it does."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_make_alone_lists_every_command() -> None:
    shown = subprocess.run(["make"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    listed = dict(re.findall(r"^  ([a-z-]+) +(.+)$", shown, re.MULTILINE))
    commands = set(re.findall(r"^\.PHONY: (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE))
    # A part of `make lint`, for no other use.
    assert set(listed) == {name for line in commands for name in line.split()} - {"lint-features"}
    assert "MODEL_ID" in listed["run"]
