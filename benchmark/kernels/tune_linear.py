"""Chooses launch settings of `skinny_linear`, by measuring all candidates beside the library.

    python -m benchmark.kernels.tune_linear [--write] > measured.json

Needs a CUDA device. For each padded number of tokens two compiled variants serve all matrices, because each costs a
second of start-up: the pair with the smallest sum of times, each as a ratio to the best time of its matrix. Then each
matrix gets the better of them with the number of splits that is best there, or the library where that is faster.
On Hopper cards another kernel computes 64 tokens without splits, whose tiles `tune_bf16_small.py` chooses: every
variant takes as long there, and only splits and the library are decided.
"""

import argparse
import dataclasses
import itertools
from collections.abc import Iterator, Mapping
from functools import partial

import torch
from torch import Tensor

from text_generation_kernels.matmul.bf16_small_hopper import bf16_small_hopper
from text_generation_kernels.matmul.ladder import SMALL_BATCH
from text_generation_kernels.matmul.skinny_linear import skinny_gemm
from text_generation_kernels.runtime.device import is_hopper, shared_kib
from text_generation_kernels.runtime.settings import nearest

from .matmul import gemm_seconds, library_gemm, make_weights
from .report import print_rows
from .settings import Times, Variant, best_variants, fastest, least, replace_settings
from .timing import GPU_PLAN, Row

# Outputs and inputs: Llama 3.1 8B on one GPU and on two, 70B on two and on four, Qwen3 0.6B.
SHAPES = [
    *((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336), (128256, 4096)),
    *((3072, 4096), (4096, 2048), (14336, 4096), (4096, 7168)),
    *((5120, 8192), (8192, 4096), (28672, 8192), (8192, 14336), (64128, 8192)),
    *((2560, 8192), (8192, 2048), (14336, 8192), (8192, 7168), (32064, 8192)),
    *((4096, 1024), (1024, 2048), (6144, 1024), (1024, 3072)),
]
TOKENS = (16, 32, 64)
SPLITS = (1, 2, 4)
NAMES = ("BLOCK_N", "BLOCK_K", "num_warps", "num_stages")
"""Of a variant's values."""
SHARED_LIMIT = 220 << 10
PLAN = dataclasses.replace(GPU_PLAN, calls=24, replays=7)


def variants(tokens: int) -> list[Variant]:
    """Candidates whose tiles fit in shared memory and keep 40 KiB or more of the matrix in flight."""
    return [
        (block_n, block_k, warps, stages)
        for block_n, block_k, warps, stages in itertools.product((64, 128), (64, 128, 256), (4, 8), (4, 6))
        if (block_n + tokens) * block_k * 2 * stages <= SHARED_LIMIT
        and block_n * block_k * 2 * (stages - 1) >= 40 << 10
        and not (block_n == 64 and warps == 8)
    ]


def settings(variant: Variant, splits: int) -> dict[str, int]:
    """As in the data file."""
    return {**dict(zip(NAMES, variant, strict=True)), "splits": splits}


def measure(weights: Tensor, tokens: int) -> Times:
    """Microseconds of each variant and number of splits."""
    times: Times = {}
    for variant, splits in itertools.product(variants(tokens), SPLITS):
        outputs, inputs = weights.shape[1:]
        if inputs % variant[1] or (splits > 1 and outputs > 16384):
            continue
        config = settings(variant, splits)
        gemm = partial(_gemm, config)
        times.setdefault(variant, {})[splits] = gemm_seconds(PLAN, weights, tokens, gemm) * 1e6
    return times


def _gemm(config: Mapping[str, int], x: Tensor, weight: Tensor, out: Tensor) -> None:
    if config["splits"] == 1 and len(x) == SMALL_BATCH and is_hopper(x.device):
        sizes = {"outputs": len(weight), "inputs": x.shape[1]}
        tiles = nearest("bf16_small_hopper", gated=False, splits=1, **sizes)
        bf16_small_hopper(x, weight, None, out, None, {**tiles, "splits": 1})
    else:
        skinny_gemm(x, weight, None, out, None, config)


def choose(times: dict[tuple[int, int], Times], library: dict[tuple[int, int], float], tokens: int) -> Iterator[Row]:
    """One entry for each matrix, as in the data file, with times beside."""
    pair = best_variants(times, 2)
    for shape, by_variant in times.items():
        time, variant, splits = fastest(by_variant, pair)
        use_library = library[shape] <= time
        yield {
            "outputs": shape[0],
            "inputs": shape[1],
            "tokens": tokens,
            "faster": "cublas" if use_library else None,
            **settings(variant, splits),
            "microseconds": time,
            "library_microseconds": library[shape],
            "best_microseconds": least(by_variant),
        }


def write(rows: list[Row]) -> None:
    """Replaces the entries of this card's class in the data file."""
    keys, configs = ("outputs", "inputs", "tokens"), (*NAMES, "splits")
    shared = {"shared_kib": shared_kib(GPU_PLAN.device)}
    entries = [
        {"key": shared | {key: row[key] for key in keys}}
        | ({"faster": row["faster"]} if row["faster"] else {"config": {name: row[name] for name in configs}})
        for row in rows
    ]
    replace_settings("skinny_linear", entries, lambda key: shared.items() <= key.items())


def main() -> None:
    """Prints one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="replace the data file")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("no CUDA device")
    times: dict[int, dict[tuple[int, int], Times]] = {tokens: {} for tokens in TOKENS}
    library: dict[int, dict[tuple[int, int], float]] = {tokens: {} for tokens in TOKENS}
    for shape in SHAPES:
        weights = make_weights(PLAN, *shape)
        for tokens in TOKENS:
            library[tokens][shape] = gemm_seconds(PLAN, weights, tokens, library_gemm) * 1e6
            times[tokens][shape] = measure(weights, tokens)
    rows = [row for tokens in TOKENS for row in choose(times[tokens], library[tokens], tokens)]
    if arguments.write:
        write(rows)
    print_rows(rows, device=torch.cuda.get_device_name())


if __name__ == "__main__":
    main()
