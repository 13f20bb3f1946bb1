"""What the documentation says of the client of this environment."""

from __future__ import annotations

import os
import re
from pathlib import Path

CLIENT = os.environ["TEXT_GENERATION_CLIENT"]
PAGE = (Path(__file__).parents[2] / "docs" / "clients.md").read_text()


def test_the_version():
    requirements = (Path(__file__).parent / CLIENT / "requirements.txt").read_text()
    version = re.search(r"^\S+==(\S+)$", requirements, re.MULTILINE)[1]
    (row,) = re.findall(rf"^\| \[.*\(#{CLIENT.partition('-')[0]}\).*$", PAGE, re.MULTILINE)
    assert version in row


def test_the_example(api, answer, capsys):
    code = re.search(rf"^## {CLIENT.partition('-')[0]}\n.*?^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)[1]
    code = code.replace("http://127.0.0.1:3000", api.url).replace('secret"', f'{api.key}"')
    exec(compile(code, "clients.md", "exec"), {})
    assert answer in capsys.readouterr().out
