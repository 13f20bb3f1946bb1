"""Gated RMSNorm (Zhang and Sennrich, 2019) of the outputs of a recurrent state.

    gate first:  y = x * silu(gate),  out = y / sqrt(mean(y ** 2) + eps) * weight    (Mamba 2, Dao and Gu, 2024)
    norm first:  out = x / sqrt(mean(x ** 2) + eps) * weight * silu(gate)            (Gated DeltaNet, Yang et al., 2024)

With `opening` "sigmoid" the sigmoid takes the place of silu (Kimi Linear, Kimi Team, 2025).

Means are taken over each group: a head, some of the channels, or all of them.

Layouts: `x`, `gate`, `out` `[tokens, groups, size]`, unit stride in the last dimension, `size` between groups, any
stride between tokens; `weight` `[size]` for all groups or `[groups, size]`, contiguous. `out` may be `x`. One floating
type for all, but `weight` may be float32 beside 16 bits. Computed in float32, and rounded as in Transformers: the
normalised value to the type of `weight` before their multiplication, and its result too; the gate is never rounded.
With a float32 weight only `out` is rounded (as in Falcon H1).

Called once a layer, between the recurrence and the output GEMM. Raises ValueError for layouts that the kernel does not
read. Bytes floor: 3 * tokens * groups * size * element size (read x and gate, write out). On an H100 in bfloat16, 32
groups of 128: 68 us with 8,192 tokens, as long as a copy. Measurements: docs/lab/2026-11-recurrent-layers.md.
"""

# pyright: basic, reportArgumentType=false
import torch
from torch import Tensor

from ..runtime.launch import Launcher, launch_dependents, wait_for_previous
from ..runtime.register import register
from ..runtime.triton import tl, triton
from .activations import activation, sigmoid
from .rms_norm import normalise

_ELEMENTS = 2048
"""Least elements of a thread block, in whole groups."""
_WARP_ELEMENTS, _MOST_WARPS = 512, 16


@triton.jit(do_not_specialize=["tokens"])
def gated_norm_kernel(
    x_ptr,  # [tokens, GROUPS, SIZE]
    gate_ptr,  # [tokens, GROUPS, SIZE]
    weight_ptr,  # [SIZE] or [GROUPS, SIZE]
    out_ptr,  # [tokens, GROUPS, SIZE]
    stride_x_token,
    stride_gate_token: tl.constexpr,  # as in `_causal_conv_kernels.py`
    stride_out_token,
    tokens,
    eps,
    GROUPS: tl.constexpr,
    SIZE: tl.constexpr,
    OF_EACH_GROUP: tl.constexpr,  # whether groups have weights of their own
    GATE_FIRST: tl.constexpr,
    OPENING: tl.constexpr,  # "silu" or "sigmoid"
    BLOCK_M: tl.constexpr,
    BLOCK: tl.constexpr,  # power of two, at least SIZE
    PDL: tl.constexpr,
):
    """One thread block normalises BLOCK_M groups, of one token or of several, held in registers."""
    index = (tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M))[:, None]
    token, group = (index // GROUPS).to(tl.int64), index % GROUPS
    columns = tl.arange(0, BLOCK)[None, :]
    inside = columns < SIZE
    valid = (token < tokens) & inside
    places = group * SIZE + columns
    if OF_EACH_GROUP:
        weight = tl.load(weight_ptr + places, mask=inside, other=0.0)
    else:
        weight = tl.load(weight_ptr + columns, mask=inside, other=0.0)
    launch_dependents(PDL)
    wait_for_previous(PDL)
    value = tl.load(x_ptr + token * stride_x_token + places, mask=valid, other=0.0).to(tl.float32)
    gate = tl.load(gate_ptr + token * stride_gate_token + places, mask=valid, other=0.0).to(tl.float32)
    gate = tl.sigmoid(gate) if OPENING == "sigmoid" else activation(gate, OPENING)
    if GATE_FIRST:
        value = value * gate
    scale = tl.rsqrt(tl.sum(value * value, axis=1, keep_dims=True) / SIZE + eps)
    normalised = (value * scale).to(weight.dtype).to(tl.float32)
    out = (normalised * weight.to(tl.float32)).to(weight.dtype).to(tl.float32)
    if not GATE_FIRST:
        out = out * gate
    tl.store(out_ptr + token * stride_out_token + places, out.to(out_ptr.dtype.element_ty), mask=valid)


_launch = Launcher(gated_norm_kernel, writes=("out",), reads_early=("weight",))


def _check(x: Tensor, gate: Tensor, weight: Tensor, out: Tensor, opening: str) -> None:
    """Raises ValueError for what the kernel does not read."""
    if opening not in ("silu", "sigmoid"):
        raise ValueError(f"gated_norm: unknown opening {opening!r}, use silu or sigmoid")
    _, groups, size = x.shape
    if not x.shape == gate.shape == out.shape or weight.shape not in ((size,), (groups, size)):
        shapes = [tuple(tensor.shape) for tensor in (x, gate, weight, out)]
        raise ValueError(f"gated_norm: shapes of x, gate, weight, out do not fit: {shapes}")
    if any(each.stride(2) != 1 or (groups > 1 and each.stride(1) != size) for each in (x, gate, out)):
        raise ValueError("gated_norm: the groups of a token must be contiguous in every tensor")
    if not weight.is_contiguous():
        raise ValueError("gated_norm: weight must be contiguous")


def gated_norm_triton(
    x: Tensor, gate: Tensor, weight: Tensor, eps: float, gate_first: bool, out: Tensor, opening: str = "silu"
) -> None:
    """Triton implementation. Raises ValueError for layouts that the kernel does not read."""
    _check(x, gate, weight, out, opening)
    tokens, groups, size = x.shape
    if tokens == 0:
        return
    blocks = _blocks_of(size)
    _launch(
        (triton.cdiv(tokens * groups, blocks["BLOCK_M"]),),
        (x, gate, weight, out),
        (x.stride(0), gate.stride(0), out.stride(0)),
        (tokens, float(eps)),
        GROUPS=groups,
        SIZE=size,
        OF_EACH_GROUP=weight.dim() == 2,
        GATE_FIRST=gate_first,
        OPENING=opening,
        **blocks,
    )


def _blocks_of(size: int) -> dict[str, int]:
    """Launch settings for groups of `size`: few groups a thread block, about the same work a warp for all sizes."""
    block: int = triton.next_power_of_2(size)  # pyright: ignore[reportAssignmentType]
    block_m = max(1, _ELEMENTS // block)
    return {"BLOCK_M": block_m, "BLOCK": block, "num_warps": min(block_m * block // _WARP_ELEMENTS, _MOST_WARPS)}


def gated_norm_torch(
    x: Tensor, gate: Tensor, weight: Tensor, eps: float, gate_first: bool, out: Tensor, opening: str = "silu"
) -> None:
    """Torch implementation: the CPU path and the reference of the tests."""
    wide = gate.float()
    activated = sigmoid(wide) if opening == "sigmoid" else sigmoid(wide).mul_(wide)
    if gate_first:
        normalise(x.float() * activated, weight, eps, out)
        return
    normalised = torch.empty_like(x, dtype=weight.dtype)
    normalise(x, weight, eps, normalised)
    torch.mul(normalised, activated, out=out)


gated_norm = register(gated_norm_torch, mutates=("out",), triton=gated_norm_triton)
