"""Checks that no modules of a Rust crate use each other in a circle.

    python tools/circles.py

Each module is compared with its siblings and counts with all that is below it; a parent may use its children, and they
it. It reads paths that begin with `crate`, `super` or `self`, looks up where a `use` on their way leads, and leaves out
tests. It needs no network and takes a second, so `make lint` runs it.
"""

import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).parent.parent
UNREAD = re.compile(r"//.*|#\[cfg\(test\)\]\s*mod \w+ \{(?s:.*)")
TREE = re.compile(r"((?:\w+::)+)\{([^{}]*)\}")
USE = re.compile(r"\buse ([^;]+);")
PATH = re.compile(r"\b(?:crate|super|self)(?:::\w+)+")

Module = tuple[str, ...]


def flat(text: str) -> str:
    """The text with `a::b, a::c` for `a::{b, c}`."""
    while TREE.search(text):
        text = TREE.sub(lambda tree: ", ".join(tree[1] + part.strip() for part in tree[2].split(",")), text)
    return text


def crates() -> dict[str, dict[Module, str]]:
    """The text of each module by its path in the crate, by the folder of the crate."""
    found: dict[str, dict[Module, str]] = defaultdict(dict)
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.rs"]
    for name in subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines():
        crate, source, inside = name.partition("/src/")
        parts = tuple(inside.removesuffix(".rs").split("/"))
        if source and "tests" not in parts and (ROOT / name).is_file():
            module = parts[:-1] if parts[-1] in ("lib", "main", "mod") else parts
            found[crate][module] = flat(UNREAD.sub("", (ROOT / name).read_text()))
    return found


def absolute(path: str, here: Module) -> Module:
    """A path from the root of the crate; one of no known beginning is below `here`."""
    place: Module = () if path.startswith("crate::") else here
    parts = path.removeprefix("crate::").split("::")
    while parts and parts[0] in ("self", "super"):
        place = place[:-1] if parts.pop(0) == "super" else place
    return (*place, *parts)


def arrows(modules: dict[Module, str]) -> Iterator[tuple[Module, str, str, str]]:
    """Which child of a module uses which other, and the path that says so."""
    names = {
        (*here, path.rpartition("::")[2]): absolute(path, here)
        for here, text in modules.items()
        for paths in USE.findall(text)
        for path in paths.split(", ")
    }
    for here, text in modules.items():
        for path in sorted(set(PATH.findall(text))):
            to = absolute(path, here)
            known = next(n for n in range(len(to), -1, -1) if to[:n] in modules)
            # One step is enough for names of a parent that a sibling defines.
            to = names.get(to[: known + 1], to)
            depth = next((n for n, (a, b) in enumerate(zip(here, to, strict=False)) if a != b), len(here))
            if depth < min(len(here), len(to)) and to[: depth + 1] in modules:
                yield here[:depth], here[depth], to[depth], f"{'::'.join(here)} uses {path}"


def circles(modules: dict[Module, str]) -> Iterator[str]:
    """The first circle among the children of each module, with a path for each of its arrows."""
    reasons: dict[Module, dict[tuple[str, str], str]] = defaultdict(dict)
    for parent, user, used, reason in arrows(modules):
        reasons[parent].setdefault((user, used), reason)
    for known in reasons.values():
        graph = {user: {b for a, b in known if a == user} for user, _ in known}
        try:
            TopologicalSorter(graph).prepare()
        except CycleError as error:
            ring: list[str] = error.args[1][::-1]
            yield ", ".join(known[arrow] for arrow in pairwise(ring))


def main() -> None:
    """Prints the circles and fails if there are any."""
    found = [f"{crate}: {circle}" for crate, modules in sorted(crates().items()) for circle in circles(modules)]
    sys.exit("\n".join(["modules use each other in a circle:", *found]) if found else None)


if __name__ == "__main__":
    main()
