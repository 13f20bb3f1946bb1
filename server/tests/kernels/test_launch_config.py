import json
from importlib import resources

import pytest

from text_generation_server.kernels import _config


@pytest.mark.parametrize(("block", "num_warps"), [(64, 4), (1024, 4), (2048, 4), (4096, 16), (8192, 16), (65536, 16)])
def test_the_nearest_measured_size_is_used(block: int, num_warps: int) -> None:
    assert _config.nearest("add_rms_norm", block=block) == {"num_warps": num_warps}


def test_data_files_hold_complete_entries() -> None:
    for file in (resources.files("text_generation_server.kernels") / "tuned").iterdir():
        entries = json.loads(file.read_text())
        assert entries
        assert all(entry["key"].keys() == entries[0]["key"].keys() and entry["config"] for entry in entries)
