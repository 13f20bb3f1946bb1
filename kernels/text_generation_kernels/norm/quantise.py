"""Activation quantisation for W8A8: symmetric 8-bit codes of rows, in torch and as an epilogue for Triton kernels.

    scale = max(min(amax, bound), 1e-12) / limit        limit is 448 for float8_e4m3fn and 127 for int8
    eight = round(clamp(x / scale, -limit, limit))

A scale is measured over a row (`group` 0) or over each `group` inputs of it, or it is `static`: one number from the
checkpoint. `bound` (0: none) is the largest amax of a scale. Values above saturate, as all do: a cast alone would make
them NaN. int8 rounds half to even. NaN stays, in the scale or in float8 values. The input is first rounded to its
16-bit storage type, so fused and separate quantisation give the same codes. The quotient is x times 1 / scale, which is
rounded first.
"""

# pyright: basic, reportAssignmentType=false
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ..runtime.device import has_fp8_gemms
from ..runtime.triton import tl, triton

LIMITS = {torch.float8_e4m3fn: 448.0, torch.int8: 127.0}
"""The 8-bit types and their largest values."""
TINY = 1e-12
"""Least amax of a scale, so that rows of zeros have one."""


@dataclass(frozen=True, slots=True, eq=False)
class Quantised:
    """Where an operator writes its result in 8 bits, and how it measures scales. `Quantised()`: nowhere."""

    codes: Tensor | None = None
    """[tokens, inputs] float8_e4m3fn or int8, unit stride in the last dimension."""
    scale: Tensor | None = None
    """float32 [tokens], or [tokens, ceil(inputs / group)] with any strides."""
    group: int = 0
    """Inputs that share a scale; 0: all of a token."""
    static: Tensor | None = None
    """[1] float32, the one scale of all tokens."""
    bound: float = 0.0
    """The largest amax of a measured scale; 0: none."""

    @property
    def is_wanted(self) -> bool:
        """Whether there is anything to write."""
        return self.codes is not None

    @property
    def is_measured_by_token(self) -> bool:
        """Whether a scale needs a whole token."""
        return self.codes is not None and self.static is None and self.group == 0

    @property
    def operands(self) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """The tensors of a launch."""
        return self.codes, self.scale, self.static

    @property
    def strides(self) -> tuple[int, int, int]:
        """Strides of the codes between tokens, and of the scales between tokens and groups, for a launch."""
        if self.codes is None or self.scale is None:
            return 0, 0, 0
        return self.codes.stride(0), self.scale.stride(0), self.scale.stride(-1)

    @property
    def constants(self) -> dict[str, float]:
        """What a kernel that calls `store_quantised` is compiled for."""
        return {"GROUP": self.group, "BOUND": self.bound, "TINIEST": TINY}

    def check(self, operator: str, tokens: int, inputs: int) -> None:
        """Raises ValueError where it does not fit the result of an operator."""
        codes, scale, group, static = self.codes, self.scale, self.group, self.static
        if codes is None or scale is None:
            if codes is not scale:
                raise ValueError(f"{operator}: 8-bit values and their scales must both be given, or neither")
            return
        if codes.dtype not in LIMITS or scale.dtype != torch.float32:
            raise ValueError(
                f"{operator}: 8-bit values must be float8_e4m3fn or int8 with float32 scales, "
                f"not {codes.dtype} with {scale.dtype}"
            )
        if codes.is_cuda and codes.dtype == torch.float8_e4m3fn and not has_fp8_gemms(codes.device):
            raise ValueError(f"{operator}: this card has no float8 GEMMs: keep activations in 16 bits")
        if group and (group & (group - 1) or group < 16):
            raise ValueError(f"{operator}: a group of {group} inputs is no power of two from 16 on")
        shape = (tokens, -(-inputs // group)) if group else (tokens,)
        if codes.shape != (tokens, inputs) or scale.shape != shape or (static is not None and static.numel() != 1):
            shapes = [tuple(tensor.shape) for tensor in (codes, scale, static) if tensor is not None]
            raise ValueError(f"{operator}: shapes of the 8-bit values, scales, static do not fit: {shapes}")
        if codes.stride(1) != 1:
            raise ValueError(f"{operator}: the last dimension of the 8-bit values must have stride 1")


NOT_QUANTISED = Quantised()
"""For an operator whose result is wanted in 16 or 32 bits alone."""


def quantise_torch(x: Tensor, quantised: Quantised) -> None:
    """Writes `x` [tokens, inputs] by the formula above, where that is wanted."""
    codes, scale = quantised.codes, quantised.scale
    if codes is None or scale is None or x.numel() == 0:
        return
    limit = LIMITS[codes.dtype]
    tokens, inputs = x.shape
    group = quantised.group or inputs
    groups = -(-inputs // group)
    wide = torch.nn.functional.pad(x.float(), (0, groups * group - inputs)).view(tokens, groups, group)
    if quantised.static is None:
        amax = wide.abs().amax(dim=2).clamp(min=TINY, max=quantised.bound or math.inf)
        scales = amax * (1.0 / limit)
    else:
        scales = quantised.static.float().view(1, 1).expand(tokens, groups)
    scale.copy_(scales.view(scale.shape))
    quotient = (wide * scales.reciprocal().unsqueeze(2)).clamp(-limit, limit)
    if codes.dtype == torch.int8:
        quotient = quotient.round()
    codes.copy_(quotient.view(tokens, -1)[:, :inputs])


@triton.jit
def scale_of(
    values,  # float32
    axis: tl.constexpr,
    BOUND: tl.constexpr,
    LIMIT: tl.constexpr,
    TINIEST: tl.constexpr,
):
    """Scales of the values along `axis`.

    Absolute values are compared as the integers of their bits, which have the same order, with NaN above all.
    """
    bits = tl.max(values.to(tl.int32, bitcast=True) & 0x7FFFFFFF, axis)
    amax = tl.maximum(bits.to(tl.float32, bitcast=True), TINIEST, propagate_nan=tl.PropagateNan.ALL)
    if BOUND != 0.0:
        amax = tl.minimum(amax, BOUND, propagate_nan=tl.PropagateNan.ALL)
    return amax * (1.0 / LIMIT)


@triton.jit
def round_to(quotient, out8_ptr, LIMIT: tl.constexpr):
    """Rounds quotients to the type of `out8_ptr`."""
    eight = tl.clamp(quotient, -LIMIT, LIMIT, propagate_nan=tl.PropagateNan.ALL)
    if out8_ptr.dtype.element_ty == tl.int8:
        # Adding 1.5 * 2**23 leaves no bits for a fraction: float32 rounds half to even.
        eight = (eight + 12582912.0) - 12582912.0
    return eight.to(out8_ptr.dtype.element_ty)


@triton.jit
def store_quantised(
    row,  # [BLOCK] float32: inputs of one token, zero from `inputs` on
    columns,  # [BLOCK]: which inputs these are, in order, from a multiple of GROUP on
    inputs,
    out8_ptr,  # of this token
    scale_ptr,  # of this token
    stride_scale_group,
    static_ptr,  # [1] float32 or None
    GROUP: tl.constexpr,  # power of two that divides BLOCK; 0: `row` is the whole token
    BOUND: tl.constexpr,
    TINIEST: tl.constexpr,  # TINY
):
    """The formula above as an epilogue, for one token in registers or for whole groups of it."""
    LIMIT: tl.constexpr = 127.0 if out8_ptr.dtype.element_ty == tl.int8 else 448.0
    BLOCK: tl.constexpr = row.shape[0]
    if static_ptr is not None:
        scale = tl.load(static_ptr)
        quotient = row * tl.div_rn(1.0, scale)
        if GROUP == 0:
            tl.store(scale_ptr, scale)
        else:
            places = scale_ptr + columns // GROUP * stride_scale_group
            tl.store(places, tl.zeros_like(row) + scale, mask=(columns < inputs) & (columns % GROUP == 0))
    elif GROUP == 0:
        scale = scale_of(row, 0, BOUND, LIMIT, TINIEST)
        quotient = row * tl.div_rn(1.0, scale)
        tl.store(scale_ptr, scale)
    else:
        grouped = tl.reshape(row, [BLOCK // GROUP, GROUP])
        scale = scale_of(grouped, 1, BOUND, LIMIT, TINIEST)
        quotient = tl.reshape(grouped * tl.div_rn(1.0, scale)[:, None], [BLOCK])
        first = tl.min(columns, 0) // GROUP
        groups = first + tl.arange(0, BLOCK // GROUP)
        tl.store(scale_ptr + groups * stride_scale_group, scale, mask=groups * GROUP < inputs)
    tl.store(out8_ptr + columns, round_to(quotient, out8_ptr, LIMIT), mask=columns < inputs)
