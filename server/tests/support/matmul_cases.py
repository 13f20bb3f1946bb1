"""Every matmul of a layer, by scheme and shape: which kernels compute it at which number of tokens.

`PYTHONPATH=../../kernels/tests python -m support.matmul_cases FILE`, in `server/tests`, writes the choices for many
shapes, to be compared between two commits.
"""

# pyright: basic
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from kernel_support.choices import CARDS, Card, dry_run, noted_choices

import text_generation_kernels as kernels
from text_generation_server.layers.weights import Activations, ActivationScheme, Dense
from text_generation_server.layers.weights.activations import RmsNorm
from text_generation_server.layers.weights.linear import Linear
from text_generation_server.layers.weights.w8a8 import W8A8Linear
from text_generation_server.layers.weights.weight_only import WeightOnlyLinear

Matmul = Callable[[int], object]
"""Computes a number of tokens."""
LLAMA_8B = ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336), (128256, 4096))
MORE = (
    *((4608, 3584), (3584, 3584), (37888, 3584), (3584, 18944), (152064, 3584)),  # Qwen2.5 7B
    *((10240, 8192), (8192, 8192), (57344, 8192), (8192, 28672)),  # Llama 70B
    *((5120, 8192), (8192, 4096), (28672, 8192), (8192, 14336), (64128, 8192)),  # the same on two ranks
    *((2560, 8192), (8192, 2048), (14336, 8192), (8192, 7168)),  # on four
    *((5120, 2048), (2048, 4096), (2048, 2048), (6144, 1024), (1024, 3072), (4096, 1024), (1024, 2048)),  # small ones
    *((1000, 2048), (96, 264), (128, 72), (3000, 1111)),  # odd ones
)
TOKENS = (1, 2, 8, 9, 16, 17, 32, 33, 64, 65, 128, 129, 256, 257, 512, 513, 4096)
MORE_TOKENS = (*range(1, 140), *range(140, 530, 10), 255, 256, 257, 383, 384, 385, 511, 512, 513, 767, 768, 1024, 2048,
               4095, 4096, 8192)  # fmt: skip
DRY_TOKENS = (1, 2, 4, 8, 16, 32, 64, 65, 8192)
"""Numbers of tokens of the compile dry run: sizes of graphs, and the largest step."""
_BF16, _FP8 = torch.bfloat16, torch.float8_e4m3fn
_EMPTY = partial(torch.empty, dtype=_BF16)


def _scheme(dtype: torch.dtype, group: int = 0) -> ActivationScheme:
    return ActivationScheme(dtype, group)


