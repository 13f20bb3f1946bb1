"""Arrival counters, by which the last thread block of a group is known."""

import pytest
import torch

from text_generation_kernels.runtime import launch
from text_generation_kernels.runtime.launch import arrivals


@pytest.fixture(autouse=True)
def no_counters(monkeypatch: pytest.MonkeyPatch) -> None:
    """No operator has run yet."""
    monkeypatch.setattr(launch, "_arrivals", {})


def test_there_are_as_many_as_the_largest_batch_of_any_model_asks_for() -> None:
    device, few, most = torch.device("cpu"), 64 * 40, 32_768 * 40
    first = arrivals(device, few)
    assert arrivals(device, most).numel() >= most
    assert not arrivals(device, most).any()
    assert arrivals(device, few) is arrivals(device, most)
    # A graph that counts in the first ones finds them where they were.
    assert launch._arrivals[device][0] is first


def test_a_capture_is_not_the_first_to_ask_for_so_many(monkeypatch: pytest.MonkeyPatch) -> None:
    device = torch.device("cuda", 0)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    held = torch.zeros(1 << 16, dtype=torch.int32)
    launch._arrivals[device] = [held]
    assert arrivals(device, held.numel()) is held
    with pytest.raises(RuntimeError, match="before it is captured"):
        arrivals(device, held.numel() + 1)
