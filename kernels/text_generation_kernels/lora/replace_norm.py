"""Norms of tokens whose adapter has weights of its own (`rms_norm.py`, `layer_norm.py`).

    out[t] = norm(x[t]) * weights[p] + biases[p]      where p = places[numbers[t]] is not negative; elsewhere it stays

Layouts: `x`, `out` `[tokens, hidden]`, unit stride in the last dimension; `numbers` `[tokens]` int32, 0 for tokens
without adapter; `places` `[adapters + 1]` int32; `weights` `[any, hidden]`, contiguous, in the type of the base's
weight, and of a layer norm `biases` likewise, or None. ValueError for shapes that do not fit.

It is called behind a norm that adapters change. Bytes floor: 3 * hidden * element size for each token it changes.
"""

# pyright: basic
import torch
from torch import Tensor
from torch.nn import functional

from ..norm.layer_norm import normalise_row as layer_norm_row
from ..norm.rms_norm import normalise, normalise_row
from ..runtime.launch import Launcher, launch_dependents, wait_for_previous
from ..runtime.register import register
from ..runtime.settings import nearest
from ..runtime.shapes import shapes_error
from ..runtime.triton import tl, triton


@triton.jit(do_not_specialize_on_alignment=["numbers_ptr"])
def replace_norm_kernel(
    x_ptr,  # [tokens, hidden]
    numbers_ptr,  # [tokens] int32
    places_ptr,  # [adapters + 1] int32
    weights_ptr,  # [any, hidden]
    biases_ptr,  # [any, hidden] or None
    out_ptr,  # [tokens, hidden]
    hidden,
    stride_x_token,
    stride_out_token,
    eps,
    IS_RMS: tl.constexpr,
    BLOCK: tl.constexpr,  # power of two, at least hidden
    PDL: tl.constexpr,
):
    """One thread block normalises one token, held in registers."""
    wait_for_previous(PDL)
    launch_dependents(PDL)
    token = tl.program_id(0).to(tl.int64)
    place = tl.load(places_ptr + tl.load(numbers_ptr + token)).to(tl.int64)
    if place < 0:
        return
    columns = tl.arange(0, BLOCK)
    valid = columns < hidden
    weight = tl.load(weights_ptr + place * hidden + columns, mask=valid, other=0.0).to(tl.float32)
    x = tl.load(x_ptr + token * stride_x_token + columns, mask=valid, other=0.0).to(tl.float32)
    if IS_RMS:
        out = normalise_row(x, weight, hidden, eps, weights_ptr.dtype.element_ty)
    else:
        bias = tl.zeros_like(weight)
        if biases_ptr is not None:
            bias = tl.load(biases_ptr + place * hidden + columns, mask=valid, other=0.0).to(tl.float32)
        out = layer_norm_row(x, weight, bias, valid, hidden, eps)
    tl.store(out_ptr + token * stride_out_token + columns, out.to(out_ptr.dtype.element_ty), mask=valid)


_launch = Launcher(replace_norm_kernel, writes=("out",), dependents="after the wait")


def _check(x: Tensor, numbers: Tensor, places: Tensor, weights: Tensor, biases: Tensor | None, out: Tensor) -> None:
    fits = x.shape == out.shape and len(numbers) == len(x) and weights.shape[1:] == x.shape[1:] and places.dim() == 1
    if not fits or (biases is not None and biases.shape != weights.shape):
        raise shapes_error("replace_norm", x=x, numbers=numbers, places=places, weights=weights, biases=biases, out=out)
    held = (numbers, places, weights) if biases is None else (numbers, places, weights, biases)
    if x.stride(1) != 1 or out.stride(1) != 1 or not all(each.is_contiguous() for each in held):
        raise ValueError("replace_norm: tokens of x and out, and all else, must be contiguous")


def replace_norm_triton(
    x: Tensor,
    numbers: Tensor,
    places: Tensor,
    weights: Tensor,
    biases: Tensor | None,
    eps: float,
    is_rms: bool,
    out: Tensor,
) -> None:
    """Triton implementation. Raises ValueError for shapes and layouts that do not fit."""
    _check(x, numbers, places, weights, biases, out)
    tokens, hidden = x.shape
    if tokens == 0:
        return
    block = triton.next_power_of_2(hidden)
    _launch(
        (tokens,),
        (x, numbers, places, weights, biases, out),
        (hidden, x.stride(0), out.stride(0)),
        (eps,),
        IS_RMS=is_rms,
        BLOCK=block,
        **nearest("rms_norm", block=block),
    )


def replace_norm_torch(
    x: Tensor,
    numbers: Tensor,
    places: Tensor,
    weights: Tensor,
    biases: Tensor | None,
    eps: float,
    is_rms: bool,
    out: Tensor,
) -> None:
    """Torch implementation: the CPU path and the reference of the tests."""
    _check(x, numbers, places, weights, biases, out)
    place = places[numbers.long()].long()
    weight, made = weights[place.clamp(min=0)], torch.empty_like(out)
    if is_rms:
        normalise(x, weight, eps, made)
    else:
        plain = functional.layer_norm(x.float(), x.shape[1:], None, None, eps) * weight.float()
        made.copy_(plain if biases is None else plain + biases[place.clamp(min=0)].float())
    torch.where((place >= 0)[:, None], made, out, out=out)


replace_norm = register(replace_norm_torch, mutates=("out",), triton=replace_norm_triton)
