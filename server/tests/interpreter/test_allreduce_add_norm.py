"""The kernels of several ranks in Triton's interpreter: run with TRITON_INTERPRET=1.

Ranks are forked processes whose buffers are memory that they share, at the same addresses, so they wait for each other
as on devices. bfloat16 is left to the GPU tests, because the interpreter's rounding to it differs from the hardware's.
"""

import importlib
import multiprocessing
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from kernel_support import reference

from text_generation_kernels.collectives.allreduce_add_norm import allreduce_add_norm
from text_generation_kernels.collectives.allreduce_add_norm_receive import allreduce_add_norm_receive
from text_generation_kernels.collectives.exchange import LIMIT, NOTHING, SETS, Exchange, control_block
from text_generation_kernels.matmul.linear import linear_triton
from text_generation_server.distributed import TensorParallelGroup
from text_generation_server.distributed.algorithms import Algorithm, AlgorithmTable

CPU = torch.device("cpu")
EPS = 1e-5
SET_BYTES = 1 << 14
NEVER = 1 << 60
"""A limit that no test comes to: without a clock a reader counts 1 us for each time that it looks."""


class Ranks:
    """Buffers of all ranks, in memory that forked processes share."""

    def __init__(self, world_size: int, limit: int = NEVER) -> None:
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
    """The all-reduce as it is defined: in the order of the ranks, in float32, rounded once."""
    total = x[0].float()
    for part in x[1:]:
        total = total + part.float()
    return total.to(x.dtype)


