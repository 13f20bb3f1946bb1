"""What the documentation says of the client of this environment."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

CLIENT = os.environ["TEXT_GENERATION_CLIENT"]
NAME = CLIENT.partition("-")[0]
FOLDER = Path(__file__).parent / CLIENT
PAGE = (Path(__file__).parents[2] / "docs" / "clients.md").read_text()
# What runs the examples of each language; they come by standard input.
RUNNERS = {
    "python": [sys.executable, "-"],
    "javascript": ["node", "--input-type=module", "-"],
    "shell": ["bash", "-e"],
}


def versions() -> list[str]:
    """Of the client, and of the packages that make it one on Node."""
    packages = FOLDER / "package.json"
    if packages.exists():
        pins = json.loads(packages.read_text())["dependencies"]
        return [version for name, version in pins.items() if name == "ai" or name.startswith("@ai-sdk/")]
    return re.findall(r"^\S+==(\S+)$", (FOLDER / "requirements.txt").read_text(), re.MULTILINE)[:1]


def test_the_version():
    (row,) = re.findall(rf"^\| \[.*\(#{NAME}\).*$", PAGE, re.MULTILINE)
    for version in versions():
        assert version in row


def test_the_example(api, answer, tmp_path):
    section = re.search(rf"^## {NAME}\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE)[1]
    language, code = re.search(r"^```(\w+)\n(.*?)^```", section, re.DOTALL | re.MULTILINE).groups()
    code = code.replace("http://127.0.0.1:3000", api.url).replace('secret"', f'{api.key}"')
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "HOME": str(tmp_path)}
    # Node finds the packages of the environment from its folder.
    run = subprocess.run(RUNNERS[language], input=code, env=environment, cwd=sys.prefix, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert answer in run.stdout
