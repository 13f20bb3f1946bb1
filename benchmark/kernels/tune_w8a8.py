"""Chooses launch settings of `w8a8_linear`, and where a library is faster, by measuring all candidates.

    python -m benchmark.kernels.tune_w8a8 [--seconds N] [--known measured.json] > more.json
    python -m benchmark.kernels.tune_w8a8 --choose measured.json more.json > chosen.json

The first needs a CUDA device with float8 tensor cores; it leaves out what it has no time for, and what other runs on
such a device have measured. The second replaces the entries of cards with 227 KiB and of the numbers of tokens that
were measured in the data files. For each padded number of tokens three compiled variants at most serve all matrices,
because each costs a second of start-up: those with the smallest sum of times, each as a ratio to the best time of its
matrix. Then each matrix gets the best of them with the number of splits that is best there. For many tokens one variant
serves all, and each matrix gets it or an algorithm of the libraries.
"""

import argparse
import contextlib
import dataclasses
import itertools
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor

import text_generation_kernels as kernels
from text_generation_kernels.matmul.w8a8_gemm import BLOCK, w8a8_gemm
from text_generation_kernels.matmul.w8a8_ladder import W8A8Problem, library_settings
from text_generation_kernels.matmul.w8a8_library import BLOCKS, ROWS, SUMS, library_gemm

from .report import print_rows, read_rows
from .settings import Times, Variant, best_variants, fastest, least, replace_settings
from .timing import GPU_PLAN, Row, seconds_per_call

# Outputs and inputs: Llama 3.1 8B and 70B on one GPU, 8B on two, 70B on four.
SHAPES = [
    *((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336)),
    *((10240, 8192), (8192, 8192), (57344, 8192), (8192, 28672)),
    *((3072, 4096), (4096, 2048), (14336, 4096), (4096, 7168)),
    *((2560, 8192), (8192, 2048), (14336, 8192), (8192, 7168)),
]
MAIN_SHAPES = SHAPES[:8]
TOKENS = (16, 32, 64)
KINDS = ((True, False), (False, True), (False, False))
"""Whether int8, and whether scales are by block."""
MANY = (128, 256, 512, 1024, 2048, 8192)
LARGE = 128 << 20
"""Bytes of a matrix that is not measured with most tokens: it takes as long as all others."""
SPLITS = (1, 2, 3, 4, 6, 8)
SPLITS_OF_MANY = (1, 2, 4)
PROGRAMS_OF_SPLITS = 300
"""The most thread blocks of a launch that splits its inputs where tokens are many."""
NAMES = ("BLOCK_M", "BLOCK_N", "BLOCK_K", "AHEAD", "num_warps", "num_stages")
"""Of a variant's values."""
AHEAD = (0, 4)
"""Weight tiles that are loaded before the wait."""
MOST_AHEAD = 32
"""Tokens for which that is tried: with 64 it was slower."""
SHARED_LIMIT = 220 << 10
PROGRAMS = (90, 1400)
"""How many thread blocks a launch may have: fewer leave SMs idle, more are only overhead."""
PLAN = dataclasses.replace(GPU_PLAN, calls=16, replays=5)
PLAN_OF_MANY = dataclasses.replace(GPU_PLAN, calls=8, replays=3)
Operands = tuple[Tensor, Tensor, Tensor, Tensor]
"""x8, x_scale, weights8 (several matrices), weight_scale."""


def variants(tokens: int, by_block: bool) -> list[Variant]:
    """Candidates whose tiles fit in shared memory and keep 24 KiB or more of the matrix in flight."""
    blocks = [(64, 128, 4), (64, 256, 4), (128, 128, 4), (128, 128, 8), (128, 256, 8)]
    return [
        (tokens, block_n, block_k, ahead, warps, stages)
        for (block_n, block_k, warps), stages in itertools.product(blocks, (3, 4, 6, 8, 10, 12, 16))
        for ahead in AHEAD
        if (block_n + tokens) * block_k * (stages + ahead) <= SHARED_LIMIT
        and block_n * block_k * (stages + ahead - 1) >= 24 << 10
        and not (ahead and tokens > MOST_AHEAD)
        and not (by_block and block_k != BLOCK)
        and (stages <= 8 or (block_n, block_k) == (64, 128))
    ]


