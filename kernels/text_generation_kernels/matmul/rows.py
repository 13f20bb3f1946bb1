"""Weight rows of a thread block in single-token GEMVs, and the bias and activation epilogue of their outputs."""

# pyright: basic, reportArgumentType=false, reportCallIssue=false
from ..norm.activations import gated_activation
from ..runtime.triton import tl, triton


@triton.jit
def weight_rows_of(block, outputs, BLOCK_N: tl.constexpr, PAIRS: tl.constexpr):
    """[BLOCK_N] rows of a weight; those past the end are the last one. With PAIRS a gate row and its up row lie side by
    side.
    """
    lanes = tl.arange(0, BLOCK_N)
    if PAIRS:
        pairs = tl.minimum(block * (BLOCK_N // 2) + lanes // 2, outputs // 2 - 1)
        return pairs + lanes % 2 * (outputs // 2)
    else:
        return tl.minimum(block * BLOCK_N + lanes, outputs - 1)


@triton.jit
def store_outputs(
    sums,  # [BLOCK_N] float32, of the rows that `weight_rows_of` gives
    bias_ptr,  # [outputs] or None
    weight_rows,
    out_ptr,  # [outputs or, with ACTIVATION, outputs / 2]
    block,
    outputs,
    ACTIVATION: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Adds the bias, applies the activation to rounded gate and up values where there is one, and stores."""
    if bias_ptr is not None:
        sums += tl.load(bias_ptr + weight_rows).to(tl.float32)
    out = sums.to(out_ptr.dtype.element_ty)
    if ACTIVATION is None:
        places = block * BLOCK_N + tl.arange(0, BLOCK_N)
        end = outputs
    else:
        gate, up = tl.split(tl.reshape(out.to(tl.float32), [BLOCK_N // 2, 2]))
        out = gated_activation(gate, up, ACTIVATION).to(out_ptr.dtype.element_ty)
        places = block * (BLOCK_N // 2) + tl.arange(0, BLOCK_N // 2)
        end = outputs // 2
    tl.store(out_ptr + places, out, mask=places < end)
