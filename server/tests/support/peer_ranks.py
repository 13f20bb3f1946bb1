"""What ranks on devices of their own check of the sums that go through memory that they share."""

import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

import text_generation_kernels as kernels
from text_generation_server.config import ParallelConfig
from text_generation_server.distributed import TensorParallelGroup, init_group
from text_generation_server.distributed.algorithms import Algorithm, AlgorithmTable
from text_generation_server.errors import EngineFailed

WORLD = 4 if torch.cuda.device_count() >= 4 else 2
EPS = 1e-5
OURS = (Algorithm.ONE_SHOT, Algorithm.TWO_SHOTS)
CASES = [
    (1, 8192, torch.bfloat16),
    (64, 8192, torch.bfloat16),
    (300, 8192, torch.bfloat16),
    (200, 2880, torch.float16),
    (9, 4096, torch.float32),
]


def _join(rank: int, folder: Path) -> TensorParallelGroup:
    torch.cuda.set_device(rank)
    group = init_group(ParallelConfig(rank, WORLD, folder / "rendezvous"), torch.device("cuda", rank), timeout_s=60)
    if group._peers is None:
        raise AssertionError("the devices do not share memory, or NCCL is always faster")
    return group


def _only(group: TensorParallelGroup, algorithm: Algorithm) -> None:
    group._algorithms = AlgorithmTable((1 << 62,), (algorithm,))


def _parts(tokens: int, hidden: int, dtype: torch.dtype, rank: int, seed: int = 0) -> tuple[torch.Tensor, ...]:
    """The inputs of all ranks, a residual and two weights, the same on all."""
    generator = torch.Generator().manual_seed(seed + tokens * hidden)
    x = torch.randn(WORLD, tokens, hidden, generator=generator).to(dtype)
    x[:, :, ::3] = -0.0
    rest = [torch.randn(shape, generator=generator).to(dtype) for shape in ((tokens, hidden), (hidden,), (hidden,))]
    return tuple(tensor.cuda(rank) for tensor in (x, *rest))


def _total(x: torch.Tensor) -> torch.Tensor:
    """The inputs of all ranks reduced in their order, in float32."""
    total = x[0].float()
    for part in x[1:]:
        total = total + part.float()
    return total.to(x.dtype)


def ended(rank: int, work: Callable[[int, Path], None], folder: Path) -> None:
    """Runs `work` and ends the process as a shard does: NCCL's own end waits for graphs and other ranks."""
    try:
        work(rank, folder)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)


def check_values(rank: int, folder: Path) -> None:
    group = _join(rank, folder)
    for algorithm in OURS:
        for tokens, hidden, dtype in CASES:
            x, residual, weight, x_weight = _parts(tokens, hidden, dtype, rank)
            total = _total(x)
            _only(group, algorithm)
            plain = x[rank].clone()
            group.all_reduce(plain)
            assert torch.equal(plain, total), (algorithm, tokens, hidden, dtype)
            for scale, norm in ((1.0, None), (0.22, x_weight)):
                expected, expected_residual = torch.empty_like(total), residual.clone()
                kernels.add_rms_norm(total, expected_residual, weight, EPS, expected, scale, norm)
                out, sums = x[rank].clone(), residual.clone()
                group.allreduce_add_norm(out, sums, weight, EPS, scale, norm)
                assert norm is not None or torch.equal(sums, expected_residual)
                torch.testing.assert_close(sums, expected_residual, atol=1e-2, rtol=1e-2)
                torch.testing.assert_close(out, expected, atol=1e-2, rtol=1e-2)
                other = out.clone()
                torch.distributed.broadcast(other, 0)
                assert torch.equal(other, out), "ranks must agree to the bit"
    group.check()
    group.close()


def check_replays(rank: int, folder: Path) -> None:
    """Graphs of several sizes, replayed in turns, with ranks that run apart."""
    group = _join(rank, folder)
    captured = []
    for algorithm in OURS:
        _only(group, algorithm)
        for tokens, hidden in ((1, 8192), (17, 4096), (256, 8192)):
            x, residual, weight, _ = _parts(tokens, hidden, torch.bfloat16, rank)
            given, out = x[rank].clone(), x[rank].clone()
            sums = residual.clone()
            group.allreduce_add_norm(out, sums, weight, EPS)
            expected = out.clone()
            graph = torch.cuda.CUDAGraph()
            torch.cuda.synchronize()
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                wrong = torch.zeros((), dtype=torch.int64, device="cuda")
                for _ in range(3):
                    out.copy_(given)
                    sums.copy_(residual)
                    group.allreduce_add_norm(out, sums, weight, EPS)
                    wrong += (out != expected).sum()
            captured.append((graph, wrong, out, given, sums, residual, weight, expected))
    failures = torch.zeros((), dtype=torch.int64, device="cuda")
    for step in range(1000):
        graph, wrong, *_ = captured[step % len(captured)]
        if (step + rank) % 50 == 0:
            torch.cuda._sleep(2_000_000)
        graph.replay()
        failures += wrong
    assert failures.item() == 0
    group.check()
    group.close()


