"""Chooses launch settings of `weight_only_linear`, by measuring all candidates beside the matrix in 16 bits.

    python -m benchmark.kernels.tune_weight_only [--seconds N] [--bits 4] > measured.json
    python -m benchmark.kernels.tune_weight_only --choose measured.json > chosen.json

The first needs a CUDA device. For few tokens a GEMM is timed together with the norm before it, as it runs in a model,
because prefetched codes count only there. The second replaces the entries of cards with 227 KiB, of these matrices and
numbers of tokens, in the data file. For each padded number of tokens two compiled variants serve all matrices, as in
tune_linear.py; for many tokens each matrix gets one of them, or a 16-bit matrix where that is faster.
"""

import argparse
import dataclasses
import itertools
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

import text_generation_kernels as kernels
from text_generation_kernels.matmul.dequantise_matmul import dequantise_matmul
from text_generation_kernels.matmul.weight_only_gemm import weight_only_gemm
from text_generation_kernels.runtime.launch import compile_only

from .matmul import sixteen_bits
from .report import print_rows, read_rows
from .settings import Times, Variant, best_variants, fastest, least, replace_settings
from .timing import GPU_PLAN, Row, seconds_per_call
from .weight_only_linear import make_weights

# Outputs and inputs: Llama 3.1 8B on one GPU and on two, 70B on one.
SHAPES = [
    *((28672, 4096), (4096, 14336), (6144, 4096), (4096, 4096)),
    *((57344, 8192), (8192, 28672), (10240, 8192), (8192, 8192)),
    *((14336, 4096), (4096, 7168), (3072, 4096), (4096, 2048)),
]
KINDS = {4: "symmetric", 8: "int8"}
SPLITS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 14)
NAMES = ("BLOCK_M", "BLOCK_N", "SWAP", "FOLD", "AHEAD", "num_warps", "num_stages", "ROWS", "LATER", "PROGRAMS")
"""Of a variant's values; the last ones may be left out."""
FEW = 64
"""The most tokens that are timed with the norm before the GEMM."""
# By bits and padded tokens. Left out after first sweeps: more stages, a limit of registers, 256 outputs, tiles of 128
# tokens, and 256 inputs at a time for matrix instructions.
_FEW_TOKENS = [(32, 0, 0, 1, 1, 3), (64, 0, 0, 0, 2, 2), (64, 0, 0, 0, 2, 3), (64, 0, 0, 1, 2, 2), (64, 0, 0, 2, 2, 3)]
_SOME_TOKENS = [(64, 0, 1, 0, 4, 3), (128, 0, 1, 0, 4, 3), (128, 0, 1, 0, 4, 2)]
_LATER = [(128, 0, 0, 0, 4, 4, 128, 3), (128, 0, 1, 0, 4, 3, 128, 3), (128, 0, 1, 0, 4, 2, 128, 2)]
_EIGHT_BITS = [(64, 0, 0, 0, 2, 2), (64, 0, 0, 0, 2, 3), (64, 0, 0, 0, 4, 3), (64, 1, 0, 0, 4, 3)]
VARIANTS: dict[tuple[int, int], list[Variant]] = {
    (4, 8): [(8, *each) for each in [*_FEW_TOKENS, (64, 0, 0, 2, 2, 2), (64, 0, 0, 2, 4, 2)]],
    (4, 16): [(16, *each) for each in [*_FEW_TOKENS, (64, 0, 0, 0, 2, 2, 64, 0, 4), _LATER[0]]],
    (4, 32): [(32, *each) for each in [*_SOME_TOKENS, *_LATER]],
    (4, 64): [(64, *each) for each in [*_SOME_TOKENS, *_LATER]],
    (4, 128): [(64, *each) for each in [*_SOME_TOKENS, *_LATER]],
    **{(4, tokens): [(64, *each) for each in _SOME_TOKENS] for tokens in (256, 512)},
    (8, 8): [(8, *each) for each in _EIGHT_BITS],
    (8, 16): [(16, *each) for each in _EIGHT_BITS],
    (8, 32): [(32, 64, 0, 0, 0, 4, 2), (32, 64, 0, 0, 0, 4, 3), (32, 128, 0, 0, 0, 4, 2)],
    **{(8, tokens): [(64, 64, 0, 0, 0, 4, 2), (64, 128, 0, 0, 0, 4, 2)] for tokens in (64, 128, 256)},
}
PLAN = dataclasses.replace(GPU_PLAN, calls=24, replays=5)
PROGRAMS = (120, 1800)
"""How many thread blocks a launch may have where the inputs are split."""


def settings(variant: Variant, splits: int) -> dict[str, int]:
    """As in the data file."""
    return {**dict(zip(NAMES, variant, strict=False)), "splits": splits}


