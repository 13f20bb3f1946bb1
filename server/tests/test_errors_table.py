"""`docs/errors.md` lists every kind of error as it really is."""

import re
from pathlib import Path

from text_generation_server.errors import EngineError

TABLE = Path(__file__).parents[2] / "docs" / "errors.md"


def test_table_lists_every_error() -> None:
    rows = re.findall(r"^\| `(\w+)` \| `([A-Z_]+)` \| `(\w+)` \|", TABLE.read_text(), re.MULTILINE)
    assert sorted(rows) == sorted(
        (kind.__name__, kind.grpc_status, kind.reason) for kind in EngineError.__subclasses__()
    )
