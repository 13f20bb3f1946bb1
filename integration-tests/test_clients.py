"""Clients written by others against the real server, each in an environment of its own with its own pins.

A folder of `clients` is a client: its requirements, and its tests, which run in its environment. A folder with a
version in its name, as `openai-2`, has only requirements: another version of the client, for the same tests. A client
for Node has its packages in a `package.json` beside the requirements of the tests.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from harness import API_KEY, Server

CLIENTS = Path(__file__).parent / "clients"
ENVIRONMENTS = Path(__file__).parents[1] / ".venv-clients"
ALL = sorted(path.parent.name for path in CLIENTS.glob("*/requirements.txt"))
# What most users have; the others run with `--all-clients`.
MOST_USED = ["anthropic", "huggingface_hub", "openai"]
# No client, but a program that makes requests up, which may ask for endless answers.
FUZZER = "schemathesis"
# The oldest Node that the newest packages run on.
OLDEST_NODE = 22
# Those that have no example of their own in the documentation.
PROGRAMS = [FUZZER, "lm_eval"]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    metafunc.parametrize("client", ALL if metafunc.config.getoption("all_clients") else MOST_USED)


@pytest.fixture
def server(client: str, request: pytest.FixtureRequest) -> Server:
    return request.getfixturevalue("brief" if client == FUZZER else "guarded")


def has_node() -> bool:
    """Whether Node is there with npm, and new enough."""
    if shutil.which("npm") is None or shutil.which("node") is None:
        return False
    version = subprocess.run(["node", "--version"], capture_output=True, text=True, check=True).stdout
    return int(version.removeprefix("v").partition(".")[0]) >= OLDEST_NODE


def python_of(client: str) -> Path:
    """The interpreter of the client's environment, which is made anew only when its requirements have changed."""
    requirements = CLIENTS / client / "requirements.txt"
    environment = ENVIRONMENTS / client
    python = environment / "bin" / "python"
    installed = environment / "installed.txt"
    packages = [CLIENTS / client / name for name in ("package.json", "package-lock.json")]
    packages = [path for path in packages if path.exists()]
    pins = b"".join(path.read_bytes() for path in [requirements, *packages])
    if not installed.exists() or installed.read_bytes() != pins:
        shutil.rmtree(environment, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", environment], check=True)
        # The list is complete: what it lacks is an error of the list, not for pip to find.
        install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
        subprocess.run([*install, "-r", requirements], check=True)
        if packages:
            for path in packages:
                shutil.copy(path, environment)
            subprocess.run(["npm", "ci", "--silent", "--no-audit", "--no-fund"], cwd=environment, check=True)
        installed.write_bytes(pins)
    return python


@pytest.mark.timeout(600)
def test_client(client: str, server: Server, tmp_path: Path) -> None:
    if (CLIENTS / client / "package.json").exists() and not has_node():
        pytest.skip(f"{client} was not tried: it needs Node {OLDEST_NODE} or later with npm on the path")
    tests = [CLIENTS / client.partition("-")[0]]
    if client not in PROGRAMS:
        tests.append(CLIENTS / "test_documentation.py")
    # Nothing of the caller's: no keys, proxies, or settings in a home.
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "TEXT_GENERATION_CLIENT": client,
        "TEXT_GENERATION_URL": server.url,
        "TEXT_GENERATION_KEY": API_KEY,
    }
    command = [python_of(client), "-m", "pytest", "-q", *tests]
    run = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True)
    if run.returncode != 0:
        pytest.fail(run.stdout + run.stderr, pytrace=False)
