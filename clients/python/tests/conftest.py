"""Fixtures shared by the tests of the client."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import stub as stub_server


@pytest.fixture
def stub() -> Iterator[stub_server.Stub]:
    """A running stub server."""
    with stub_server.running() as running:
        yield running
