"""Chooses launch settings of `grouped_linear`, by measuring all candidates beside the matrix in 16 bits.

    python benchmark/kernels/tune_grouped.py [--write] > benchmark/results/tune_grouped.json

Needs a CUDA device. For each padded number of tokens two compiled forms serve all matrices, as in tune_linear.py.
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
from grouped_linear import make_weights, seconds, sixteen_bits

from text_generation_server.kernels._device import shared_kib

# Outputs and inputs: Llama 3.1 8B on one GPU and on two, 70B on one.
SHAPES = [
    *((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336)),
    *((3072, 4096), (4096, 2048), (14336, 4096), (4096, 7168)),
    *((57344, 8192), (8192, 28672), (10240, 8192), (8192, 8192)),
]
KINDS = {4: "symmetric", 8: "int8"}
SPLITS = (1, 2, 3, 4, 6, 8, 12)
NAMES = ("BLOCK_N", "SWAP", "FOLD", "num_warps", "num_stages")
Form = tuple[int, ...]
"""In the order of `NAMES`."""
# By bits and padded tokens. Left out after a first sweep: more stages, a limit of registers, 256 outputs, 8 warps.
FORMS: dict[tuple[int, int], list[Form]] = {
    (4, 8): [(64, 0, 0, 2, 2), (64, 0, 0, 2, 3), (64, 0, 0, 4, 2), (128, 0, 0, 4, 2), (128, 0, 0, 4, 3)],
    (4, 16): [(64, 0, 0, 2, 2), (64, 0, 0, 2, 3), (64, 1, 0, 2, 2), (128, 1, 1, 4, 3), (128, 0, 1, 4, 3)],
    (4, 32): [(64, 0, 1, 4, 3), (128, 0, 1, 4, 2), (128, 0, 1, 4, 3), (128, 1, 1, 4, 2)],
    (4, 64): [(64, 0, 1, 4, 2), (128, 0, 1, 4, 2), (128, 0, 1, 4, 3), (256, 0, 1, 8, 3)],
    (8, 8): [(64, 0, 0, 2, 2), (64, 0, 0, 2, 3), (64, 0, 0, 4, 2), (64, 0, 0, 4, 3), (128, 0, 0, 4, 2)],
    (8, 16): [(64, 0, 0, 2, 2), (64, 0, 0, 2, 3), (64, 1, 0, 4, 3)],
    (8, 32): [(64, 0, 0, 4, 2), (64, 0, 0, 4, 3), (128, 0, 0, 4, 2)],
    (8, 64): [(64, 0, 0, 4, 2), (128, 0, 0, 4, 2)],
}
PLAN = dataclasses.replace(GPU_PLAN, calls=24, replays=5)
Times = dict[Form, dict[int, float]]
"""Microseconds by form and number of parts."""


def settings(form: Form, splits: int) -> dict[str, int]:
    """As in the data file."""
    return {**dict(zip(NAMES, form, strict=True)), "splits": splits}


def measure(bits: int, shape: tuple[int, int]) -> Iterator[tuple[int, Times]]:
    """For each padded number of tokens, the times of one matrix."""
    module = importlib.import_module("text_generation_server.kernels.grouped_linear")
    weights = make_weights(PLAN, KINDS[bits], *shape)
    for tokens in (tokens for of_bits, tokens in FORMS if of_bits == bits):
        times: Times = {}
        for form, splits in itertools.product(FORMS[bits, tokens], SPLITS):
            tiles = -(-shape[0] // form[0])
            if splits > 1 and (tiles > 420 or tiles * splits > 1400):
                continue
            config = settings(form, splits)
            module.nearest = lambda *_, config=config, **__: config
            times.setdefault(form, {})[splits] = seconds(PLAN, weights, tokens) * 1e6
        yield tokens, times


def choose(bits: int, tokens: int, times: dict[tuple[int, int], Times]) -> Iterator[Row]:
    """One entry for each matrix, as in the data file, with times beside."""
    best = {shape: min(min(each.values()) for each in by_form.values()) for shape, by_form in times.items()}

    def cost(pair: tuple[Form, Form]) -> float:
        return sum(min(min(by_form[form].values()) for form in pair) / best[shape] for shape, by_form in times.items())

    pair = min(itertools.combinations(FORMS[bits, tokens], 2), key=cost)
    for shape, by_form in times.items():
        time, form, splits = min((time, form, splits) for form in pair for splits, time in by_form[form].items())
        yield {
            "bits": bits,
            "outputs": shape[0],
            "inputs": shape[1],
            "tokens": tokens,
            **settings(form, splits),
            "microseconds": time,
            "best_microseconds": best[shape],
            "sixteen_bits_microseconds": sixteen_bits(PLAN, *shape, tokens) * 1e6,
        }


def write(rows: list[Row]) -> None:
    """Replaces the entries of this card's class in the data file."""
    keys, configs = ("bits", "outputs", "inputs", "tokens"), (*NAMES, "splits")
    shared = {"shared_kib": shared_kib(GPU_PLAN.device)}
    entries = [{"key": shared | {k: row[k] for k in keys}, "config": {k: row[k] for k in configs}} for row in rows]
    replace_settings("grouped_linear", entries, lambda key: shared.items() <= key.items())


def main() -> None:
    """Prints one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="replace the data file")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("no CUDA device")
    times: dict[tuple[int, int], dict[tuple[int, int], Times]] = {}
    for bits, shape in itertools.product(KINDS, SHAPES):
        for tokens, by_form in measure(bits, shape):
            times.setdefault((bits, tokens), {})[shape] = by_form
    rows = [row for (bits, tokens), of_shapes in times.items() for row in choose(bits, tokens, of_shapes)]
    if arguments.write:
        write(rows)
    head = json.dumps({"command": "python " + " ".join(sys.argv), "device": torch.cuda.get_device_name()})
    lines = ",\n".join(f"  {json.dumps(row)}" for row in rows)
    sys.stdout.write(f'{head[:-1]}, "rows": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    main()
