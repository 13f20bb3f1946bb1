"""Chooses launch settings of `weight_only_linear` for many tokens on Hopper cards, or a matrix in 16 bits.

    python -m benchmark.kernels.tune_w4a16_large [--seconds N] > measured.json
    python -m benchmark.kernels.tune_w4a16_large --choose measured.json

The first needs a CUDA device of compute capability 9.0. The second writes the entries of the matrices that were
measured into the data file.
"""

import argparse
import dataclasses
import itertools
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from text_generation_kernels.matmul.dequantise_matmul import dequantise_matmul
from text_generation_kernels.matmul.w4a16_large_hopper import w4a16_large_hopper

from .matmul import sixteen_bits
from .report import print_rows, read_rows
from .settings import replace_settings
from .timing import GPU_PLAN, Row, seconds_per_call
from .tune_weight_only import SHAPES
from .weight_only_linear import make_weights

NAMES = ("BLOCK_M", "BLOCK_N", "num_warps", "num_stages")
VARIANTS = ((128, 128, 8, 6), (256, 128, 8, 4), (256, 128, 8, 6))
"""In the order of `NAMES`: each is compiled at every start."""
TOKENS = (128, 256, 512, 1024, 2048)
LEAST, MOST = 256, 1024
"""For fewer tokens the other kernel is as fast or faster, for more the library is."""
SPLITS = (1, 2, 3, 4)
PROGRAMS = (60, 400)
"""How many thread blocks a launch may have where the inputs are split."""
PLAN = dataclasses.replace(GPU_PLAN, calls=24, replays=7)


def measure(outputs: int, inputs: int, until: float) -> Iterator[Row]:
    """The times of one matrix: as it is in 16 bits, dequantised in each step, and by each candidate."""
    weights = make_weights(PLAN, "symmetric", outputs, inputs)
    for tokens in TOKENS:
        if time.monotonic() > until:
            return
        x = torch.randn(tokens, inputs, dtype=PLAN.dtype, device=PLAN.device)
        out = torch.empty(tokens, outputs, dtype=PLAN.dtype, device=PLAN.device)
        head: Row = {"outputs": outputs, "inputs": inputs, "tokens": tokens}
        head["sixteen_bits_microseconds"] = round(sixteen_bits(PLAN, outputs, inputs, tokens) * 1e6, 2)

        def with_settings(index: int, config: dict[str, int]) -> None:
            w4a16_large_hopper(x, weights[index], None, out, config)  # noqa: B023 - called in this round alone

        def whole(index: int) -> None:
            dequantise_matmul(x, weights[index], None, out)  # noqa: B023

        yield head | {"faster": "dequantise_matmul", "microseconds": microseconds(whole, len(weights))}
        for variant, splits in itertools.product(VARIANTS, SPLITS):
            programs = -(-tokens // variant[0]) * -(-outputs // variant[1]) * splits
            if tokens < variant[0] or (splits > 1 and not PROGRAMS[0] <= programs <= PROGRAMS[1]):
                continue
            config = {**dict(zip(NAMES, variant, strict=True)), "splits": splits}
            call = lambda index, config=config: with_settings(index, config)  # noqa: E731
            yield head | config | {"microseconds": microseconds(call, len(weights))}


def microseconds(call: Callable[[int], None], count: int) -> float:
    """Median time of a call, each with the next of `count` matrices."""
    return round(seconds_per_call(PLAN, call, count) * 1e6, 2)


def write(rows: list[Row]) -> None:
    """The fastest algorithm for each matrix and number of tokens."""
    keys = ("outputs", "inputs", "tokens")
    best: dict[tuple[object, ...], Row] = {}
    for row in sorted(rows, key=lambda row: float(row["microseconds"])):
        if int(row["tokens"]) < LEAST or (int(row["tokens"]) > MOST and "splits" in row):
            continue
        best.setdefault(tuple(row[key] for key in keys), row)
    entries = [
        {"key": {key: row[key] for key in keys}}
        | (
            {"faster": row["faster"]}
            if "faster" in row
            else {"config": {name: row[name] for name in (*NAMES, "splits")}}
        )
        for _, row in sorted(best.items(), key=lambda item: str(item[0]))
    ]
    replace_settings("w4a16_large_hopper", entries)


def main() -> None:
    """Prints one JSON object, or writes the data file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=600.0, help="stop measuring after so long")
    parser.add_argument("--choose", type=Path, nargs="+", help="write the data file from what was measured")
    arguments = parser.parse_args()
    if arguments.choose:
        write(read_rows(arguments.choose)[1])
        return
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
        parser.error("no CUDA device of compute capability 9.0")
    until = time.monotonic() + arguments.seconds
    rows = [row for shape in SHAPES for row in measure(*shape, until)]
    print_rows(rows, device=torch.cuda.get_device_name())


if __name__ == "__main__":
    main()
