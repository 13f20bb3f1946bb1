"""Kernels of weight-only quantised matmuls (W4A16, W8A16), in order of preference.

Those of a single token fuse the activation: they launch with its name, or None, in place of settings.
"""

from typing import NamedTuple

from torch import Tensor

from ..runtime.device import Card, card_of
from ..runtime.settings import fastest
from .dequantise_matmul import dequantise_matmul
from .group_quantisation import BLOCK, PLANES, PackedMatrix
from .ladder import SMALL_BATCH, Ladder, MatmulKernel, Settings, padded_tokens
from .nvfp4_gemv import nvfp4_gemv
from .nvfp4_small_hopper import nvfp4_small_hopper
from .w4a16_gemv import w4a16_gemv
from .w4a16_large_hopper import w4a16_large_hopper
from .w4a16_small_hopper import w4a16_small_hopper
from .weight_only_gemm import weight_only_gemm

_SMALLEST_TILE = 8
_MOST_TOKENS = 512
"""The most tokens of the Triton kernel; a data file says where it is faster."""
_NVFP4_TOKENS = 8
"""The most tokens of `nvfp4_small_hopper.py`: with more, the Triton kernel was faster for every matrix."""
_TILES = 2 * SMALL_BATCH
"""More tokens are for `w4a16_large_hopper.py`, where it takes them."""


class WeightOnlyProblem(NamedTuple):
    """See `TokensProblem`."""

    card: Card
    tokens: int
    outputs: int
    inputs: int
    bits: int
    """Of a code: 4 or 8."""
    groups: int
    """Groups in 256 inputs; 1: all inputs are one group; 0: of another size than kernels read."""
    table: bool
    """Whether a table looks codes up, whose entries take registers and shared memory."""
    nvfp4: bool
    """Whether the table is that of e2m1, and scales are float8."""
    readable: bool
    """Whether `x` and `out` have one 16-bit type, and all tensors unit stride in the last dimension."""
    aligned: bool
    """Whether tokens begin at multiples of 16 bytes."""
    in_words: bool
    """Whether the token begins at a whole word, and rows of codes at multiples of 16 bytes from the first one."""

    @classmethod
    def of(cls, x: Tensor, weight: PackedMatrix, out: Tensor) -> "WeightOnlyProblem":
        """The problem of these tensors."""
        tokens, inputs = x.shape
        strides = x.stride(1), out.stride(1), weight.packed.stride(1)
        return cls(
            card=card_of(x.device),
            tokens=1 if tokens == 1 else padded_tokens(tokens, _SMALLEST_TILE),
            outputs=weight.outputs,
            inputs=inputs,
            bits=weight.bits,
            groups=weight.groups,
            table=weight.table is not None,
            nvfp4=weight.factors is not None,
            readable=x.element_size() == 2 and x.dtype == out.dtype and strides == (1, 1, 1),
            aligned=x.data_ptr() % 16 == x.stride(0) % 8 == 0,
            in_words=weight.packed.stride(0) % 4 == 0 and x.storage_offset() % 2 == 0,
        )

    def of_tokens(self, tokens: int) -> "WeightOnlyProblem":
        """See `TokensProblem`."""
        return self._replace(tokens=tokens)


def _unreadable(problem: WeightOnlyProblem) -> str | None:
    if not problem.readable:
        return "it takes activations of 16 bits, and tensors with unit stride"
    return None if problem.groups else "it takes groups of 16, 32, 64 or 128 inputs, or one group"


def _four_bits(problem: WeightOnlyProblem) -> str | None:
    """Why kernels for 4-bit codes in groups do not take the matrix."""
    if reason := _unreadable(problem):
        return reason
    if problem.bits != 4 or problem.table:
        return "it takes 4-bit codes without a table"
    return None if problem.inputs % BLOCK == 0 else f"{problem.inputs} inputs are no multiple of {BLOCK}"


def _nvfp4(problem: WeightOnlyProblem) -> str | None:
    """Why kernels for NVFP4 do not take the problem."""
    if not problem.card.is_hopper:
        return "it is for compute capability 9.0"
    if reason := _unreadable(problem):
        return reason
    return None if problem.nvfp4 else "it takes NVFP4"


def _nvfp4_gemv_settings(problem: WeightOnlyProblem) -> Settings | str:
    if problem.tokens > 1:
        return "it computes a single token"
    return _nvfp4(problem) or {}


