"""Per-head norm and RoPE of the new token inside attention (`token_attention.py`), rounded as by `qkv_postprocess`.

Norm weights and angles are loaded apart from the heads, so that callers prefetch them before the wait for the QKV GEMV.
"""

# pyright: basic, reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false
from ..runtime.triton import tl, triton


@triton.jit
def partners_of(elements, HEAD_DIM: tl.constexpr):
    """The element that RoPE pairs each with. Each thread loads both, so nothing moves between threads."""
    return tl.where(elements < HEAD_DIM // 2, elements + HEAD_DIM // 2, elements - HEAD_DIM // 2)


@triton.jit
def load_angles(
    angles_ptr,  # [HEAD_DIM] float32, cosines in the first half
    elements,  # [BLOCK_D]
    HEAD_DIM: tl.constexpr,
):
    """Cosines, and sines with the sign of the partner's term, [1, BLOCK_D] each."""
    HALF: tl.constexpr = HEAD_DIM // 2
    cos = tl.load(angles_ptr + elements % HALF)
    sin = tl.load(angles_ptr + HALF + elements % HALF)
    return cos[None, :], tl.where(elements < HALF, -sin, sin)[None, :]


@triton.jit
def load_norm(
    norm_ptr,  # [HEAD_DIM] or, where OF_EACH, [heads, HEAD_DIM]
    heads,  # [N]
    exists,  # [N]
    elements,  # [BLOCK_D]
    HEAD_DIM: tl.constexpr,
    OF_EACH: tl.constexpr,
):
    """Norm weights of elements and of their partners, [N, BLOCK_D] each, in their type."""
    rows = heads[:, None] * (HEAD_DIM if OF_EACH else 0)
    valid = exists[:, None] & (elements < HEAD_DIM)[None, :]
    own = tl.load(norm_ptr + rows + elements[None, :], mask=valid, other=0.0)
    partner = tl.load(norm_ptr + rows + partners_of(elements, HEAD_DIM)[None, :], mask=valid, other=0.0)
    return own, partner


@triton.jit
def load_heads(
    heads_ptr,  # [heads, HEAD_DIM]
    bias_ptr,  # likewise or None
    heads,  # [N]
    exists,  # [N]
    elements,  # [BLOCK_D]
    valid,  # [BLOCK_D]
    HEAD_DIM: tl.constexpr,
):
    """Heads plus bias, [N, BLOCK_D] float32, zero where not valid."""
    places = heads[:, None] * HEAD_DIM + elements[None, :]
    read = exists[:, None] & valid[None, :]
    values = tl.load(heads_ptr + places, mask=read, other=0.0).to(tl.float32)
    if bias_ptr is not None:
        values += tl.load(bias_ptr + places, mask=read, other=0.0).to(tl.float32)
    return values


@triton.jit
def _normalised(values, squares, weight, eps, HEAD_DIM: tl.constexpr, STORAGE: tl.constexpr):
    """RMSNorm of `values` [N, BLOCK_D] float32 whose sums of squares are [N, 1], rounded as by `rms_norm`."""
    scaled = (values * tl.rsqrt(squares / HEAD_DIM + eps)).to(weight.dtype)
    return (scaled.to(tl.float32) * weight.to(tl.float32)).to(STORAGE).to(tl.float32)


@triton.jit
def rotated_heads(
    heads_ptr,  # [heads, HEAD_DIM]
    bias_ptr,  # likewise or None
    weight,  # as of `load_norm`, or None
    partner_weight,
    cos,  # as of `load_angles`
    sin,
    heads,  # [N]
    exists,  # [N]
    elements,  # [BLOCK_D]
    eps,
    HEAD_DIM: tl.constexpr,
    NORM_AFTER_ROPE: tl.constexpr,
):
    """Normalised and rotated heads, [N, BLOCK_D] in the storage type, zero outside."""
    STORAGE: tl.constexpr = heads_ptr.dtype.element_ty
    valid = elements < HEAD_DIM
    own = load_heads(heads_ptr, bias_ptr, heads, exists, elements, valid, HEAD_DIM)
    partner = load_heads(heads_ptr, bias_ptr, heads, exists, partners_of(elements, HEAD_DIM), valid, HEAD_DIM)
    if weight is not None and not NORM_AFTER_ROPE:
        squares = tl.sum(own * own, axis=1, keep_dims=True)
        own = _normalised(own, squares, weight, eps, HEAD_DIM, STORAGE)
        partner = _normalised(partner, squares, partner_weight, eps, HEAD_DIM, STORAGE)
    rotated = (own * cos + partner * sin).to(STORAGE)
    if weight is not None and NORM_AFTER_ROPE:
        own = rotated.to(tl.float32)
        squares = tl.sum(own * own, axis=1, keep_dims=True)
        rotated = _normalised(own, squares, weight, eps, HEAD_DIM, STORAGE).to(STORAGE)
    return rotated
