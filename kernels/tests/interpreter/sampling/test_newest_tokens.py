"""The Triton kernel in Triton's interpreter: run with TRITON_INTERPRET=1."""

import torch
from torch import Tensor

from text_generation_kernels.sampling.newest_tokens import newest_tokens_torch, newest_tokens_triton


def _run(operator: object, rows: Tensor, last: Tensor, length: Tensor, table: Tensor) -> tuple[Tensor, ...]:
    ids, positions, slots = (torch.full_like(rows, -7) for _ in range(3))
    kv_lens = torch.full_like(rows, -7, dtype=torch.int32)
    assert callable(operator)
    operator(rows, last, length, table, ids, positions, slots, kv_lens)
    return ids, positions, slots, kv_lens


def test_looks_up_what_a_step_reads_of_its_rows() -> None:
    table = torch.arange(60, dtype=torch.int32).view(3, 20)
    last, length = torch.tensor([5, 6, 7]), torch.tensor([1, 20, 0])
    # The last row belongs to nobody and stands there twice.
    found = _run(newest_tokens_triton, torch.tensor([1, 0, 2, 2]), last, length, table)
    expected = ([6, 5, 7, 7], [19, 0, 0, 0], [39, 0, 40, 40], [20, 1, 0, 0])
    for ours, values in zip(found, expected, strict=True):
        assert ours.tolist() == values


def test_more_rows_than_a_thread_block_takes() -> None:
    table = torch.randperm(300 * 16).to(torch.int32).view(300, 16)
    last, length, rows = torch.randint(999, (300,)), torch.randint(17, (300,)), torch.randperm(300)[:130]
    results = [_run(each, rows, last, length, table) for each in (newest_tokens_torch, newest_tokens_triton)]
    for ours, expected in zip(*results, strict=True):
        assert torch.equal(ours, expected)
    assert all(len(each) == 0 for each in _run(newest_tokens_triton, rows[:0], last, length, table))
