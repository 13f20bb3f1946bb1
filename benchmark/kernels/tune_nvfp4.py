"""Times NVFP4 matrices of Llama 3.1 8B beside GPTQ's, and all launch settings of their kernels.

    python -m benchmark.kernels.tune_nvfp4 [--seconds N] [--tokens 1 8 ...] > measured.json
    python -m benchmark.kernels.tune_nvfp4 --choose measured.json > chosen.json
    python -m benchmark.kernels.tune_nvfp4 --dry-run

The first needs a Hopper card. A GEMM is timed together with the norm before it, as it runs in a model; for one token
gate and up with their activation. Rows named "gptq" and "nvfp4" are what the operator launches for codes in groups of
128 and for NVFP4. The second replaces the entries of the data file of `nvfp4_small_hopper`.
"""

import argparse
import dataclasses
import itertools
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor

import text_generation_kernels as kernels
from text_generation_kernels.matmul.group_quantisation import BLOCK
from text_generation_kernels.matmul.nvfp4_gemv import launch_nvfp4_gemv
from text_generation_kernels.matmul.nvfp4_small_hopper import nvfp4_small_hopper
from text_generation_kernels.matmul.weight_only_gemm import weight_only_gemm
from text_generation_kernels.runtime.launch import compile_only

from .report import of_plan, print_rows, read_rows
from .settings import replace_settings
from .timing import DRY_PLAN, GPU_PLAN, Plan, Row, seconds_per_call
from .weight_only_linear import make_weights

SHAPES = [(4096, 4096), (6144, 4096), (28672, 4096), (4096, 14336)]
GATED = 28672
TOKENS = (1, 2, 8, 16, 32, 64)
SMALL = (8, 16, 32)
"""Padded numbers of tokens of `nvfp4_small_hopper`."""
_GEMVS = (
    *((16, 8, 1, 80), (16, 8, 2, 80), (16, 8, 2, 128), (16, 4, 2, 80), (16, 4, 4, 128)),
    *((32, 8, 1, 128), (32, 8, 2, 128), (32, 8, 2, 255), (32, 4, 2, 128)),
)
"""Outputs of a thread block, warps, blocks that each prefetches, and registers of a thread."""
_SMALL = ((16, 4, 128), (16, 8, 128), (32, 4, 128), (32, 8, 128), (32, 8, 255), (64, 8, 255))
"""The same, but blocks that are prefetched."""
_FEW = 16
"""The most tokens of small tiles of `weight_only_gemm`."""
PLAN = dataclasses.replace(GPU_PLAN, calls=24, replays=7)
NAMES = ("BLOCK_M", "BLOCK_N", "num_warps", "maxnreg")
Launch = Callable[[Tensor, kernels.PackedMatrix, Tensor], object]


def _gemv(config: Mapping[str, int], activation: str | None) -> Launch:
    return lambda x, weight, out: launch_nvfp4_gemv(x, weight, None, out, activation, config)


def _small(config: Mapping[str, int]) -> Launch:
    return lambda x, weight, out: nvfp4_small_hopper(x, weight, None, out, config)


def _general(config: Mapping[str, int]) -> Launch:
    return lambda x, weight, out: weight_only_gemm(x, weight, None, out, config)


