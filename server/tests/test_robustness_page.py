"""`docs/robustness.md` names tests that exist."""

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "robustness.md"


def test_every_test_of_the_page_is_there() -> None:
    named = re.findall(r"\[`(\w+)`\]\(([^)]+)\)", PAGE.read_text())
    assert len(named) >= 42
    for name, path in named:
        assert re.search(rf"^ *(async )?(fn|def) {name}\(", (PAGE.parent / path).read_text(), re.MULTILINE), name
