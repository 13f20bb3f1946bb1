"""Map of the source files, docs/files.md, from the first sentence of each file's documentation.

    python tools/file_map.py [--check]

`make file-map` writes the page. `make lint` runs it with `--check`, which fails where the page is not current. A source
file without documentation fails both: the map would have a hole.
"""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "files.md"
HEAD = """# Files

Every source file of Rust and Python, and every script of the page at `/ui`, by folder and without tests, with the first
sentence of its own documentation. [architecture.md](architecture.md) says how the parts work together. `make file-map`
writes this page.
"""
BEGINNINGS = {".py": "a docstring", ".rs": "lines of `//!`", ".js": "a comment, `/** ... */`"}
TEST = re.compile(r"(^|/)(integration-tests|tests|oracles)/|(^|/)(tests\.rs|(test_\w+|conftest)\.py)$")


def sources() -> Iterator[PurePosixPath]:
    """The source files that git tracks or would add, without tests, folder by folder."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.rs", "*.py", "router/http/ui/*.js"]
    names = set(subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines())
    paths = [PurePosixPath(name) for name in names if not TEST.search(name) and (ROOT / name).is_file()]
    yield from sorted(paths, key=lambda path: (path.parent, path.name))


def documentation(path: PurePosixPath) -> str:
    """The docstring of a Python file, the `//!` of a Rust file, or the first comment of a script."""
    text = (ROOT / path).read_text()
    if path.suffix == ".py":
        return ast.get_docstring(ast.parse(text)) or ""
    if path.suffix == ".js":
        return text.partition("*/")[0].lstrip("/* ")
    return "\n".join(line[3:].strip() for line in text.splitlines() if line.startswith("//!"))


def first_sentence(path: PurePosixPath) -> str:
    """What a file says it is: the first sentence of its documentation, up to a full stop or the colon before a list."""
    paragraph = " ".join(documentation(path).strip().split("\n\n")[0].split())
    if not paragraph:
        sys.exit(f"{path} does not say what it is: begin it with {BEGINNINGS[path.suffix]}")
    return re.split(r"\.(?: |$)|:$", paragraph, maxsplit=1)[0]


def page() -> str:
    """The whole page."""
    parts = [HEAD]
    for folder, paths in groupby(sources(), key=lambda path: path.parent):
        lines = (f"- [`{path.name}`](../{path}): {first_sentence(path)}\n" for path in paths)
        parts.append(f"## `{folder}`\n\n{''.join(lines)}")
    return "\n".join(parts)


def main() -> None:
    """Writes the page, or checks that it is current."""
    if sys.argv[1:] != ["--check"]:
        PAGE.write_text(page())
    elif not PAGE.is_file() or PAGE.read_text() != page():
        sys.exit("docs/files.md is not what the source files say of themselves: run `make file-map`")


if __name__ == "__main__":
    main()
