"""Checks that everything in the repository that states this project's version states the same one.

    python tools/versions.py

Rust's version is that of the workspace in Cargo.toml, from which the binaries, the OpenAPI document and their wheels
take it. Python distributions, the chart, the OpenAPI snapshot and CHANGELOG.md name it again. A release changes them
together. It needs no network and takes no time, so `make lint` runs it.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import tomllib

ROOT = Path(__file__).parent.parent
# The first line of a file that states the version, beside Cargo.toml and pyproject.toml.
LINES = (
    ("server/text_generation_server/__init__.py", r'^__version__ = "(.+)"$'),
    ("deploy/kubernetes/text-generation/Chart.yaml", r"^version: (.+)$"),
    ("deploy/kubernetes/text-generation/Chart.yaml", r"^appVersion: (.+)$"),
    ("router/http/tests/snapshots/service__openapi.snap", r'^    "version": "(.+)"$'),
    ("CHANGELOG.md", r"^## (\d\S*)"),
)
BUILT = {"target", "node_modules", ".venv", "dist"}


def manifests() -> Iterator[tuple[str, str]]:
    """Each Cargo.toml and pyproject.toml with a version of its own, and that version."""
    for name, table in (("Cargo.toml", "package"), ("pyproject.toml", "project")):
        for path in sorted(ROOT.rglob(name)):
            place = path.relative_to(ROOT)
            if BUILT.isdisjoint(place.parts):
                manifest = tomllib.loads(path.read_text())
                own = manifest.get(table, {}).get("version")
                if isinstance(own, str):
                    yield str(place), own


def stated() -> Iterator[tuple[str, str]]:
    """Each file that states the version, and the version that it states."""
    yield from manifests()
    for name, pattern in LINES:
        found = re.search(pattern, (ROOT / name).read_text(), re.MULTILINE)
        yield name, found[1] if found else "none"


def main() -> None:
    """Prints the files that differ from the workspace's version, and fails if there are any."""
    version = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]["version"]
    wrong = [f"{name}: {other}" for name, other in stated() if other != version]
    sys.exit("\n".join([f"Cargo.toml says version {version}, but", *wrong]) if wrong else None)


if __name__ == "__main__":
    main()
