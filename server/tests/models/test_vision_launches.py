"""Kernels of a vision tower are small and many: a host that launches them one by one is what bounds small images."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.loading import load
from support.vision_cases import VISION_CASES, views_of
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Launches(TorchDispatchMode):
    """Counts operators that write memory of their own, by their names."""

    def __init__(self) -> None:
        super().__init__()
        self.names: Counter[str] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        if not storages(out) <= storages((args, kwargs)):
            self.names[func.overloadpacket.__name__] += 1
        return out


def storages(values: Any) -> set[int]:
    return {each.untyped_storage().data_ptr() for each in tree_leaves(values) if isinstance(each, Tensor)}


@pytest.fixture
def launches_of_blocks(tmp_path: Path) -> Callable[[str], list[Counter[str]]]:
    """What each block of a case launches for its first item."""

    def launches(name: str) -> list[Counter[str]]:
        case = VISION_CASES[name]
        case.write(tmp_path)
        encoder = load(tmp_path).encoder
        assert encoder is not None
        state = encoder.begin(views_of([(40, 56)]))
        found: list[Counter[str]] = []
        for layer in range(encoder.layers):
            with Launches() as counted:
                encoder.run(state, layer, 1)
            found.append(counted.names)
        return found

    return launches


def test_blocks_with_windows_launch_one_attention_for_each_size_of_windows(
    launches_of_blocks: Callable[[str], list[Counter[str]]],
) -> None:
    """5 x 7 positions in windows of 2 x 2: whole ones, those at two edges, and the one in the corner."""
    windows, whole, *_ = launches_of_blocks("qwen2.5 vl")
    attention = "scaled_dot_product_attention"
    assert (windows[attention], whole[attention]) == (3, 1)
    assert windows["index"] + windows["index_put_"] == 0
    # Beside attention there is the joining of its parts alone.
    assert windows.total() - whole.total() == 2 + 1


@pytest.mark.parametrize(("name", "most"), [("qwen2.5 vl", 24), ("qwen3 vl", 21), ("kimi vl", 21)])
def test_queries_and_keys_are_rotated_together(
    name: str, most: int, launches_of_blocks: Callable[[str], list[Counter[str]]]
) -> None:
    whole = launches_of_blocks(name)[1]
    assert whole["sub"] == 1
    assert whole.total() <= most, whole
