"""Keeps what tests found on a GPU, for the tables of `docs/models.md`.

`COMMAND` is for a machine with one, in `server/`, with `PYTHONPATH=.:tests:../kernels`.
"""

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

COMMAND = "pytest tests/gpu/test_families.py --junitxml found.xml; python -m support.device_results found.xml"
KEPT = Path(__file__).parents[3] / "benchmark" / "results" / "families.json"
TESTS = {"test_our_decoder": "native", "test_classes_of_transformers": "transformers"}
"""From the name of a test to the implementation that it runs."""


def results(files: Iterable[Path]) -> dict[str, Any]:
    """Of the reports of one device: what it is, and which cases passed and failed there, by implementation."""
    kept: dict[str, Any] = {"command": COMMAND, "on": {}}
    for file in files:
        root = ElementTree.parse(file).getroot()
        kept["on"] |= {each.attrib["name"]: each.attrib["value"] for each in root.iter("property")}
        for case in root.iter("testcase"):
            # Where a run was ended, one case has no name.
            test, _, name = case.attrib.get("name", "").removesuffix("]").partition("[")
            if test not in TESTS or case.find("skipped") is not None:
                continue
            failed = case.find("failure") is not None or case.find("error") is not None
            kept.setdefault(TESTS[test], {}).setdefault("failed" if failed else "passed", []).append(name)
    for found in (kept.get(name, {}) for name in TESTS.values()):
        for names in found.values():
            names.sort()
    return kept


def passed_on_gpu(impl: str) -> tuple[str, frozenset[str]]:
    """The device, and the cases of an implementation that passed on it."""
    kept = json.loads(KEPT.read_text())
    return kept["on"]["device"], frozenset(kept[impl]["passed"])


if __name__ == "__main__":
    KEPT.write_text(json.dumps(results(map(Path, sys.argv[1:])), indent=1) + "\n")
