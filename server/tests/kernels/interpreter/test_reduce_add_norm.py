"""The kernels of several ranks in Triton's interpreter: run with TRITON_INTERPRET=1.

Ranks are forked processes whose buffers are memory that they share, at the same addresses, so they wait for each other
as on devices. bfloat16 is left to the GPU tests, because the interpreter's rounding to it differs from the hardware's.
"""

import multiprocessing
from collections.abc import Callable

import pytest
import torch
from support import reference

from text_generation_server.kernels._exchange import LIMIT, NOTHING, SETS, Exchange, control_block
from text_generation_server.kernels.reduce_add_norm import fits_one_shot, fits_two_shots, reduce_add_norm

CPU = torch.device("cpu")
EPS = 1e-5
SET_BYTES = 1 << 14
TURNS_US = 1_000_000_000_000
"""Turns of a reader, each counted as 1 us, that no test waits for."""


class Ranks:
    """Buffers of all ranks, in memory that forked processes share."""

    def __init__(self, world_size: int, limit: int = TURNS_US) -> None:
        self.world_size = world_size
        buffers = torch.full((world_size, SETS * SET_BYTES // 2), NOTHING - (1 << 16), dtype=torch.int16)
        self._buffers = buffers.share_memory_()
        self.reports = torch.zeros(world_size, dtype=torch.int32).share_memory_()
        addresses = [buffer.data_ptr() for buffer in self._buffers]
        self.controls = torch.stack(
            [control_block(addresses, report.data_ptr(), CPU) for report in self.reports]
        ).share_memory_()
        self.controls[:, LIMIT] = limit

    def exchange(self, rank: int) -> Exchange:
        return Exchange(rank, self.world_size, self.controls[rank], SET_BYTES)

    def run(self, work: Callable[[int, Exchange], None], ranks: list[int] | None = None) -> None:
        """`work(rank, exchange)` in a process of each of `ranks`; all of them if none are named."""
        context = multiprocessing.get_context("fork")
        chosen = range(self.world_size) if ranks is None else ranks
        processes = [context.Process(target=work, args=(rank, self.exchange(rank))) for rank in chosen]
        for process in processes:
            process.start()
        for process in processes:
            process.join(120)
        assert [process.exitcode for process in processes] == [0] * len(processes)


def _inputs(world_size: int, tokens: int, hidden: int, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    torch.manual_seed(tokens * hidden)
    x = torch.randn(world_size, tokens, hidden).to(dtype)
    x[:, :, 0] = -0.0
    return x, torch.randn(tokens, hidden).to(dtype), (1 + torch.randn(hidden)).to(dtype)


def _in_order(x: torch.Tensor) -> torch.Tensor:
    """The sum over the ranks as it is defined: in their order, in float32, rounded once."""
    total = x[0].float()
    for part in x[1:]:
        total = total + part.float()
    return total.to(x.dtype)


@pytest.mark.parametrize(
    ("world_size", "two_shots", "dtype"),
    [
        (2, False, torch.float16),
        (2, True, torch.float16),
        (3, False, torch.float32),
        (4, False, torch.float16),
        (4, True, torch.float32),
    ],
)
def test_calls_of_all_sizes_follow_each_other(world_size: int, two_shots: bool, dtype: torch.dtype) -> None:
    ranks = Ranks(world_size)
    hidden = 16 * world_size
    cases = [_inputs(world_size, tokens, hidden, dtype) for tokens in (1, 5, 2, 7, 1, 3, 6, 1)]
    shared = [
        tuple(tensor.clone().share_memory_() for tensor in (x, x[:, :0] + 0, residual)) for x, residual, _ in cases
    ]
    residuals = [residual.repeat(world_size, 1, 1).share_memory_() for _, residual, _ in cases]

    def work(rank: int, exchange: Exchange) -> None:
        for (x, _, _), residual, (_, _, weight) in zip(shared, residuals, cases, strict=True):
            mine = x[rank]
            if not (fits_two_shots if two_shots else fits_one_shot)(mine, exchange):
                raise AssertionError("the case must fit")
            reduce_add_norm(mine, residual[rank], weight, EPS, mine, 1.0, None, exchange, two_shots)

    ranks.run(work)

    for (given, residual, weight), (x, _, _), residuals_now in zip(cases, shared, residuals, strict=True):
        total = _in_order(given)
        added = (total.float() + residual.float()).to(dtype)
        _, expected = reference.add_rms_norm(total, residual, weight, EPS)
        for rank in range(world_size):
            assert torch.equal(residuals_now[rank], added)
            assert torch.equal(x[rank], x[0])
            torch.testing.assert_close(x[rank].double(), expected, atol=1e-2, rtol=1e-2)
    assert ranks.reports.tolist() == [0] * world_size