def candidates(inputs: int, tokens: int, activation: str | None) -> Iterator[tuple[str, dict[str, int], Launch]]:
    """Kernel, launch settings and launch of what may be the fastest."""
    if tokens == 1:
        for block_n, warps, ahead, registers in _GEMVS:
            steps = -(-inputs // (warps * BLOCK))
            config = {"BLOCK_N": block_n, "AHEAD": ahead, "STEPS": steps, "num_warps": warps, "maxnreg": registers}
            yield "nvfp4_gemv", config, _gemv(config, activation)
        return
    block_m = tokens
    for block_n, warps, registers in _SMALL:
        if block_m * block_n <= 2048:
            config = {"BLOCK_M": block_m, "BLOCK_N": block_n, "num_warps": warps, "maxnreg": registers}
            yield "nvfp4_small_hopper", config, _small(config)
    block_n, warps = (64, 2) if tokens <= _FEW else (128, 4)
    for later, splits in itertools.product((0,) if tokens <= _FEW else (0, 2), (1, 2, 4, 8)):
        config = {"BLOCK_M": block_m, "BLOCK_N": block_n, "SWAP": 0, "FOLD": 1, "AHEAD": 0}
        config |= {"num_warps": warps, "num_stages": 2, "LATER": later, "splits": splits}
        yield "weight_only_gemm", config, _general(config)


def measure(plan: Plan, shape: tuple[int, int], wanted: list[int], until: float) -> Iterator[Row]:
    """The times of one matrix."""
    outputs, inputs = shape
    weights = {kind: make_weights(plan, kind, outputs, inputs) for kind in ("symmetric", "nvfp4")}
    ones = torch.ones(inputs, dtype=plan.dtype, device=plan.device)
    for tokens in wanted:
        activation = "silu" if tokens == 1 and outputs == GATED else None
        given, x = plan.normal(tokens, inputs), plan.normal(tokens, inputs)
        out = plan.normal(tokens, outputs // (1 if activation is None else 2))

        def operator(x: Tensor, weight: kernels.PackedMatrix, out: Tensor, activation: str | None = activation) -> None:
            kernels.weight_only_linear(x, weight, None, None, out, activation)

        calls: list[tuple[str, str, dict[str, int], Launch]] = [
            ("gptq", "symmetric", {}, operator),
            ("nvfp4", "nvfp4", {}, operator),
        ]
        if not plan.dry_run:
            # 2 tokens have the settings of 8.
            some = () if tokens == 2 else candidates(inputs, tokens, activation)
            calls += [(name, "nvfp4", config, call) for name, config, call in some]
            kernels.rms_norm(given, ones, 1e-6, x)
            with compile_only(8):
                for _, kind, _, launch in calls:
                    launch(x, weights[kind][0], out)
        for name, kind, config, launch in calls:
            if time.monotonic() > until:
                return
            own = weights[kind]

            def run(
                index: int,
                launch: Launch = launch,
                own: list[kernels.PackedMatrix] = own,
                data: tuple[Tensor, Tensor, Tensor] = (given, x, out),
            ) -> None:
                given, x, out = data
                kernels.rms_norm(given, ones, 1e-6, x)
                launch(x, own[index], out)

            seconds = seconds_per_call(plan, run, len(own))
            head: Row = {"outputs": outputs, "inputs": inputs, "tokens": tokens, "kernel": name}
            yield head | config | {"microseconds": seconds * 1e6}


def choose(rows: list[Row]) -> Iterator[Row]:
    """The fastest of each matrix and padded number of tokens, as in the data file, with its time beside."""
    groups: dict[tuple[int, int, int], list[Row]] = {}
    for row in rows:
        if row["tokens"] in SMALL and row["kernel"] in ("nvfp4_small_hopper", "weight_only_gemm"):
            key = int(row["tokens"]), int(row["outputs"]), int(row["inputs"])
            groups.setdefault(key, []).append(row)
    for own in groups.values():
        yield min(own, key=lambda row: float(row["microseconds"]))


def write(rows: list[Row]) -> None:
    """Replaces the entries of these matrices and numbers of tokens in the data file."""
    keys = ("tokens", "outputs", "inputs")
    entries = [
        {
            "key": {key: row[key] for key in keys},
            **(
                {"config": {name: row[name] for name in NAMES}}
                if row["kernel"] == "nvfp4_small_hopper"
                else {"faster": row["kernel"]}
            ),
        }
        for row in rows
    ]
    replace_settings("nvfp4_small_hopper", entries)


def main() -> None:
    """Prints one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=120.0, help="stop measuring after so long")
    parser.add_argument("--tokens", type=int, nargs="+", default=list(TOKENS), choices=TOKENS)
    parser.add_argument("--dry-run", action="store_true", help="tiny sizes on CPU, no Triton")
    parser.add_argument("--choose", type=Path, nargs="+", help="write the data file from what was measured")
    arguments = parser.parse_args()
    if arguments.choose:
        device, measured = read_rows(arguments.choose)
        rows = list(choose(measured))
        write(rows)
        print_rows(rows, device=device)
        return
    plan = DRY_PLAN if arguments.dry_run else PLAN
    if not plan.dry_run and not torch.cuda.is_available():
        parser.error("no CUDA device: use --dry-run")
    until = time.monotonic() + arguments.seconds
    shapes = [(48, 512)] if plan.dry_run else SHAPES
    rows = [row for shape in shapes for row in measure(plan, shape, arguments.tokens, until)]
    print_rows(rows, **of_plan(plan))


if __name__ == "__main__":
    main()
