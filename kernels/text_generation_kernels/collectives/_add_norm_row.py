"""Epilogue of the fused all-reduces: residual add and RMSNorm of one row."""

# pyright: basic, reportArgumentType=false
from ..norm.rms_norm import normalise_row
from ..runtime.triton import tl, triton


@triton.jit
def constants_of(weight_ptr, x_weight_ptr, columns, valid):
    """Norm weights, float32 [BLOCK], zeros for none. They never change, so they are prefetched before the wait."""
    weight = tl.zeros(columns.shape, dtype=tl.float32)
    x_weight = weight
    if weight_ptr is not None:
        weight = tl.load(weight_ptr + columns, mask=valid, other=0.0).to(tl.float32)
    if x_weight_ptr is not None:
        x_weight = tl.load(x_weight_ptr + columns, mask=valid, other=0.0).to(tl.float32)
    return weight, x_weight


@triton.jit
def residual_of(residual_ptr, at, valid):
    """Residual, float32 [BLOCK], zeros for none. Prefetched before the wait for the other ranks."""
    if residual_ptr is None:
        return tl.zeros(at.shape, dtype=tl.float32)
    else:
        return tl.load(residual_ptr + at, mask=valid, other=0.0).to(tl.float32)


@triton.jit
def finish_row(
    x,  # [BLOCK] float32, all-reduced
    residual,
    weight,
    x_weight,
    at,  # [BLOCK] where the row is stored
    valid,
    residual_ptr,
    weight_ptr,
    x_weight_ptr,
    out_ptr,
    hidden,
    eps,
    X_SCALE: tl.constexpr,
):
    """Residual add, RMSNorm and stores, with the rounding of `add_rms_norm_kernel`."""
    x = x.to(out_ptr.dtype.element_ty)
    if weight_ptr is None:
        tl.store(out_ptr + at, x, mask=valid)
    else:
        x = x.to(tl.float32)
        if x_weight_ptr is not None:
            x = normalise_row(x, x_weight, hidden, eps, x_weight_ptr.dtype.element_ty)
            x = x.to(out_ptr.dtype.element_ty).to(tl.float32)
        if X_SCALE != 1.0:
            x = x * X_SCALE
        total = (x + residual).to(residual_ptr.dtype.element_ty)
        tl.store(residual_ptr + at, total, mask=valid)
        out = normalise_row(total.to(tl.float32), weight, hidden, eps, weight_ptr.dtype.element_ty)
        tl.store(out_ptr + at, out.to(out_ptr.dtype.element_ty), mask=valid)