def check_under_way(rank: int, folder: Path) -> None:
    """Overlapped all-reduces, two at a time as in a step in overlapped halves, in graphs of ranks that run apart."""
    group = _join(rank, folder)
    captured = []
    for tokens, hidden, dtype in CASES:
        x, residual, weight, x_weight = _parts(tokens, hidden, dtype, rank)
        total = _total(x)
        expected, expected_sums = torch.empty_like(total), residual.clone()
        kernels.add_rms_norm(total, expected_sums, weight, EPS, expected, 0.22, x_weight)
        wrong = torch.zeros((), dtype=torch.int64, device="cuda")
        graph = torch.cuda.CUDAGraph()
        for capture in (nullcontext(), torch.cuda.graph(graph, capture_error_mode="thread_local")):
            torch.cuda.synchronize()
            with capture:
                for first in (0, 2):
                    begun = [group.begin_all_reduce(x[rank].clone(), first + index) for index in range(2)]
                    sums = residual.clone()
                    begun[0].add_norm(sums, weight, EPS, 0.22, x_weight)
                    wrong += (begun[0].x - expected).abs().gt(0.01 * (1 + expected.abs())).sum()
                    wrong += (begun[1].end() != total).sum()
        captured.append((graph, wrong, x, residual, weight, x_weight, expected, total))
    for number in range(200):
        if (number + rank) % 20 == 0:
            torch.cuda._sleep(2_000_000)
        captured[number % len(captured)][0].replay()
    assert [wrong.item() for _, wrong, *_ in captured] == [0] * len(captured)
    group.check()
    group.close()


def check_sent(rank: int, folder: Path) -> None:
    """GEMVs that send their results themselves, in graphs that are replayed in turns with other all-reduces."""
    group = _join(rank, folder)
    _only(group, Algorithm.ONE_SHOT)
    generator = torch.Generator().manual_seed(rank)
    _, residual, norm, _ = _parts(1, 8192, torch.bfloat16, rank)
    captured = []
    for inputs in (2048, 4096, 14336):
        x = torch.randn(1, inputs, generator=generator).bfloat16().cuda(rank)
        weight = torch.randn(8192, inputs, generator=generator).bfloat16().cuda(rank) / inputs**0.5
        expected, expected_sums = x.new_empty(1, 8192), residual.clone()
        kernels.token_linear(x, weight, None, expected)
        group.allreduce_add_norm(expected, expected_sums, norm, EPS)
        wrong = torch.zeros((), dtype=torch.int64, device="cuda")
        graph = torch.cuda.CUDAGraph()
        for capture in (nullcontext(), torch.cuda.graph(graph, capture_error_mode="thread_local")):
            torch.cuda.synchronize()
            with capture:
                for _ in range(5):
                    sums = residual.clone()
                    begun = group.begin_gemv_all_reduce(x, weight, None)
                    if begun is None:
                        raise AssertionError("the GEMV does not send its results")
                    begun.add_norm(sums, norm, EPS, 1.0, None)
                    wrong += (begun.x != expected).sum() + (sums != expected_sums).sum()
                ones = torch.ones(3, 8192, dtype=torch.bfloat16, device="cuda")
                group.all_reduce(ones)
                wrong += (ones != WORLD).sum()
        captured.append((graph, wrong, x, weight, expected, expected_sums))
    for number in range(2000):
        if (number + rank) % 50 == 0:
            torch.cuda._sleep(2_000_000)
        captured[number % len(captured)][0].replay()
    assert [wrong.item() for _, wrong, *_ in captured] == [0] * len(captured)
    group.check()
    group.close()


def check_absent(rank: int, folder: Path) -> None:
    """Rank 1 is killed; the others wait in a graph, for as long as they may and no longer, and never again."""
    group = _join(rank, folder)
    _only(group, Algorithm.ONE_SHOT)
    x = torch.ones(4, 8192, dtype=torch.bfloat16, device="cuda")
    group.all_reduce(x)
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        for _ in range(20):
            group.all_reduce(x)
    group.limit_waits(2.0)
    graph.replay()
    torch.cuda.synchronize()
    group.check()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(1)  # rank 1 is gone by then, or does not come either
    begin = time.monotonic()
    graph.replay()
    torch.cuda.synchronize()
    waited = time.monotonic() - begin
    with pytest.raises(EngineFailed, match="timed out waiting"):
        group.check()
    begin = time.monotonic()
    graph.replay()
    torch.cuda.synchronize()
    assert 1.5 < waited < 5, waited
    assert time.monotonic() - begin < 0.5
    group.close()
    (folder / "found").touch()
