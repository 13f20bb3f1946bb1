"""Kernels and library algorithms of W8A8 matmuls, in order of preference."""

from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..norm.quantise import LIMITS
from ..runtime.device import Card, card_of
from ..runtime.settings import fastest, nearest
from .fp8_small_hopper import STEP, fp8_small_hopper
from .ladder import SMALL_BATCH, Fusion, Ladder, MatmulKernel, Settings, padded_tokens
from .w8a8_gemm import BLOCK, w8a8_gemm
from .w8a8_gemv import w8a8_gemv
from .w8a8_library import BLOCKS, ROWS, SUMS, library_gemm


class W8A8Problem(NamedTuple):
    """See `TokensProblem`."""

    card: Card
    tokens: int
    outputs: int
    inputs: int
    int8: bool
    """Else float8."""
    x_blocks: bool
    """Whether each 128 inputs of a token have a scale; else a token has one."""
    weight_blocks: bool
    """Whether each 128 inputs of a weight row, or of 128, have a scale; else a row has one."""
    gated: bool
    """Whether the GEMM applies the gated activation and measures the largest values of its tiles."""
    partials: bool
    """Whether the next kernel reduces split-K partials, where these are faster."""
    contiguous: bool
    """Whether codes of `x` and `weight8` are contiguous."""
    x_scales_contiguous: bool
    weight_scales_contiguous: bool
    aligned: bool
    """Whether all rows that are copied begin at multiples of 16 bytes."""
    weight_aligned: bool
    """Whether all weight rows begin at multiples of 16 bytes from the first one."""

    @classmethod
    def of(
        cls,
        x: Tensor,
        x_scale: Tensor | None,
        weight8: Tensor,
        weight_scale: Tensor,
        gated: bool = False,
        partials: bool = False,
    ) -> "W8A8Problem":
        """The problem of these tensors. Where `x` is not quantised yet, its codes will be contiguous."""
        (tokens, inputs), outputs = x.shape, len(weight8)
        is_quantised = x.dtype in LIMITS
        copied = (x, weight8) if is_quantised else (weight8,)
        return cls(
            card=card_of(weight8.device),
            tokens=1 if tokens == 1 else padded_tokens(tokens),
            outputs=outputs,
            inputs=inputs,
            int8=weight8.dtype == torch.int8,
            x_blocks=is_quantised and x_scale is not None and x_scale.dim() > 1,
            weight_blocks=weight_scale.dim() > 1,
            gated=gated,
            partials=partials,
            contiguous=all(each.is_contiguous() for each in copied),
            x_scales_contiguous=not is_quantised or x_scale is None or x_scale.is_contiguous(),
            weight_scales_contiguous=weight_scale.is_contiguous(),
            aligned=inputs % 16 == 0 and all(each.data_ptr() % 16 == each.stride(0) % 16 == 0 for each in copied),
            weight_aligned=weight8.stride(0) % 16 == 0,
        )

    def of_tokens(self, tokens: int) -> "W8A8Problem":
        """See `TokensProblem`."""
        return self._replace(tokens=tokens)

    @property
    def by_block(self) -> bool:
        """Whether any scales are by block."""
        return self.x_blocks or self.weight_blocks


def _no_fp8(problem: W8A8Problem) -> str | None:
    if problem.int8 or problem.card.has_fp8_gemms:
        return None
    return "the card has no float8 tensor cores"


def _gemv_settings(problem: W8A8Problem) -> Settings | str:
    if problem.tokens > 1:
        return "it computes a single token"
    if problem.gated or problem.partials:
        return "it measures no largest values and leaves no partials"
    if problem.by_block or problem.inputs % 16 or not problem.weight_aligned:
        return "it takes scales by token and row, and rows at multiples of 16 bytes"
    if not problem.weight_scales_contiguous:
        return "scales are not contiguous"
    return _no_fp8(problem) or {}


def _hopper_settings(problem: W8A8Problem) -> Settings | str:
    if not problem.card.is_hopper or problem.int8:
        return "it is for float8 and compute capability 9.0"
    if not 1 < problem.tokens <= SMALL_BATCH:
        return f"it computes 2 to {SMALL_BATCH} tokens"
    if problem.by_block or problem.inputs % STEP or not problem.aligned:
        return f"it takes scales by token and row, a multiple of {STEP} inputs, and rows at multiples of 16 bytes"
    sizes = {"outputs": problem.outputs, "inputs": problem.inputs, "tokens": problem.tokens}
    config = fastest("fp8_small_hopper", gated=problem.gated, **sizes)
    if isinstance(config, str):
        return f"fp8_small_hopper.json: {config} is faster"
    if config["splits"] > 1 and not problem.partials:
        return f"fp8_small_hopper.json: {config['splits']} splits are faster, which w8a8_gemm reduces faster"
    return config