def _nvfp4_small_settings(problem: WeightOnlyProblem) -> Settings | str:
    if problem.tokens > _NVFP4_TOKENS:
        return f"it computes at most {_NVFP4_TOKENS} tokens"
    if reason := _nvfp4(problem):
        return reason
    tokens = max(problem.tokens, _SMALLEST_TILE)
    config = fastest("nvfp4_small_hopper", tokens=tokens, outputs=problem.outputs, inputs=problem.inputs)
    return f"nvfp4_small_hopper.json: {config} is faster" if isinstance(config, str) else config


def _gemv_settings(problem: WeightOnlyProblem) -> Settings | str:
    if problem.tokens > 1:
        return "it computes a single token"
    if reason := _four_bits(problem):
        return reason
    if problem.groups != BLOCK // 128:
        return "it takes groups of 128"
    return {} if problem.in_words else "the token or rows of codes begin within a word"


def _hopper(problem: WeightOnlyProblem) -> str | None:
    """Why kernels for Hopper cards do not take the problem."""
    if not problem.card.is_hopper:
        return "it is for compute capability 9.0"
    if reason := _four_bits(problem):
        return reason
    if not 1 < problem.groups <= PLANES:
        return "it takes groups of 32, 64 or 128"
    return None if problem.aligned else "tokens do not begin at multiples of 16 bytes"


def _small_settings(problem: WeightOnlyProblem) -> Settings | str:
    if reason := _hopper(problem):
        return reason
    if problem.groups != BLOCK // 128:
        return "it takes groups of 128"
    tokens = max(problem.tokens, _SMALLEST_TILE)
    config = fastest("w4a16_small_hopper", tokens=tokens, outputs=problem.outputs, inputs=problem.inputs)
    return f"w4a16_small_hopper.json: {config} is faster" if isinstance(config, str) else config


def _large_settings(problem: WeightOnlyProblem) -> Settings | str:
    if problem.tokens <= _TILES:
        return f"it computes more than {_TILES} tokens"
    if reason := _hopper(problem):
        return reason
    config = fastest("w4a16_large_hopper", outputs=problem.outputs, inputs=problem.inputs, tokens=problem.tokens)
    return f"w4a16_large_hopper.json: {config} is faster" if isinstance(config, str) else config


def _gemm_settings(problem: WeightOnlyProblem) -> Settings | str:
    if problem.tokens > _MOST_TOKENS:
        return f"it computes at most {_MOST_TOKENS} tokens"
    if reason := _unreadable(problem):
        return reason
    if problem.tokens > _TILES and _hopper(problem) is None:
        # That file has the matrix, and compares two other kernels.
        return str(_large_settings(problem))
    sizes = {"bits": problem.bits, "outputs": problem.outputs, "inputs": problem.inputs}
    sizes["tokens"] = max(problem.tokens, _SMALLEST_TILE)
    looks_up = problem.table and not problem.nvfp4
    config = fastest("weight_only_linear", shared_kib=problem.card.shared_kib, **sizes, table=looks_up)
    return f"weight_only_linear.json: {config} is faster" if isinstance(config, str) else config


WEIGHT_ONLY = Ladder(
    MatmulKernel(
        "nvfp4_gemv",
        _nvfp4_gemv_settings,
        nvfp4_gemv,
        "a single token, and NVFP4, on compute capability 9.0",
        frozenset({"activation"}),
    ),
    MatmulKernel(
        "w4a16_gemv",
        _gemv_settings,
        w4a16_gemv,
        "a single token, and 4-bit codes without a table in groups of 128",
        frozenset({"activation"}),
    ),
    MatmulKernel(
        "nvfp4_small_hopper",
        _nvfp4_small_settings,
        nvfp4_small_hopper,
        f"up to {_NVFP4_TOKENS} tokens, and NVFP4, on compute capability 9.0, where it was measured to be fastest",
    ),
    MatmulKernel(
        "w4a16_small_hopper",
        _small_settings,
        w4a16_small_hopper,
        "4-bit codes without a table in groups of 128 on compute capability 9.0, where it was measured to be fastest",
    ),
    MatmulKernel(
        "w4a16_large_hopper",
        _large_settings,
        w4a16_large_hopper,
        f"more than {_TILES} tokens, and 4-bit codes without a table in groups on compute capability 9.0, where it was "
        "measured to be fastest",
    ),
    MatmulKernel(
        "weight_only_gemm",
        _gemm_settings,
        weight_only_gemm,
        f"up to {_MOST_TOKENS} tokens, and 4- and 8-bit codes, where it was measured to be fastest",
    ),
    MatmulKernel[WeightOnlyProblem](
        "dequantise_matmul", lambda _: {}, dequantise_matmul, "everything else, by cuBLAS", launches=("dequantise",)
    ),
)