def candidates(shape: tuple[int, int], tokens: int, variants: list[Variant]) -> Iterator[tuple[Variant, int]]:
    """Variants and numbers of splits that may be the fastest."""
    for variant, splits in itertools.product(variants, SPLITS):
        config = settings(variant, splits)
        rows = config.get("ROWS", config["BLOCK_N"])
        programs = -(-tokens // config["BLOCK_M"]) * -(-shape[0] // rows) * splits
        if splits == 1 or (PROGRAMS[0] <= programs <= PROGRAMS[1] and splits <= shape[1] // 256):
            yield variant, splits


def measure(bits: int, weights: list[kernels.PackedMatrix], tokens: int, until: float) -> Iterator[Row]:
    """The times of one matrix."""
    outputs = weights[0].outputs
    inputs = weights[0].packed.shape[1] * (8 if bits == 4 else 1)
    shape = outputs, inputs
    given = torch.randn(tokens, inputs, dtype=PLAN.dtype, device=PLAN.device)
    ones, x = torch.ones_like(given[0]), torch.empty_like(given)
    out = torch.empty(tokens, outputs, dtype=PLAN.dtype, device=PLAN.device)

    def timed(gemm: Callable[[kernels.PackedMatrix], object]) -> float:
        def run(index: int) -> None:
            if tokens <= FEW:
                kernels.rms_norm(given, ones, 1e-6, x)
            gemm(weights[index])

        return seconds_per_call(PLAN, run, len(weights)) * 1e6

    def with_variant(variant: Variant, splits: int) -> Callable[[kernels.PackedMatrix], object]:
        config = settings(variant, splits)
        return lambda weight: weight_only_gemm(x, weight, None, out, config)

    head: Row = {"bits": bits, "outputs": outputs, "inputs": inputs, "tokens": tokens}
    kernels.rms_norm(given, ones, 1e-6, x)
    with compile_only(4):
        for variant in VARIANTS[bits, tokens]:
            with_variant(variant, 1)(weights[0])
    other = sixteen_bits(PLAN, outputs, inputs, tokens) * 1e6
    yield head | {"sixteen_bits_microseconds": other}
    if tokens > FEW:
        whole = lambda weight: dequantise_matmul(x, weight, None, out)  # noqa: E731
        yield head | {"faster": "dequantise_matmul", "microseconds": timed(whole)}
    for variant, splits in candidates(shape, tokens, VARIANTS[bits, tokens]):
        if time.monotonic() > until:
            return
        yield head | settings(variant, splits) | {"microseconds": timed(with_variant(variant, splits))}


def choose(rows: list[Row]) -> Iterator[Row]:
    """One entry for each matrix, as in the data file, with times beside."""
    of_tokens: dict[tuple[int, int], list[Row]] = {}
    for each in rows:
        of_tokens.setdefault((int(each["bits"]), int(each["tokens"])), []).append(each)
    for (bits, tokens), own in of_tokens.items():
        times: dict[tuple[int, int], Times] = {}
        others: dict[tuple[int, int], Row] = {}
        for each in own:
            shape = int(each["outputs"]), int(each["inputs"])
            if "splits" in each:
                variant = tuple(int(each[name]) for name in NAMES if name in each)
                times.setdefault(shape, {}).setdefault(variant, {})[int(each["splits"])] = float(each["microseconds"])
            elif "faster" in each:
                others.setdefault(shape, {})["matrix_microseconds"] = each["microseconds"]
            else:
                others.setdefault(shape, {})["sixteen_bits_microseconds"] = each["sixteen_bits_microseconds"]
        pair = best_variants(times, 2)
        for shape, by_variant in times.items():
            taken, variant, splits = fastest(by_variant, pair)
            found: Row = dict(settings(variant, splits))
            matrix = float(others.get(shape, {}).get("matrix_microseconds", taken))
            if matrix < taken:
                found, taken = {"faster": "dequantise_matmul"}, matrix
            head: Row = {"bits": bits, "outputs": shape[0], "inputs": shape[1], "tokens": tokens}
            best = {"microseconds": taken, "best_microseconds": least(by_variant)}
            yield head | found | best | others.get(shape, {})


def write(rows: list[Row]) -> None:
    """Replaces the entries of these matrices and numbers of tokens for this card's class in the data file."""
    keys, configs = ("bits", "outputs", "inputs", "tokens"), (*NAMES, "splits")
    entries = [
        {
            "key": {"shared_kib": 227} | {key: row[key] for key in keys} | {"table": False},
            **(
                {"faster": row["faster"]}
                if "faster" in row
                else {"config": {name: row[name] for name in configs if name in row}}
            ),
        }
        for row in rows
    ]
    replace_settings("weight_only_linear", entries)


def main() -> None:
    """Prints one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=600.0, help="stop measuring after so long")
    parser.add_argument("--bits", type=int, nargs="+", default=list(KINDS), choices=list(KINDS))
    parser.add_argument("--tokens", type=int, nargs="+", help="padded numbers of tokens; all by default")
    parser.add_argument("--shapes", type=int, nargs=2, default=(0, len(SHAPES)), help="from which to which")
    parser.add_argument("--choose", type=Path, nargs="+", help="write the data file from what was measured")
    arguments = parser.parse_args()
    if arguments.choose:
        device, measured = read_rows(arguments.choose)
        rows = list(choose(measured))
        write(rows)
    elif not torch.cuda.is_available():
        parser.error("no CUDA device")
    else:
        until = time.monotonic() + arguments.seconds
        wanted = [key for key in VARIANTS if key[0] in arguments.bits and key[1] in (arguments.tokens or (key[1],))]
        rows = []
        for shape, bits in [(shape, bits) for shape in SHAPES[slice(*arguments.shapes)] for bits in arguments.bits]:
            weights = make_weights(PLAN, KINDS[bits], *shape)
            for tokens in (tokens for of_bits, tokens in wanted if of_bits == bits and time.monotonic() < until):
                rows += measure(bits, weights, tokens, until)
        device = torch.cuda.get_device_name()
    print_rows(rows, device=device)


if __name__ == "__main__":
    main()
