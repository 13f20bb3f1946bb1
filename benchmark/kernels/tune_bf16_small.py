"""Chooses tiles of 16-bit GEMMs of 33 to 64 tokens on Hopper cards.

    python -m benchmark.kernels.tune_bf16_small > measured.json
    python -m benchmark.kernels.tune_bf16_small --choose measured.json

The first needs a CUDA device of compute capability 9.0, and times every variant with 64 tokens of random matrices, one
after the other. The second writes the data file. A variant costs a model a compilation when it starts, so the fewest
are taken that come within `TOLERANCE` of the best time of each matrix.
"""

import argparse
import dataclasses
import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from text_generation_kernels.matmul.bf16_small_hopper import bf16_small_hopper
from text_generation_kernels.runtime.launch import compile_only

from .matmul import make_weights
from .report import print_rows, read_rows
from .settings import replace_settings
from .timing import GPU_PLAN, seconds_per_call

TOKENS = 64


class Matrix(NamedTuple):
    """Key of the data file; `gated`: up rows follow gate rows."""

    gated: bool
    splits: int
    outputs: int
    inputs: int


class Variant(NamedTuple):
    """As in the data file."""

    ROWS: int
    BLOCK_K: int
    STAGES: int
    X_STAGES: int


WHOLE = [
    *((1024, 3072), (6144, 1024), (6144, 4096), (7168, 5120), (8192, 2048), (8192, 4096), (8192, 14336)),
    *((10240, 8192), (14336, 4096), (18432, 4096), (32064, 8192), (49152, 2048), (128256, 4096), (151936, 896)),
    (152064, 3584),
]
NARROW = [
    *((3072, 3072), (3584, 3584), (3584, 18944), (4096, 4096), (4096, 14336), (4608, 3584)),
    *((5120, 5120), (5120, 8192), (5120, 13824), (5120, 27648)),
]
GATED = [
    *((2816, 512), (9728, 896), (11264, 2048), (14336, 8192), (16384, 2048), (19456, 2560), (22016, 4096)),
    *((24576, 4096), (27648, 5120), (28672, 4096), (28672, 8192), (34816, 5120), (37888, 3584), (55296, 5120)),
    (57344, 8192),
]
MATRICES = [
    *(Matrix(False, 1, *shape) for shape in WHOLE),
    *(Matrix(False, splits, *shape) for shape in NARROW for splits in (1, 2, 3, 4)),
    *(Matrix(True, 1, *shape) for shape in GATED),
]
ROWS = (32, 64, 72, 80, 128, 144)
SHARES_KIB = (220, 110, 73)
"""Shared memory of a thread block where one, two or three are on an SM."""
TOLERANCE = 1.01
PLAN = dataclasses.replace(GPU_PLAN, calls=24, replays=7)


def variants(gated: bool) -> Iterator[Variant]:
    """Candidates: as many tiles as there is room for."""
    for rows, block_k, x_stages, kib in itertools.product(ROWS, (64, 128), (4, 6, 8), SHARES_KIB):
        room = (kib << 10) - x_stages * TOKENS * block_k * 2
        stages = room // (rows * block_k * 2 * (1 + gated))
        if 3 <= stages <= 10:
            yield Variant(rows, block_k, stages, x_stages)


def measure(matrix: Matrix) -> dict[Variant, float]:
    """Microseconds of each variant."""
    gated, splits, outputs, inputs = matrix
    weights = make_weights(PLAN, outputs, inputs)
    x = torch.randn(TOKENS, inputs, dtype=PLAN.dtype, device=PLAN.device)
    out = x.new_empty(TOKENS, outputs // (1 + gated))
    if splits > 1:
        out = torch.empty(splits, *out.shape, device=PLAN.device)

    def run(variant: Variant, weight: Tensor) -> None:
        settings = {**variant._asdict(), "splits": splits}
        bf16_small_hopper(x, weight, None, out, "silu" if gated else None, settings)

    def microseconds(variant: Variant) -> float:
        return round(seconds_per_call(PLAN, lambda index: run(variant, weights[index]), len(weights)) * 1e6, 2)

    candidates = list(variants(gated))
    with compile_only(16):
        for variant in candidates:
            run(variant, weights[0])
    return {variant: microseconds(variant) for variant in candidates}


def choose(times: Mapping[Matrix, Mapping[Variant, float]]) -> dict[Matrix, Variant]:
    """Variants that are good enough for as many matrices as any, until each has one."""
    fits = {
        matrix: {variant for variant, time in by_variant.items() if time <= TOLERANCE * min(by_variant.values())}
        for matrix, by_variant in times.items()
    }
    chosen: dict[Matrix, Variant] = {}
    while len(chosen) < len(fits):
        left = {matrix: each for matrix, each in fits.items() if matrix not in chosen}
        variant = max(sorted(set().union(*left.values())), key=lambda one: sum(one in each for each in left.values()))
        chosen |= {matrix: variant for matrix, each in left.items() if variant in each}
    return chosen


def write(chosen: dict[Matrix, Variant]) -> None:
    """Replaces the data file."""
    entries = [{"key": matrix._asdict(), "config": variant._asdict()} for matrix, variant in sorted(chosen.items())]
    replace_settings("bf16_small_hopper", entries, lambda _: True)


def main() -> None:
    """Prints one JSON object, or writes the data file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--choose", type=Path, metavar="FILE", help="write the data file from what was measured")
    arguments = parser.parse_args()
    if arguments.choose:
        _, rows = read_rows([arguments.choose])
        write(
            choose({Matrix(*row["matrix"]): {Variant(*sizes): time for *sizes, time in row["forms"]} for row in rows})
        )
        return
    if not torch.cuda.is_available():
        parser.error("no CUDA device")
    rows = [
        {"matrix": matrix, "forms": [[*variant, time] for variant, time in measure(matrix).items()]}
        for matrix in MATRICES
    ]
    forms = [*Variant._fields, "microseconds"]
    print_rows(rows, device=torch.cuda.get_device_name(), matrix=Matrix._fields, forms=forms)


if __name__ == "__main__":
    main()
