"""Host cost of a launch outside a graph: through `Launcher`, beside plain Triton and torch in the same run.

    python -m benchmark.kernels.launch > benchmark/results/launch.json

Needs a CUDA device. Microseconds of host time a call, for decode attention (22 arguments and constants) and
add_rms_norm at one token, while the device keeps up; the operator's own dispatch and checks are counted apart.
"""

import statistics
import sys
import time
from collections.abc import Callable

import torch

from text_generation_kernels.runtime import launch as launching

from .attention import prepare_decodes
from .norms import add_rms_norm
from .report import of_plan, print_rows
from .timing import GPU_PLAN, Row

CALLS, REPEATS = 200, 20


def host_microseconds(call: Callable[[], object]) -> float:
    """Median over repeats of the host's time for one call; the device is idle at the start of each."""
    times: list[float] = []
    for _ in range(REPEATS):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(CALLS):
            call()
        times.append((time.perf_counter() - begin) / CALLS)
    return statistics.median(times[1:]) * 1e6


def plain(self: launching.Launcher, grid: tuple[int, ...], pointers, sizes=(), values=(), **constants: object) -> None:  # pyright: ignore
    """What `Launcher` stands in for."""
    self._kernel[grid](*pointers, *sizes, *values, PDL=True, launch_pdl=True, **constants)  # pyright: ignore


def rows() -> list[Row]:
    """One row for each operator and way to launch it."""
    _, norm = add_rms_norm(GPU_PLAN, 1, 4096)
    _, attention, _ = prepare_decodes(GPU_PLAN, [100])
    cases = {"add_rms_norm": lambda: norm(0), "decode_attention": lambda: attention(0)}
    cached = launching.Launcher.__call__
    result: list[Row] = []
    for name, call in cases.items():
        ways: dict[str, Callable[..., None]] = {"launcher": cached, "triton": plain, "none": lambda *_, **__: None}
        for way, launch in ways.items():
            launching.Launcher.__call__ = launch
            result.append({"operator": name, "launched_by": way, "host_microseconds": host_microseconds(call)})
    launching.Launcher.__call__ = cached
    x, out = torch.ones(2, 4096, device="cuda")

    def negate() -> None:
        torch.neg(x, out=out)

    torch_call = host_microseconds(negate)
    return [*result, {"operator": "torch.neg", "launched_by": "torch", "host_microseconds": torch_call}]


def main() -> None:
    """Prints one JSON object."""
    if not torch.cuda.is_available():
        sys.exit("no CUDA device")
    print_rows(rows(), benchmark="launch", **of_plan(GPU_PLAN))


if __name__ == "__main__":
    main()