def _weight_only(outputs: int, inputs: int, bits: int, group: int, float8: bool = False) -> WeightOnlyLinear:
    width = -(-inputs // 256) * 32 if bits == 4 else inputs
    codes = torch.empty(outputs, width, dtype=torch.int32 if bits == 4 else _FP8 if float8 else torch.uint8)
    scales = _EMPTY(-(-inputs // 256), outputs, 256 // group) if group else _EMPTY(1, outputs)
    return WeightOnlyLinear(inputs, kernels.PackedMatrix(codes, scales, group_size=group))


def matrices(outputs: int, inputs: int) -> Iterator[tuple[str, Linear]]:
    """A matrix of this shape in every scheme."""
    yield "bf16", Dense(_EMPTY(outputs, inputs))
    yield "fp16", Dense(torch.empty(outputs, inputs, dtype=torch.float16))
    yield "bf16 rows apart", Dense(_EMPTY(outputs, inputs + 4)[:, :inputs])
    blocks = -(-outputs // 128), -(-inputs // 128)
    for name, dtype, scales in (
        ("fp8", _FP8, (outputs,)),
        ("fp8 blocks", _FP8, blocks),
        ("int8", torch.int8, (outputs,)),
    ):
        if dtype == _FP8 and not kernels.has_fp8_gemms(torch.device("cpu")):
            continue  # Activations keep 16 bits on such cards.
        scheme = _scheme(dtype, 128 if len(scales) > 1 else 0)
        yield name, W8A8Linear(torch.empty(outputs, inputs, dtype=dtype), torch.empty(scales), scheme)
    yield "w4 g128", _weight_only(outputs, inputs, 4, 128)
    yield "w4 g64", _weight_only(outputs, inputs, 4, 64)
    table = _weight_only(outputs, inputs, 4, 64)
    table.table = torch.empty(16)
    yield "w4 table g64", table
    nvfp4 = _weight_only(outputs, inputs, 4, 16)
    scales = nvfp4.weight.scales.to(_FP8)
    nvfp4.weight = replace(nvfp4.weight, scales=scales, table=torch.empty(16), factors=torch.empty(outputs))
    yield "nvfp4", nvfp4
    yield "w8 g128", _weight_only(outputs, inputs, 8, 128)
    yield "w8 rows", _weight_only(outputs, inputs, 8, 0)
    yield "w8 float8 g32", _weight_only(outputs, inputs, 8, 32, True)
    copied = _weight_only(outputs, inputs, 4, 128)
    copied.copy = _EMPTY(outputs, inputs)
    yield "w4 g128, copy", copied


def matmuls(matrix: Linear, inputs: int) -> Iterator[tuple[str, Matmul]]:
    """The ways in which layers call a matrix."""
    wants = matrix.wants
    dtype = matrix.weight.dtype if isinstance(matrix, Dense) else _BF16
    empty = partial(torch.empty, dtype=dtype)

    def read(tokens: int) -> Activations:
        return Activations(empty(tokens, inputs)).made_for(wants if tokens > 1 else None)

    yield "apply", lambda tokens: matrix.apply(read(tokens))
    yield "apply unquantised", lambda tokens: matrix.apply(Activations(empty(tokens, inputs)))
    if matrix.outputs % 2 == 0:
        yield "gated", lambda tokens: matrix.gated(read(tokens), "silu", wants)
    yield "deterministic", lambda tokens: tokens == 64 and matrix.apply(Activations(empty(64, inputs)), 64)
    yield "unaligned", lambda tokens: matrix.apply(Activations(empty(tokens, inputs + 8)[:, 1 : inputs + 1]))
    yield "bias", lambda tokens: tokens <= 64 and replace(matrix, bias=empty(matrix.outputs)).apply(read(tokens))
    if isinstance(matrix, Dense | W8A8Linear):
        yield "split-K", lambda tokens: matrix.split_k(read(tokens))
    if isinstance(matrix, Dense):
        yield "add", lambda tokens: tokens == 1 and matrix.add(read(1), empty(1, matrix.outputs))
        norm = RmsNorm(empty(inputs), 1e-6)
        yield "norm", lambda tokens: matrix.apply(Activations(empty(tokens, inputs), norm=norm))
        yield (
            "norm, gated",
            lambda tokens: (
                matrix.gated(Activations(empty(tokens, inputs), norm=norm), "silu", None)
                if matrix.outputs % 2 == 0
                else None
            ),
        )


EXPERTS = ((128, 2048, 768, 8), (8, 4096, 14336, 2), (32, 2880, 2880, 4))
"""Experts, hidden and inner size, and top-k, of Qwen3 30B-A3B, Mixtral 8x7B and gpt-oss 20B."""


def experts(count: int, hidden: int, inner: int) -> Iterator[tuple[str, kernels.ExpertMlps]]:
    """Experts in every scheme."""
    shapes = (2 * inner, hidden), (hidden, inner)

    def mlps(matrices: Iterable[kernels.ExpertMatrix]) -> kernels.ExpertMlps:
        return kernels.ExpertMlps(*matrices, "silu")

    def quantised(bits: int, group: int, dtype: torch.dtype, **more: object) -> Iterable[kernels.ExpertMatrix]:
        for outputs, inputs in shapes:
            width = -(-inputs // 256) * 32 if bits == 4 else inputs
            scales = _EMPTY(-(-inputs // 256), count * outputs, 256 // group) if group else _EMPTY(1, count * outputs)
            yield kernels.ExpertMatrix(
                torch.empty(count, outputs, width, dtype=dtype), None, scales, None, group_size=group, **more
            )

    yield "bf16", mlps(kernels.ExpertMatrix(_EMPTY(count, *shape)) for shape in shapes)
    yield "w4 g128", mlps(quantised(4, 128, torch.int32))
    yield "mxfp4", mlps(quantised(4, 32, torch.int32, table=torch.empty(16), e2m1=True))
    yield "w8 rows", mlps(quantised(8, 0, torch.uint8))
    yield "fp8 rows W8A8", mlps(quantised(8, 0, _FP8, w8a8=True))
    yield "fp8 blocks W8A8", mlps(quantised(8, 128, _FP8, w8a8=True))


def mixtures() -> Iterator[tuple[str, Matmul]]:
    """Mixtures of experts, routing included: as they are, in deterministic mode, and on one of two ranks."""
    for count, hidden, inner, top_k in EXPERTS:
        for scheme, mlps in experts(count, hidden, inner):
            for name, deterministic, ranks in (("", False, 1), (", deterministic", True, 1), (", half", False, 2)):
                some = replace(mlps, all_experts=count * ranks)
                compute = partial(_mixture, some, count * ranks, kernels.RouteOptions(top_k), deterministic)
                yield f"experts {count} x {hidden} x {inner} {scheme}{name}", compute

    yield from _other_mixtures()


def _other_mixtures() -> Iterator[tuple[str, Matmul]]:
    """Mixtures of other routers and networks, of which a fused kernel takes some."""
    count, hidden, inner, top_k = EXPERTS[0]
    (_, mlps), *_ = experts(count, hidden, inner)
    up, down = (replace(mlps.gate_up, bias=_EMPTY(count, 2 * inner)), replace(mlps.down, bias=_EMPTY(count, hidden)))
    ungated = replace(mlps.gate_up, weight=_EMPTY(count, inner, hidden))
    route = kernels.RouteOptions(top_k)
    for name, some, options in (
        ("biases", replace(mlps, gate_up=up, down=down), route),
        ("no gate", replace(mlps, gate_up=ungated, activation=kernels.alone("relu2")), route),
        ("sigmoid", mlps, replace(route, score="sigmoid")),
        ("square norm", mlps, replace(route, norm=2)),
        ("shared", mlps, replace(route, shared=1)),
        ("gated shared", mlps, replace(route, shared=1, shared_gate=True)),
        ("one of many", mlps, replace(route, top_k=1)),
    ):
        columns = count - options.shared + options.shared_gate
        yield f"experts, {name}", partial(_mixture, some, columns, options, False)


def _mixture(
    mlps: kernels.ExpertMlps, columns: int, options: kernels.RouteOptions, deterministic: bool, tokens: int
) -> None:
    x, logits = _EMPTY(tokens, mlps.hidden), _EMPTY(tokens, columns)
    kernels.mixture(x, logits, None, options, mlps, deterministic, torch.empty_like(x))


def cases(shapes: Iterable[tuple[int, int]]) -> Iterator[tuple[str, Matmul]]:
    """Name and computation of each matmul."""
    for outputs, inputs in shapes:
        for scheme, matrix in matrices(outputs, inputs):
            for name, compute in matmuls(matrix, inputs):
                yield f"{outputs} x {inputs} {scheme}: {name}", compute
    yield from mixtures()


def choices(card: Card, shapes: Iterable[tuple[int, int]], tokens: Iterable[int]) -> Iterator[str]:
    """Lines of text: a case, and for each run of numbers of tokens the launches."""
    with noted_choices(card) as launches:
        for name, compute in cases(shapes):
            yield f"{card.name} {name}"
            first, last, before = 0, 0, None
            for count in tokens:
                chosen = launches(partial(compute, count))
                if chosen != before and before is not None:
                    yield _line(f"{first}-{last}", before)
                if chosen != before:
                    first, before = count, chosen
                last = count
            if before is not None:
                yield _line(f"{first}-{last}", before)
            with dry_run():
                for count in DRY_TOKENS:
                    yield _line(f"dry {count}", sorted(set(launches(partial(compute, count)))))


def _line(tokens: str, launches: Iterable[str]) -> str:
    return f"  {tokens}: {' | '.join(launches)}"


if __name__ == "__main__":
    torch.set_num_threads(1)
    with torch.inference_mode(), Path(sys.argv[1]).open("w", encoding="utf-8") as file:
        for card in CARDS:
            for line in choices(card, (*LLAMA_8B, *MORE), MORE_TOKENS):
                print(line, file=file)
