"""Checks the crates of Cargo.lock against deny.toml: their licences, where they come from, and known vulnerabilities.

    python tools/dependencies.py

It reads the same file as `cargo deny check`, needs no network, and takes a second, so `make lint` runs it. It knows the
vulnerabilities that deny.toml names; `make audit` asks the advisory databases.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tomllib
from license_expression import AND, OR, LicenseExpression, get_spdx_licensing
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).parent.parent
SPDX = get_spdx_licensing()


def crates() -> list[dict[str, Any]]:
    """All crates of Cargo.lock that are not ours, as Cargo describes them."""
    command = ["cargo", "metadata", "--locked", "--format-version", "1"]
    found = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return [crate for crate in json.loads(found)["packages"] if crate["source"]]


def permits(expression: LicenseExpression, allowed: set[str]) -> bool:
    """Whether a licence expression can be fulfilled with the allowed licences."""
    if isinstance(expression, AND):
        return all(permits(each, allowed) for each in expression.args)
    if isinstance(expression, OR):
        return any(permits(each, allowed) for each in expression.args)
    return expression.render() in allowed


def faults(crate: dict[str, Any], rules: dict[str, Any]) -> Iterator[str]:
    """What deny.toml forbids about a crate, in words."""
    # Some older crates write a slash for OR.
    licence = (crate["license"] or "").replace("/", " OR ")
    if not licence or not permits(SPDX.parse(licence), set(rules["licenses"]["allow"])):
        yield f"its licence, {licence or 'unknown'}, is not among `licenses.allow`"
    if crate["source"].removeprefix("registry+") not in rules["sources"]["allow-registry"]:
        yield f"its source, {crate['source']}, is not among `sources.allow-registry`"
    for ban in rules["bans"]["deny"]:
        name, _, versions = ban["crate"].partition("@")
        # The part behind "+" does not order versions.
        if crate["name"] == name and SpecifierSet(versions).contains(
            crate["version"].partition("+")[0], prereleases=True
        ):
            yield f"{ban['reason']}: run `cargo update {name}`"


def main() -> None:
    """Prints what is forbidden and fails if there is anything."""
    rules = tomllib.loads((ROOT / "deny.toml").read_text())
    found = [f"{crate['name']} {crate['version']}: {fault}" for crate in crates() for fault in faults(crate, rules)]
    sys.exit("\n".join(["deny.toml forbids:", *found]) if found else None)


if __name__ == "__main__":
    main()
