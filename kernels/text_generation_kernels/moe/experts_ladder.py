"""Kernels of the up and the down GEMM of experts, in order of preference.

The rows of a tile (`tile_height`) are to these what the padded number of tokens is to other matmuls.
"""

# pyright: basic, reportArgumentType=false
from typing import NamedTuple

import torch
from torch import Tensor

from ..matmul.ladder import Fusion, Ladder, MatmulKernel, Settings
from ..norm.quantise import Quantised
from ..norm.quantise_rows import quantise_rows
from ..runtime.device import Card, card_of
from ..runtime.settings import nearest
from .expert_matrix import ExpertMatrix
from .expert_rows import ExpertRows
from .experts_gemv import expert_gemv, expert_gemv_sum
from .fp8_grouped_gemm import BLOCK_K as FP8_BLOCK
from .fp8_grouped_gemm import fp8_grouped_gemm
from .grouped_gemm import grouped_gemm
from .weight_only_grouped_gemm import weight_only_grouped_gemm

DIRECT = 1
"""Rows of a direct tile, without sorting."""
_DETERMINISTIC = 64
"""Rows of a tile in deterministic mode, whatever is in the step."""
_W8A8_HEIGHT = 64
"""The fewest rows of a tile that is computed in W8A8 where the weight allows it."""


class ExpertProblem(NamedTuple):
    """What the choice of a kernel depends on."""

    card: Card
    height: int
    """Rows of a tile."""
    is_down: bool
    """Whether the rows are activated values, and results are multiplied by the experts' weights."""
    outputs: int
    inputs: int
    bits: int
    groups: int
    """Groups in 256 inputs; 1: all inputs are one group."""
    is_packed: bool
    """Whether the matrix is quantised."""
    w8a8: bool
    """Whether activations may be quantised too."""

    @classmethod
    def of(cls, matrix: ExpertMatrix, inputs: int, height: int, is_down: bool) -> "ExpertProblem":
        """The problem of this matrix with tiles of `height` rows."""
        kind = matrix.bits, matrix.groups, matrix.is_packed, matrix.w8a8
        return cls(card_of(matrix.weight.device), height, is_down, matrix.outputs, inputs, *kind)


def tile_height(tokens: int, slots: int, experts: int, bits: int, deterministic: bool) -> int:
    """The rows of a tile, by the rows of an expert.

    Where few experts are hit, hardly two tokens share one: each row is a tile.
    """
    if deterministic:
        return _DETERMINISTIC
    if tokens == 1 or 8 * tokens * slots <= experts:
        return DIRECT
    return nearest("moe_align", bits=bits, rows=max(1, tokens * slots // experts))["BLOCK_M"]


def heights_of(bits: int) -> list[int]:
    """Every height of a tile that may be chosen."""
    return sorted({DIRECT, *(nearest("moe_align", bits=bits, rows=1 << power)["BLOCK_M"] for power in range(12))})


def _gemv_settings(problem: ExpertProblem) -> Settings | str:
    if problem.height > DIRECT:
        return "rows are sorted by expert"
    return "it takes weights that are not quantised" if problem.is_packed else {}


def _up_settings(problem: ExpertProblem) -> Settings | str:
    return "it computes gate and up" if problem.is_down else _gemv_settings(problem)


def _down_settings(problem: ExpertProblem) -> Settings | str:
    return _gemv_settings(problem) if problem.is_down else "it computes down"


def _fp8_settings(problem: ExpertProblem) -> Settings | str:
    if not problem.w8a8:
        return "activations of these experts keep 16 bits"
    if not problem.card.has_fp8_gemms:
        return "the card has no float8 tensor cores"
    if problem.height < _W8A8_HEIGHT:
        return f"it takes tiles of {_W8A8_HEIGHT} rows and more"
    return nearest("fp8_grouped_gemm", **_sizes(problem))


def _weight_only_settings(problem: ExpertProblem) -> Settings | str:
    if not problem.is_packed:
        return "it takes quantised weights"
    sizes = _sizes(problem)
    shape = {name: sizes.pop(name) for name in ("outputs", "inputs")}
    return nearest("weight_only_grouped_gemm", **sizes, bits=problem.bits, groups=problem.groups, **shape)


def _grouped_settings(problem: ExpertProblem) -> Settings | str:
    return nearest("grouped_gemm", **_sizes(problem))


def _sizes(problem: ExpertProblem) -> dict[str, int]:
    card = {"shared_kib": problem.card.shared_kib, "block_m": problem.height}
    return {**card, "outputs": problem.outputs, "inputs": problem.inputs}


def _gemv(x: Tensor, matrix: ExpertMatrix, rows: ExpertRows, out: Tensor, _settings: Settings) -> None:
    expert_gemv(x, matrix, rows, out)


def _gemv_sum(x: Tensor, matrix: ExpertMatrix, rows: ExpertRows, out: Tensor, _settings: Settings) -> None:
    expert_gemv_sum(x, matrix, rows, out)


def _fp8(x: Tensor, matrix: ExpertMatrix, rows: ExpertRows, out: Tensor, settings: Settings) -> None:
    """Quantises the rows, and launches the GEMM."""
    by_block = matrix.groups > 1
    x8 = torch.empty_like(x, dtype=torch.float8_e4m3fn)
    scale = x.new_empty((len(x), -(-x.shape[1] // FP8_BLOCK)) if by_block else len(x), dtype=torch.float32)
    quantise_rows(x, Quantised(x8, scale, FP8_BLOCK if by_block else 0))
    fp8_grouped_gemm(x8, scale, matrix, rows, out, settings)


_ACTIVATION = frozenset[Fusion]({"activation"})
EXPERT_GEMV = MatmulKernel(
    "expert_gemv",
    _up_settings,
    _gemv,
    "gate and up in 16 bits, where few experts are hit: each row is a tile",
    _ACTIVATION,
)
EXPERT_GEMV_SUM = MatmulKernel(
    "expert_gemv_sum",
    _down_settings,
    _gemv_sum,
    "down of the same",
    frozenset({"sum over experts", "residual"}),
)
EXPERTS = Ladder(
    EXPERT_GEMV,
    EXPERT_GEMV_SUM,
    MatmulKernel(
        "fp8_grouped_gemm",
        _fp8_settings,
        _fp8,
        f"float8 experts in W8A8, in tiles of {_W8A8_HEIGHT} rows and more",
        _ACTIVATION,
        ("quantise_rows", "fp8_grouped_gemm"),
    ),
    MatmulKernel(
        "weight_only_grouped_gemm", _weight_only_settings, weight_only_grouped_gemm, "quantised experts", _ACTIVATION
    ),
    MatmulKernel("grouped_gemm", _grouped_settings, grouped_gemm, "experts in 16 or 32 bits", _ACTIVATION),
)
