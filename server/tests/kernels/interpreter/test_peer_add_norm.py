"""The kernel that adds what another rank copies, in Triton's interpreter: run with TRITON_INTERPRET=1."""

import pytest
import torch
from support import reference

from text_generation_server.kernels._exchange import LIMIT, Exchange, control_block
from text_generation_server.kernels.peer_add_norm import announce, peer_add_norm

CPU = torch.device("cpu")
EPS = 1e-5


def _exchange(report: torch.Tensor, limit: int) -> Exchange:
    control = control_block([], report.data_ptr(), CPU)
    control[LIMIT] = limit
    return Exchange(0, 2, control, 0)


@pytest.mark.parametrize("weighted", [True, False])
def test_the_part_that_was_announced_is_added(weighted: bool) -> None:
    torch.manual_seed(0)
    x, other, residual = torch.randn(3, 5, 48).half()
    weight, x_weight = torch.randn(2, 48).half()
    report, flag = torch.zeros(1, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    exchange = _exchange(report, 1 << 60)
    total = (x.float() + other.float()).half()
    for _ in range(2):
        out, sums = x.clone(), residual.clone()
        announce(flag)
        if weighted:
            peer_add_norm(out, other, sums, weight, EPS, 0.5, x_weight, flag, exchange)
            expected = reference.rms_norm(total, x_weight, EPS)
            added = expected * 0.5 + residual
            torch.testing.assert_close(sums.double(), added, atol=5e-3, rtol=5e-3)
            torch.testing.assert_close(out.double(), reference.rms_norm(added, weight, EPS), atol=1e-2, rtol=1e-2)
        else:
            peer_add_norm(out, other, None, None, EPS, 1.0, None, flag, exchange)
            assert torch.equal(out, total)
        assert flag.item() == 0
    assert report.item() == 0


def test_a_part_that_does_not_come_is_reported() -> None:
    report, flag = torch.zeros(1, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    x = torch.ones(2, 32)
    peer_add_norm(x, x.clone(), None, None, EPS, 1.0, None, flag, _exchange(report, 20_000))
    assert report.item() == 1
