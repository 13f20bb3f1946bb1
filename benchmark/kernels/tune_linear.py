"""Chooses launch settings of `skinny_linear`, by measuring all candidates beside the library.

    python benchmark/kernels/tune_linear.py [--write] > benchmark/results/tune_linear.json

Needs a CUDA device. For each padded number of tokens two compiled variants serve all matrices, because each costs a
second of start-up: the pair with the smallest sum of times, each as a ratio to the best time of its matrix. Then each
matrix gets the better of them with the number of splits that is best there, or the library where that is faster.
On Hopper cards another kernel computes 64 tokens without splits, whose tiles `tune_bf16_small.py` chooses: every
variant takes as long there, and only splits and the library are decided.
"""

import argparse
import dataclasses
import importlib
import itertools
import json
import sys
from collections.abc import Iterator

import torch
from _settings import replace_settings
from _timing import GPU_PLAN, Row
from skinny_linear import library_gemm, make_weights, seconds
from torch import Tensor

import text_generation_kernels as kernels
from text_generation_kernels.runtime.device import shared_kib

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
Variant = tuple[int, int, int, int]
"""BLOCK_N, BLOCK_K, num_warps, num_stages."""
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
    names = ("BLOCK_N", "BLOCK_K", "num_warps", "num_stages")
    return {**dict(zip(names, variant, strict=True)), "splits": splits}


def measure(weights: Tensor, tokens: int) -> dict[Variant, dict[int, float]]:
    """Microseconds of each variant and number of splits."""
    module = importlib.import_module("text_generation_kernels.matmul.skinny_linear")
    times: dict[Variant, dict[int, float]] = {}
    for variant, splits in itertools.product(variants(tokens), SPLITS):
        outputs, inputs = weights.shape[1:]
        if inputs % variant[1] or (splits > 1 and outputs > 16384):
            continue
        config = settings(variant, splits)
        module.nearest = lambda *_, config=config, **__: config
        call = lambda x, weight, out: kernels.skinny_linear(x, weight, None, out)  # noqa: E731
        times.setdefault(variant, {})[splits] = seconds(PLAN, weights, tokens, call) * 1e6
    return times


def choose(
    times: dict[tuple[int, int], dict[Variant, dict[int, float]]], library: dict[tuple[int, int], float], tokens: int
) -> Iterator[Row]:
    """One entry for each matrix, as in the data file, with times beside."""
    best = {shape: min(min(each.values()) for each in by_variant.values()) for shape, by_variant in times.items()}

    def cost(pair: tuple[Variant, Variant]) -> float:
        return sum(
            min(min(by_variant.get(variant, {0: 1e9}).values()) for variant in pair) / best[shape]
            for shape, by_variant in times.items()
        )

    pair = min(itertools.combinations(variants(tokens), 2), key=cost)
    for shape, by_variant in times.items():
        candidates = [
            (time, variant, splits)
            for variant in pair
            if variant in by_variant
            for splits, time in by_variant[variant].items()
        ]
        time, variant, splits = min(candidates)
        use_library = library[shape] <= time
        yield {
            "outputs": shape[0],
            "inputs": shape[1],
            "tokens": tokens,
            **settings(variant, 0 if use_library else splits),
            "microseconds": time,
            "library_microseconds": library[shape],
            "best_microseconds": best[shape],
        }


def write(rows: list[Row]) -> None:
    """Replaces the entries of this card's class in the data file."""
    keys, configs = ("outputs", "inputs", "tokens"), settings((0, 0, 0, 0), 0)
    shared = {"shared_kib": shared_kib(GPU_PLAN.device)}
    entries = [{"key": shared | {k: row[k] for k in keys}, "config": {k: row[k] for k in configs}} for row in rows]
    replace_settings("skinny_linear", entries, lambda key: shared.items() <= key.items())


def main() -> None:
    """Prints one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="replace the data file")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("no CUDA device")
    times: dict[int, dict[tuple[int, int], dict[Variant, dict[int, float]]]] = {tokens: {} for tokens in TOKENS}
    library: dict[int, dict[tuple[int, int], float]] = {tokens: {} for tokens in TOKENS}
    for shape in SHAPES:
        weights = make_weights(PLAN, *shape)
        for tokens in TOKENS:
            library[tokens][shape] = seconds(PLAN, weights, tokens, library_gemm) * 1e6
            times[tokens][shape] = measure(weights, tokens)
    rows = [row for tokens in TOKENS for row in choose(times[tokens], library[tokens], tokens)]
    if arguments.write:
        write(rows)
    head = json.dumps({"command": "python " + " ".join(sys.argv), "device": torch.cuda.get_device_name()})
    lines = ",\n".join(f"  {json.dumps(row)}" for row in rows)
    sys.stdout.write(f'{head[:-1]}, "rows": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    main()
