"""What our packages declare to need: everything that they import, nothing else, and no version that is not tested."""

import ast
import importlib.metadata
import itertools
import sys
from pathlib import Path

import pytest
import tomllib
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PROJECTS = {"server": "text_generation_server", "kernels": "text_generation_kernels"}
"""Folders, with the package of each."""
OURS = "text-generation-"
# Several packages share these; these ones are used.
SHARED_NAMESPACES = {
    "google": ["protobuf"],
    "opentelemetry": ["opentelemetry-api", "opentelemetry-exporter-otlp-proto-grpc", "opentelemetry-sdk"],
}


def declared(project: str) -> dict[str, Requirement]:
    """Requirements of a project by name, optional ones too where it is one of `PROJECTS`."""
    table = tomllib.loads((ROOT / project / "pyproject.toml").read_text())["project"]
    extras = table.get("optional-dependencies", {}).values() if project in PROJECTS else ()
    lines = [*table["dependencies"], *itertools.chain(*extras)]
    return {requirement.name: requirement for requirement in map(Requirement, lines)}


def imported_modules(folder: Path) -> set[str]:
    """Top-level names of what a package imports, without Python's own library."""
    names: set[str] = set()
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names.update(alias.name.split(".")[0] for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                names.add(node.module.split(".")[0])
    return names - sys.stdlib_module_names - {folder.name}


@pytest.mark.parametrize("project", PROJECTS)
def test_what_is_imported_is_declared_and_nothing_else(project: str) -> None:
    providers = importlib.metadata.packages_distributions()
    imported = imported_modules(ROOT / project / PROJECTS[project])
    needed = {providers[name][0] for name in imported - set(SHARED_NAMESPACES)}
    needed.update(*(SHARED_NAMESPACES[name] for name in imported & set(SHARED_NAMESPACES)))
    assert set(map(canonicalize_name, needed)) == set(declared(project))


def test_what_the_client_needs_is_installed_with_it() -> None:
    lines = (ROOT / "server" / "requirements.txt").read_text().splitlines()
    pins = {Requirement(line).name for line in lines if line and not line.startswith("#")}
    assert declared("clients/python").keys() <= pins


@pytest.mark.parametrize("project", PROJECTS)
def test_the_lowest_allowed_versions_are_the_tested_ones(project: str) -> None:
    lines = (ROOT / "server" / "requirements.txt").read_text().splitlines()
    pins = {pin.name: pin.specifier for pin in map(Requirement, (line for line in lines if not line.startswith("#")))}
    # torch names the only Triton that it works with.
    of_torch = [Requirement(text) for text in importlib.metadata.requires("torch") or []]
    pins.update({pin.name: pin.specifier for pin in of_torch if pin.name == "triton"})
    for name, requirement in declared(project).items():
        if name.startswith(OURS):
            continue
        assert str(requirement.specifier).replace(">=", "==") == str(pins[name]), name
        assert importlib.metadata.version(name) in pins[name], f"{name} is not the tested version"
