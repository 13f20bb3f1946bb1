"""Servers and a browser for the tests of the page at `/ui`."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator

import pytest
from harness import Server, serving
from playwright.sync_api import Browser, Page, sync_playwright
from ui_page import KEY, MODEL


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(MODEL, tmp_path_factory.mktemp("open")) as server:
        yield server


@pytest.fixture(scope="session")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with a key that takes one request at a time."""
    with serving(MODEL, tmp_path_factory.mktemp("key"), "--api-key", KEY, "--max-concurrent-requests", "1") as server:
        yield server


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    names = ("chromium", "chromium-browser", "google-chrome")
    path = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, names)), None)
    if path is None:
        raise FileNotFoundError("no Chromium: install one, or name its command in the variable CHROMIUM")
    with sync_playwright() as playwright:
        # Chromium's sandbox refuses to run as root, as in containers.
        browser = playwright.chromium.launch(executable_path=path, chromium_sandbox=os.geteuid() != 0)
        yield browser
        browser.close()


@pytest.fixture
def visit(browser: Browser) -> Iterator[Callable[..., Page]]:
    """Opens the page of a server; afterwards nothing must have gone wrong, or to another host."""
    pages: list[Page] = []
    complaints: list[str] = []

    def visit(server: Server, **options: object) -> Page:
        page = browser.new_context(**{"viewport": {"width": 1100, "height": 900}, **options}).new_page()
        page.on("pageerror", lambda error: complaints.append(str(error)))
        # Chromium itself reports each request without success.
        page.on("console", lambda line: "Failed to load resource" in line.text or complaints.append(line.text))
        page.on("request", lambda request: request.url.startswith(server.url) or complaints.append(request.url))
        page.goto(f"{server.url}/ui")
        pages.append(page)
        return page

    yield visit
    for page in pages:
        page.context.close()
    assert complaints == []
