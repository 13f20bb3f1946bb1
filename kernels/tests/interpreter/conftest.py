"""Every kernel that these tests run is held to what its launcher says about programmatic dependent launch."""

from collections.abc import Iterator

import pytest
from kernel_support.observed_pdl import compared_pdl


@pytest.fixture(autouse=True)
def _compared_pdl() -> Iterator[None]:
    with compared_pdl():
        yield
