"""Links of the documents lead to files and headings that exist, and `docs/README.md` leads to every page."""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
INDEX = ROOT / "docs" / "README.md"
PAGES = [
    *(ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")),
    *(ROOT / "clients" / "python").glob("*.md"),
    *(ROOT / "models" / "demo").glob("*.md"),
    *(ROOT / "docs").rglob("*.md"),
]


def prose(page: Path) -> str:
    """The text of a page without its blocks of code."""
    return re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)


@cache
def anchors(page: Path) -> set[str]:
    """What GitHub calls the headings of a page."""
    titles = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    shown = (re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", title).lower() for title in titles)
    return {re.sub(r"[^\w -]", "", title).strip().replace(" ", "-") for title in shown}


def targets(page: Path) -> Iterator[tuple[str, Path, str]]:
    """Each link of a page to a file of this repository: as it is written, the file, and the heading."""
    text = re.sub(r"`[^`\n]*`", "", prose(page))
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if not re.match(r"[a-z]+:", link):
            name, _, heading = link.partition("#")
            yield link, (page.parent / name).resolve() if name else page, heading


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files_and_headings_that_exist(page: Path) -> None:
    dead = [
        link
        for link, file, heading in targets(page)
        if not file.exists() or (heading and file.suffix == ".md" and heading not in anchors(file))
    ]
    assert dead == []


def test_the_index_leads_to_every_page() -> None:
    listed = {file for _, file, _ in targets(INDEX)}
    assert sorted({*(ROOT / "docs").rglob("*.md")} - listed - {INDEX}) == []
