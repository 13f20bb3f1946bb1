"""The kernel that adds what other ranks copy, in Triton's interpreter: run with TRITON_INTERPRET=1."""

import pytest
import torch
from kernel_support import reference

from text_generation_kernels.collectives.allreduce_add_norm_peer import allreduce_add_norm_peer, announce
from text_generation_kernels.collectives.exchange import LIMIT, Exchange, control_block

CPU = torch.device("cpu")
EPS = 1e-5


def _exchange(report: torch.Tensor, limit: int, rank: int = 0, world_size: int = 2) -> Exchange:
    control = control_block([], report.data_ptr(), CPU)
    control[LIMIT] = limit
    return Exchange(rank, world_size, control, 0)


@pytest.mark.parametrize(("rank", "world_size"), [(0, 2), (1, 2), (2, 4), (7, 8)])
@pytest.mark.parametrize("weighted", [True, False])
def test_announced_inputs_are_reduced(weighted: bool, rank: int, world_size: int) -> None:
    torch.manual_seed(0)
    residual, *parts = torch.randn(world_size + 1, 5, 48).half()
    x, others = parts[rank], torch.stack(parts[:rank] + parts[rank + 1 :])
    weight, x_weight = torch.randn(2, 48).half()
    report, flag = torch.zeros(1, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    exchange = _exchange(report, 1 << 60, rank, world_size)
    total = parts[0].float()
    for part in parts[1:]:
        total = total + part.float()
    total = total.half()
    for _ in range(2):
        out, sums = x.clone(), residual.clone()
        for _ in others:
            announce(flag)
        if weighted:
            allreduce_add_norm_peer(out, others, sums, weight, EPS, 0.5, x_weight, flag, exchange)
            expected = reference.rms_norm(total, x_weight, EPS)
            added = expected * 0.5 + residual
            torch.testing.assert_close(sums.double(), added, atol=5e-3, rtol=5e-3)
            torch.testing.assert_close(out.double(), reference.rms_norm(added, weight, EPS), atol=1e-2, rtol=1e-2)
        else:
            allreduce_add_norm_peer(out, others, None, None, EPS, 1.0, None, flag, exchange)
            assert torch.equal(out, total)
        assert flag.item() == 0
    assert report.item() == 0


def test_an_input_that_does_not_arrive_is_reported() -> None:
    report, flag = torch.zeros(1, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    x, others = torch.ones(2, 32), torch.ones(3, 2, 32)
    for _ in range(2):
        announce(flag)
    allreduce_add_norm_peer(x, others, None, None, EPS, 1.0, None, flag, _exchange(report, 20_000, world_size=4))
    assert report.item() == 1