@pytest.mark.parametrize(
    ("world_size", "two_shots", "dtype", "processors"),
    [
        (2, False, torch.float16, 132),
        (3, False, torch.float32, 132),
        (2, False, torch.float16, 2),
        (3, False, torch.float32, 2),
        (2, True, torch.float32, 132),
        (4, True, torch.float16, 132),
    ],
)
def test_calls_of_all_sizes_follow_each_other(
    world_size: int, two_shots: bool, dtype: torch.dtype, processors: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More calls than there are sets of buffers, larger and smaller ones in turn, each into its own input. Two
    SMs have more rows than they can compute at a time.
    """
    module = importlib.import_module("text_generation_kernels.collectives.allreduce_add_norm")
    monkeypatch.setattr(module, "num_sms", lambda _: processors)
    ranks = Ranks(world_size)
    hidden = 16 * world_size
    cases = [_inputs(world_size, tokens, hidden, dtype) for tokens in (1, 11, 1, 2)]
    outs = [x.clone().share_memory_() for x, _, _ in cases]
    sums = [residual.repeat(world_size, 1, 1).share_memory_() for _, residual, _ in cases]

    def work(rank: int, exchange: Exchange) -> None:
        for out, total, (_, _, weight) in zip(outs, sums, cases, strict=True):
            allreduce_add_norm(out[rank], total[rank], weight, EPS, out[rank], 1.0, None, exchange, two_shots)

    ranks.run(work)

    for out, total, (x, residual, weight) in zip(outs, sums, cases, strict=True):
        added = (_in_order(x).float() + residual.float()).to(dtype)
        expected = reference.rms_norm(added, weight, EPS)
        for rank in range(world_size):
            assert torch.equal(total[rank], added)
            assert torch.equal(out[rank], out[0])
            torch.testing.assert_close(out[rank].double(), expected, atol=1e-2, rtol=1e-2)
    assert ranks.reports.tolist() == [0] * world_size


def test_plain_all_reduces_and_sandwich_norms() -> None:
    ranks = Ranks(2)
    x, residual, weight = _inputs(2, 2, 33, torch.float32)
    sums, outs, totals = (tensor.clone().share_memory_() for tensor in (x, x, residual.repeat(2, 1, 1)))

    def work(rank: int, exchange: Exchange) -> None:
        allreduce_add_norm(sums[rank], None, None, 0.0, sums[rank], 1.0, None, exchange, False)
        allreduce_add_norm(outs[rank], totals[rank], weight, EPS, outs[rank], 0.22, weight, exchange, False)

    ranks.run(work)

    added = residual.double() + 0.22 * reference.rms_norm(_in_order(x), weight, EPS)
    for rank in range(2):
        assert torch.equal(sums[rank], _in_order(x))
        torch.testing.assert_close(totals[rank].double(), added, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(outs[rank].double(), reference.rms_norm(added, weight, EPS), atol=1e-5, rtol=1e-5)


def test_a_group_all_reduces_tensors_of_any_shape_over_peer_memory() -> None:
    ranks = Ranks(2)
    given = [torch.randn(2, *shape) for shape in ((33,), (2, 3, 32), (1, 1, 1))]
    sums = [tensor.clone().share_memory_() for tensor in given]

    def work(rank: int, exchange: Exchange) -> None:
        group = TensorParallelGroup(rank, 2, CPU)
        group._peers = SimpleNamespace(exchange=exchange, lost=False)  # type: ignore[assignment]
        group._algorithms = AlgorithmTable((SET_BYTES,), (Algorithm.ONE_SHOT,))
        for tensor in sums:
            group.all_reduce(tensor[rank])
        group.check()

    ranks.run(work)
    for tensor, parts in zip(sums, given, strict=True):
        assert torch.equal(tensor[0], parts[0] + parts[1])
        assert torch.equal(tensor[0], tensor[1])


@pytest.mark.parametrize("world_size", [2, 3])
def test_gemvs_that_send_their_results_follow_each_other_and_other_all_reduces(world_size: int) -> None:
    """The same bits as GEMV and all-reduce apart; through a group, as layers call it."""
    ranks, hidden = Ranks(world_size), 32
    torch.manual_seed(world_size)
    cases = [
        (
            torch.randn(world_size, 1, 256).half() / 16,
            torch.randn(world_size, hidden, 256).half(),
            residual,
            weight,
        )
        for _, residual, weight in [_inputs(world_size, 1, hidden, torch.float16)] * 6
    ]
    parts, outs = (
        [torch.empty(world_size, len(residual), hidden).half().share_memory_() for _, _, residual, _ in cases]
        for _ in range(2)
    )
    sums = [residual.repeat(world_size, 1, 1).share_memory_() for _, _, residual, _ in cases]
    others = [torch.ones(world_size, 3, hidden).half().share_memory_() for _ in cases]

    def work(rank: int, exchange: Exchange) -> None:
        group = TensorParallelGroup(rank, world_size, CPU)
        group._peers = SimpleNamespace(exchange=exchange, lost=False)  # type: ignore[assignment]
        group._algorithms = AlgorithmTable((SET_BYTES,), (Algorithm.ONE_SHOT,))
        for index, (x, matrix, _, weight) in enumerate(cases):
            linear_triton(x[rank], matrix[rank], None, parts[index][rank])
            begun = group.begin_gemv_all_reduce(x[rank], matrix[rank], None)
            assert begun is not None
            begun.add_norm(sums[index][rank], weight, EPS, 1.0, None)
            outs[index][rank] = begun.x
            if index % 2:
                group.all_reduce(others[index][rank])

    ranks.run(work)

    for index, (_, _, residual, weight) in enumerate(cases):
        added = (_in_order(parts[index]).float() + residual.float()).half()
        for rank in range(world_size):
            assert torch.equal(sums[index][rank], added)
            assert torch.equal(outs[index][rank], outs[index][0])
        torch.testing.assert_close(
            outs[index][0].double(), reference.rms_norm(added, weight, EPS), atol=1e-2, rtol=1e-2
        )
        assert (others[index] == (world_size if index % 2 else 1)).all()
    assert ranks.reports.tolist() == [0] * world_size


def test_nobody_waits_for_a_rank_that_does_not_come() -> None:
    """The first call ends after its limit, which the host learns; the next ones do not wait at all."""
    ranks = Ranks(2, limit=20_000)
    x = torch.ones(2, 32)

    def work(rank: int, exchange: Exchange) -> None:
        allreduce_add_norm(x, None, None, 0.0, x, 1.0, None, exchange, False)
        exchange.control[LIMIT] = NEVER
        allreduce_add_norm(x, None, None, 0.0, x, 1.0, None, exchange, True)
        allreduce_add_norm_receive(x[:1], None, None, 0.0, 1.0, None, exchange)
        allreduce_add_norm(x, None, None, 0.0, x, 1.0, None, exchange, False)

    ranks.run(work, [0])
    assert ranks.reports.tolist() == [1, 0]


def test_what_does_not_fit_is_refused() -> None:
    exchange = Ranks(2).exchange(0)
    x = torch.ones(2, 32)
    with pytest.raises(ValueError, match="contiguous"):
        allreduce_add_norm(x.t(), None, None, 0.0, x.t(), 1.0, None, exchange, False)
    with pytest.raises(ValueError, match="both be given, or neither"):
        allreduce_add_norm(x, x.clone(), None, 0.0, x, 1.0, None, exchange, False)
    with pytest.raises(ValueError, match="do not fit"):
        allreduce_add_norm(torch.ones(300, 32), None, None, 0.0, torch.ones(300, 32), 1.0, None, exchange, False)
    with pytest.raises(ValueError, match="do not fit"):
        allreduce_add_norm(torch.ones(1, 33), None, None, 0.0, torch.ones(1, 33), 1.0, None, exchange, True)
