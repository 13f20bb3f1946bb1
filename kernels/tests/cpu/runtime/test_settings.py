import itertools
import json
from importlib import resources

import pytest

from text_generation_kernels.runtime import settings


@pytest.mark.parametrize(("block", "num_warps"), [(64, 4), (1024, 4), (2048, 4), (4096, 16), (8192, 16), (65536, 16)])
def test_the_nearest_measured_size_is_used(block: int, num_warps: int) -> None:
    assert settings.nearest("add_rms_norm", block=block) == {"num_warps": num_warps}


@pytest.mark.parametrize(("head_dim", "element_bytes"), [(64, 2), (128, 2), (256, 2), (64, 4), (128, 4), (256, 4)])
@pytest.mark.parametrize("q_len", [1, 16, 512, 1 << 17])
@pytest.mark.parametrize("shared_kib", [227, 163, 99])
def test_prompts_of_any_length_get_a_tile_of_their_own_card_and_head_size(
    shared_kib: int, head_dim: int, element_bytes: int, q_len: int
) -> None:
    file = resources.files("text_generation_kernels") / "tuned" / "prefill_attention.json"
    own = {"shared_kib": shared_kib, "head_dim": head_dim, "element_bytes": element_bytes}
    configs = [entry["config"] for entry in json.loads(file.read_text()) if own.items() <= entry["key"].items()]
    assert settings.nearest("prefill_attention", **own, q_len=q_len) in configs


def test_prompts_of_any_length_are_summed_in_the_same_steps() -> None:
    # What deterministic results rest on: only how many queries share a tile may follow from the length of a prompt.
    for shared_kib, head_dim, element_bytes in itertools.product((227, 163, 99), (64, 128, 256), (2, 4)):
        card = {"shared_kib": shared_kib, "head_dim": head_dim, "element_bytes": element_bytes}
        configs = [settings.nearest("prefill_attention", **card, q_len=q_len) for q_len in (1, 64, 1 << 17)]
        assert len({config["BLOCK_N"] for config in configs}) == 1
        assert len({config["BLOCK_M"] // config["num_warps"] for config in configs}) == 1


def test_data_files_hold_complete_entries() -> None:
    for file in (resources.files("text_generation_kernels") / "tuned").iterdir():
        entries = json.loads(file.read_text())
        assert entries
        assert all(entry["key"].keys() == entries[0]["key"].keys() for entry in entries)
        assert all(("config" in entry) != ("faster" in entry) for entry in entries)