VARIANTS_OF_MANY: list[Variant] = [(64, 128, 128, 0, 4, 4), (128, 128, 128, 0, 8, 3), (128, 128, 128, 0, 8, 4)]
"""Tiles whose sums fit into registers."""
TILES_OF_MANY = 512
"""The kernel's settings for more tokens than these are those for these."""


def settings(variant: Variant, splits: int) -> dict[str, int]:
    """As in the data file."""
    return {**dict(zip(NAMES, variant, strict=True)), "splits": splits}


def operands(shape: tuple[int, int], tokens: int, int8: bool, by_block: bool, copies: int) -> Operands:
    """Random ones."""
    outputs, inputs = shape

    def values(rows: int) -> Tensor:
        if int8:
            return torch.randint(-127, 128, (rows, inputs), dtype=torch.int8, device=PLAN.device)
        return torch.randn(rows, inputs, device=PLAN.device).to(torch.float8_e4m3fn)

    blocks = inputs // BLOCK
    scales = ((tokens, blocks), (outputs // BLOCK, blocks)) if by_block else ((tokens,), (outputs,))
    x_scale, weight_scale = (torch.rand(*shape, device=PLAN.device) * 1e-3 for shape in scales)
    weights = values(outputs)[None].expand(copies, -1, -1).contiguous()
    return values(tokens), x_scale, weights, weight_scale


def num_copies(shape: tuple[int, int]) -> int:
    """How many matrices fill the rotation."""
    return max(2, -(-PLAN.rotation_bytes // (shape[0] * shape[1])))


def measure(plan: object, given: Operands, gemm: Callable[..., object]) -> float:
    """Microseconds of one GEMM; for few tokens with the operator that quantises its inputs."""
    x8, x_scale, weights, weight_scale = given
    out = torch.empty(len(x8), weights.shape[1], dtype=torch.bfloat16, device=PLAN.device)
    x = torch.randn(x8.shape, dtype=torch.bfloat16, device=PLAN.device)

    def call(index: int) -> None:
        if len(x) <= max(TOKENS):
            kernels.quantise_rows(x, kernels.Quantised(x8, x_scale, BLOCK if x_scale.dim() > 1 else 0))
        gemm(x8, x_scale, weights[index], weight_scale, None, out)

    return seconds_per_call(plan, call, len(weights)) * 1e6  # type: ignore[arg-type]


def kernel_with(config: dict[str, int]) -> Callable[..., None]:
    """The kernel with these settings."""
    return lambda *tensors: w8a8_gemm(*tensors, config)


Candidate = tuple[Row, Operands, Callable[..., object]]
"""What it is, what it multiplies, and how."""


def few(shape: tuple[int, int], by_block: bool) -> Iterator[Candidate]:
    """The kernel for few tokens."""
    outputs, inputs = shape
    copies = num_copies(shape)
    _, _, weights, weight_scale = operands(shape, 1, False, by_block, copies)
    for tokens in TOKENS:
        x8, x_scale, _, _ = operands(shape, tokens, False, by_block, 1)
        for variant, splits in itertools.product(variants(tokens, by_block), SPLITS):
            programs = -(-outputs // variant[1]) * splits
            if inputs % variant[2] or not PROGRAMS[0] <= programs <= PROGRAMS[1] or inputs // splits < 4 * variant[2]:
                continue
            given = (x8, x_scale, weights, weight_scale)
            config = settings(variant, splits)
            yield row(shape, tokens, False, by_block) | config, given, kernel_with(config)


def many(shape: tuple[int, int], int8: bool, by_block: bool) -> Iterator[Candidate]:
    """The kernel and the libraries for many tokens."""
    for tokens in MANY if shape[0] * shape[1] < LARGE else MANY[:-1]:
        given = operands(shape, tokens, int8, by_block, 2 if shape[0] * shape[1] > 32 << 20 else 8)
        x8, x_scale, weights, weight_scale = given
        head = row(shape, tokens, int8, by_block)
        for algorithm in (ROWS, SUMS, BLOCKS):
            if library_settings(algorithm, W8A8Problem.of(x8, x_scale, weights[0], weight_scale)) == {}:
                gemm = lambda *tensors, algorithm=algorithm: library_gemm(algorithm, *tensors)  # noqa: E731
                yield head | {"faster": algorithm}, given, gemm
        for variant, splits in itertools.product(VARIANTS_OF_MANY, SPLITS_OF_MANY):
            programs = -(-tokens // variant[0]) * -(-shape[0] // variant[1]) * splits
            if splits == 1 or programs <= PROGRAMS_OF_SPLITS:
                config = settings(variant, splits)
                yield head | config, given, kernel_with(config)


def row(shape: tuple[int, int], tokens: int, int8: bool, by_block: bool) -> Row:
    """What was measured."""
    return {"int8": int8, "by_block": by_block, "outputs": shape[0], "inputs": shape[1], "tokens": tokens}


def compile_variant(job: tuple[Variant, bool, bool]) -> None:
    """Puts one variant into Triton's cache on disk. Those that cannot be compiled fail again, with a message, later."""
    variant, int8, by_block = job
    x8, x_scale, weights, weight_scale = operands((512, 1024), variant[0], int8, by_block, 1)
    out = torch.empty(len(x8), 512, dtype=torch.bfloat16, device=PLAN.device)
    with contextlib.suppress(Exception):
        w8a8_gemm(x8, x_scale, weights[0], weight_scale, None, out, settings(variant, 1))
        out.cpu()


def measure_all(seconds: float, known: list[Row]) -> Iterator[Row]:
    """All candidates but those that are known, the most telling first, as far as time allows."""
    begin = time.monotonic()
    jobs = [
        (variant, False, by_block) for by_block in (False, True) for t in TOKENS for variant in variants(t, by_block)
    ]
    jobs += [(variant, *kind) for kind in KINDS for variant in VARIANTS_OF_MANY]
    # Before this process uses the device, so that the others may.
    with multiprocessing.get_context("fork").Pool(24) as pool:
        pool.map(compile_variant, jobs, chunksize=2)
    sys.stderr.write(f"{len(jobs)} variants compiled after {time.monotonic() - begin:.0f} s\n")
    sources = [
        *(few(shape, False) for shape in MAIN_SHAPES),
        *(few(shape, True) for shape in MAIN_SHAPES[:4]),
        *(many(shape, *kind) for kind in KINDS for shape in MAIN_SHAPES[:4]),
        *(many(shape, False, False) for shape in MAIN_SHAPES[4:]),
        *(few(shape, False) for shape in SHAPES[8:]),
        *(few(shape, True) for shape in MAIN_SHAPES[4:]),
        *(many(shape, True, False) for shape in MAIN_SHAPES[4:]),
    ]
    done = {name_of(each) for each in known}
    for source in sources:
        while time.monotonic() - begin < seconds:
            try:
                candidate, given, gemm = next(source)
                if name_of(candidate) not in done:
                    plan = PLAN if candidate["tokens"] in TOKENS else PLAN_OF_MANY
                    yield candidate | {"microseconds": measure(plan, given, gemm)}
            except StopIteration:
                break
            except Exception as error:  # one candidate that cannot run must not lose the others
                sys.stderr.write(f"{error!r:.300}\n")
                break
    sys.stderr.write(f"measured for {time.monotonic() - begin:.0f} s\n")


def name_of(candidate: Row) -> frozenset[tuple[str, object]]:
    """What tells a candidate from others."""
    return frozenset((name, value) for name, value in candidate.items() if name != "microseconds")


def main() -> None:
    """Prints one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=600.0, help="stop measuring after so long")
    parser.add_argument("--known", type=Path, nargs="+", default=[], help="leave out what these have measured")
    parser.add_argument("--choose", type=Path, nargs="+", help="write the data files from what was measured")
    arguments = parser.parse_args()
    if arguments.choose:
        device, measured = read_rows(arguments.choose)
        rows = choose(measured)
    else:
        rows = list(measure_all(arguments.seconds, read_rows(arguments.known)[1]))
        device = torch.cuda.get_device_name()
    print_rows(rows, device=device)


def choose(measured: list[Row]) -> list[Row]:
    """Writes the data files, and returns what was chosen with its times."""
    tiles: list[Row] = []
    algorithms: list[Row] = []
    for by_block in (False, True):
        of_few = [each for each in measured if each["by_block"] == by_block and each["tokens"] in TOKENS]
        of_many = [each for each in measured if each["by_block"] == by_block and each["tokens"] in MANY]
        for tokens in TOKENS:
            tiles += variants_for([each for each in of_few if each["tokens"] == tokens], by_block, tokens)
        if of_many:
            chosen, libraries = algorithms_for(of_many, by_block)
            tiles += chosen
            algorithms += libraries
    write("w8a8_linear", tiles, {"shared_kib": 227}, ("by_block", "outputs", "inputs", "tokens"))
    write("w8a8_library", algorithms, {}, ("int8", "by_block", "outputs", "inputs", "tokens"))
    return tiles + algorithms


def times_by(rows: list[Row], *names: str) -> dict[tuple[object, ...], Times]:
    """Times of the kernel, by these columns."""
    times: dict[tuple[object, ...], Times] = {}
    for each in rows:
        if "faster" not in each:
            variant = tuple(each[name] for name in NAMES)
            own = times.setdefault(tuple(each[name] for name in names), {}).setdefault(variant, {})
            own[each["splits"]] = each["microseconds"]
    return times


def variants_for(rows: list[Row], by_block: bool, tokens: int) -> Iterator[Row]:
    """The best of three variants for each matrix."""
    times = times_by(rows, "outputs", "inputs")
    if not times:
        return
    some = best_variants(times, 3)
    for shape, by_variant in times.items():
        time_, variant, splits = fastest(by_variant, some)
        taken = {"microseconds": time_, "best_microseconds": least(by_variant)}
        yield row(shape, tokens, False, by_block) | settings(variant, splits) | taken


def algorithms_for(rows: list[Row], by_block: bool) -> tuple[list[Row], list[Row]]:
    """One variant of the kernel for many tokens, and where which library's algorithm is faster."""
    times = times_by(rows, "int8", "outputs", "inputs", "tokens")
    library: dict[tuple[object, ...], tuple[float, str]] = {}
    for each in rows:
        if "faster" in each:
            key = tuple(each[name] for name in ("int8", "outputs", "inputs", "tokens"))
            library[key] = min(library.get(key, (1e9, "")), (each["microseconds"], each["faster"]))

    def cost(variant: Variant) -> float:
        """Over what no library computes faster."""
        return sum(
            min(by_variant.get(variant, {0: 1e9}).values()) / best
            for key, by_variant in times.items()
            if (best := least(by_variant)) < library.get(key, (1e9, ""))[0]
        )

    variant = min(VARIANTS_OF_MANY, key=cost)
    tiles: dict[tuple[object, ...], Row] = {}
    algorithms: list[Row] = []
    for key, by_variant in times.items():
        int8, outputs, inputs, tokens = key
        head = row((outputs, inputs), tokens, int8, by_block)  # type: ignore[arg-type]
        time_, splits = min((value, splits) for splits, value in by_variant.get(variant, {1: 1e9}).items())
        if head["tokens"] <= TILES_OF_MANY:
            tiles.setdefault(key[1:], head | settings(variant, splits) | {"microseconds": time_})
        faster, algorithm = library.get(key, (1e9, ""))
        algorithms.append(
            head | {"faster": algorithm if faster < time_ else "w8a8_gemm", "microseconds": min(faster, time_)}
        )
        algorithms[-1] |= {"kernel_microseconds": time_}
    return list(tiles.values()), algorithms


def kind_of(key: Row) -> tuple[object, ...]:
    """Everything in a key but sizes of matrices."""
    return tuple(value for name, value in key.items() if name not in ("outputs", "inputs"))


def found(row: Row) -> Row:
    """What the data file says beside a key."""
    if "faster" in row:
        return {"faster": row["faster"]}
    return {"config": {name: row[name] for name in (*NAMES, "splits")}}


def write(operator: str, rows: list[Row], card: Row, keys: tuple[str, ...]) -> None:
    """Replaces the entries of this card's class, and of the kinds and numbers of tokens that were measured."""
    entries = [{"key": card | {key: each[key] for key in keys}} | found(each) for each in rows]
    kinds = {kind_of(each["key"]) for each in entries}
    replace_settings(operator, entries, lambda key: kind_of(key) in kinds)


if __name__ == "__main__":
    main()
