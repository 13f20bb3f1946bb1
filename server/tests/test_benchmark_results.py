"""`benchmark/results/` holds what a page or a comment cites, a row a line, and no more."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
RESULTS = {path.name: path for path in (ROOT / "benchmark" / "results").iterdir()}
MOST_LINES = 15_000
PAGES = [path for path in (ROOT / "docs").rglob("*.md") if path.name != "files.md"]
SOURCES = [
    path
    for folder in ("kernels", "server/text_generation_server", "router")
    for ending in ("py", "rs")
    for path in (ROOT / folder).rglob(f"*.{ending}")
]
PAGES_OF_FIGURES = [ROOT / "docs" / "performance.md", *(ROOT / "docs" / "lab").glob("*.md")]
"""Where a file that is named without its folder is a result."""


def test_every_result_that_is_cited_exists() -> None:
    paths = [(path, name) for path in (*PAGES, *SOURCES) for name in cited_with_folder(path)]
    paths += [(path, name) for path in PAGES_OF_FIGURES for name in re.findall(r"`([\w.-]+\.json)`", path.read_text())]
    assert [(str(path.relative_to(ROOT)), name) for path, name in paths if name not in RESULTS] == []


def test_every_result_is_cited() -> None:
    cited = {name for path in PAGES for name in re.findall(r"[\w.-]+\.json", path.read_text())}
    cited.update(name for path in SOURCES for name in cited_with_folder(path))
    assert sorted(RESULTS.keys() - cited) == []


def cited_with_folder(path: Path) -> list[str]:
    return re.findall(r"benchmark/results/([\w.*-]+\.json)", path.read_text())


def test_results_have_a_row_a_line(tmp_path: Path) -> None:
    copies = [Path(shutil.copy(path, tmp_path)) for path in RESULTS.values()]
    subprocess.run([sys.executable, ROOT / "benchmark" / "compact.py", *copies], check=True)
    others = [copy.name for copy in copies if copy.read_text() != RESULTS[copy.name].read_text()]
    assert others == [], "python benchmark/compact.py FILE writes a result in this way"
    assert [copy.name for copy in copies if parsed(copy) != parsed(RESULTS[copy.name])] == []


def parsed(path: Path) -> object:
    return json.loads(path.read_text())


def test_results_are_few() -> None:
    assert sum(path.read_text().count("\n") for path in RESULTS.values()) <= MOST_LINES