def library_settings(algorithm: str, problem: W8A8Problem) -> Settings | str:
    """Nothing to set where a library's `algorithm` takes this problem, or why it does not."""
    if problem.gated or problem.partials:
        return "it measures no largest values and leaves no partials"
    if algorithm != SUMS and problem.int8:
        return "it is for float8"
    if not problem.contiguous:
        return "x or the weight is not contiguous"
    if algorithm == BLOCKS:
        if not (problem.x_blocks and problem.weight_blocks):
            return "it takes scales by block"
        if problem.inputs % (4 * BLOCK) or problem.outputs % BLOCK:
            return f"it takes multiples of {4 * BLOCK} inputs and of {BLOCK} outputs"
        return {} if problem.card.has_block_gemms else "it needs compute capability 9.0 and CUDA 12.9"
    if problem.by_block or not problem.weight_scales_contiguous:
        return "it takes contiguous scales by token and row"
    if algorithm == ROWS and not problem.x_scales_contiguous:
        return "it takes contiguous scales by token and row"
    if problem.inputs % 16 or problem.outputs % 16:
        return "it takes multiples of 16 inputs and outputs"
    return _no_fp8(problem) or {}


def _fastest_library(algorithm: str, problem: W8A8Problem) -> Settings | str:
    if problem.tokens <= SMALL_BATCH:
        return f"libraries compute more than {SMALL_BATCH} tokens"
    kind = {"int8": problem.int8, "by_block": problem.by_block}
    sizes = {"outputs": problem.outputs, "inputs": problem.inputs, "tokens": problem.tokens}
    faster = fastest("w8a8_library", **kind, **sizes)
    return library_settings(algorithm, problem) if faster == algorithm else f"w8a8_library.json: {faster} is faster"


def _gemm_settings(problem: W8A8Problem) -> Settings | str:
    fused = problem.gated or problem.partials
    if fused and (problem.by_block or not 1 < problem.tokens <= SMALL_BATCH):
        return f"activation or partials are fused with 2 to {SMALL_BATCH} tokens and scales by token and row"
    if reason := _no_fp8(problem):
        return reason
    card = {"shared_kib": problem.card.shared_kib, "by_block": problem.by_block}
    sizes = {"outputs": problem.outputs, "inputs": problem.inputs, "tokens": padded_tokens(problem.tokens)}
    config = nearest("w8a8_linear", **card, **sizes)
    return {**config, "splits": 1} if problem.gated else config


def _launch_library(
    algorithm: str, x8: Tensor, x_scale: Tensor, weight8: Tensor, weight_scale: Tensor, *rest: Any
) -> None:
    bias, out, _settings = rest
    library_gemm(algorithm, x8, x_scale, weight8, weight_scale, bias, out)


def _library(algorithm: str, takes: str, *launches: str) -> MatmulKernel[W8A8Problem]:
    settings, launch = partial(_fastest_library, algorithm), partial(_launch_library, algorithm)
    takes = f"more than {SMALL_BATCH} tokens, {takes}, where it was measured to be fastest"
    return MatmulKernel(algorithm, settings, launch, takes, launches=launches)


_FUSES = frozenset[Fusion]({"amax", "split-K partials"})
W8A8_GEMV = MatmulKernel(
    "w8a8_gemv",
    _gemv_settings,
    w8a8_gemv,
    "a single token, scales by token and row, and a multiple of 16 inputs",
    frozenset({"quantisation", "activation"}),
)
FP8_SMALL_HOPPER = MatmulKernel(
    "fp8_small_hopper",
    _hopper_settings,
    fp8_small_hopper,
    f"2 to {SMALL_BATCH} tokens of float8 on compute capability 9.0, scales by token and row, where it was measured to "
    "be fastest",
    _FUSES,
)
W8A8_GEMM = MatmulKernel(
    "w8a8_gemm",
    _gemm_settings,
    w8a8_gemm,
    f"everything else; fused, 2 to {SMALL_BATCH} tokens and scales by token and row",
    _FUSES,
)
W8A8 = Ladder(
    W8A8_GEMV,
    FP8_SMALL_HOPPER,
    _library(ROWS, "float8, scales by token and row"),
    _library(SUMS, "scales by token and row", "scale_sums"),
    _library(BLOCKS, "float8, scales by block, compute capability 9.0 and CUDA 12.9"),
    W8A8_GEMM,
)
"""No kernel takes float8 on a card without float8 tensor cores, nor everything that `gated` and `partials` ask for."""
