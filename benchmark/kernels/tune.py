"""Chooses launch settings of the operators that bandwidth bounds, by measuring all candidates.

    python -m benchmark.kernels.tune [--write] [operator ...] > measured.json

Needs a CUDA device. Prints the microseconds of one call for every size, setting and number of tokens, launch excluded.
Candidates give each thread 16 bytes of bfloat16 to load at once, or more. With `--write` the best setting of each size
goes into `kernels/text_generation_kernels/tuned/<operator>.json`. Best is the smallest sum of times, each as a ratio to
the best time of that number of tokens: one setting serves all of them, so that a kernel is compiled once.
"""

import argparse
import importlib
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch

from .norms import PREPARE
from .report import print_rows
from .settings import replace_settings
from .timing import GPU_PLAN, Row, seconds_per_call

Settings = dict[str, int]
TOKENS = (64, 4096)
ELEMENTS_OF_WARP = 32 * 8


class Space(NamedTuple):
    """What is tried."""

    sizes: list[tuple[Settings, Settings]]
    """Key of the data file, and the size that the operator's function in `norms.py` takes."""
    configs: list[Settings]
    tile: Callable[[Settings, Settings], int]
    """Elements that a thread block loads at once, from key and setting."""
    room: str = "norm"
    """Of the operator."""


def _grid(name: str, values: tuple[int, ...]) -> list[Settings]:
    return [{name: value, "num_warps": warps} for value in values for warps in (1, 2, 4, 8)]


_NORM = Space(
    sizes=[({"block": hidden}, {"hidden": hidden}) for hidden in (1024, 4096, 8192)],
    configs=[{"num_warps": warps} for warps in (2, 4, 8, 16)],
    tile=lambda key, _: key["block"],
)
SPACES = {
    "rms_norm": _NORM,
    "add_rms_norm": _NORM,
    "act_and_mul": Space(
        sizes=[({"n": n}, {"n": n}) for n in (1792, 14336)],
        configs=_grid("BLOCK", (512, 1024, 2048, 4096)),
        tile=lambda _, config: config["BLOCK"],
    ),
    "qkv_postprocess": Space(
        sizes=[
            ({"half": head_dim // 2}, {"heads": 32, "kv_heads": 8, "head_dim": head_dim}) for head_dim in (64, 128, 256)
        ],
        configs=_grid("BLOCK_HEADS", (4, 8, 16, 32)),
        tile=lambda key, config: key["half"] * config["BLOCK_HEADS"],
        room="attention",
    ),
}


def measure(name: str, size: Settings, configs: list[Settings]) -> Iterator[list[float]]:
    """Seconds of one call for each of TOKENS, for each setting."""
    operator = importlib.import_module(f"text_generation_kernels.{SPACES[name].room}.{name}")
    calls = [PREPARE[name](GPU_PLAN, tokens, **size) for tokens in TOKENS]
    for config in configs:
        operator.nearest = lambda *_, config=config, **__: config
        yield [seconds_per_call(GPU_PLAN, call, GPU_PLAN.buffers(num_bytes)) for num_bytes, call in calls]


def tune(name: str, write: bool) -> Iterator[Row]:
    """One row for each size and setting of an operator."""
    space = SPACES[name]
    entries = []
    for key, size in space.sizes:
        configs = [each for each in space.configs if space.tile(key, each) >= ELEMENTS_OF_WARP * each["num_warps"]]
        times = list(measure(name, size, configs))
        best = [min(column) for column in zip(*times, strict=True)]
        scores = [sum(time / least for time, least in zip(row, best, strict=True)) for row in times]
        entries.append({"key": key, "config": configs[scores.index(min(scores))]})
        for config, row in zip(configs, times, strict=True):
            microseconds = {f"microseconds_{tokens}": time * 1e6 for tokens, time in zip(TOKENS, row, strict=True)}
            yield {"operator": name, **size, **config, **microseconds}
    if write:
        replace_settings(name, entries, lambda _: True)


def main() -> None:
    """Prints one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("operators", nargs="*", default=list(SPACES), help="all by default")
    parser.add_argument("--write", action="store_true", help="replace the data files")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("no CUDA device")
    rows = [row for name in arguments.operators for row in tune(name, arguments.write)]
    print_rows(rows, device=torch.cuda.get_device_name())


if __name__ == "__main__":
    main()
