"""Which rows of a matrix a program multiplies with a single token, and how it stores what they give."""

# pyright: basic, reportArgumentType=false, reportCallIssue=false
from ..norm.activations import gated_activation
from ..runtime.triton import tl, triton


@triton.jit
def weight_rows_of(block, outputs, BLOCK_N: tl.constexpr, PAIRS: tl.constexpr):
    """[BLOCK_N] rows of an expert's matrix; those past the end read the last one. A pair's gate and up rows lie side by
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
    """Bias and, for pairs, the activation of rounded values, of one token and a dense matrix."""
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
