"""Sum over the ranks of what a product sends them itself, and the residual addition and normalisation that follow.

    x = sum of what all ranks sent, in their order, in float32, rounded to the storage type
    residual, out = add_rms_norm(x, residual, weight, eps, x_scale, x_weight)      (where there is a weight)
    out = x                                                                        (where there is none)

Layouts, types and bits as in `reduce_add_norm`. It follows `send_linear` of the same sizes, with nothing of the same
exchange between. What it reads says itself that it has come (`_exchange.py`), so it waits for no kernel: while the last
programs of the product run, it is there already.
"""

# pyright: basic, reportArgumentType=false, reportGeneralTypeIssues=false
from torch import Tensor

from ._config import nearest
from ._exchange import CHECKED, Exchange, address_of, buffer_at, clear_last, pass_turn, receive, turn_of
from ._finish_row import constants_of, finish_row
from ._launch import Launcher, let_next_start, wait_for_previous
from ._triton import tl, triton
from .reduce_add_norm import CLEAR, sum_of_ranks


_EARLY_TOKENS = 8
"""With more of them, programs that look for what has not come yet would take bandwidth from the product."""


@triton.jit(do_not_specialize=["tokens"])
def receive_kernel(
    out_ptr,  # [tokens, hidden]
    residual_ptr,  # [tokens, hidden], updated in place, or None
    weight_ptr,  # [hidden] or None
    x_weight_ptr,  # [hidden] or None
    control_ptr,
    hidden,
    eps,
    tokens,
    X_SCALE: tl.constexpr,
    RANK: tl.constexpr,
    WORLD: tl.constexpr,
    RANKS: tl.constexpr,  # power of two, at least WORLD
    BLOCK: tl.constexpr,  # power of two, at least hidden
    SET_BYTES: tl.constexpr,
    BITS: tl.constexpr,
    NOTHING: tl.constexpr,
    CLEAR: tl.constexpr,
    CHECKED: tl.constexpr,
    EARLY: tl.constexpr,  # whether not to wait for the product's end
    PDL: tl.constexpr,
):
    """One program finishes one token.

    The product before may still run. Its programs have waited for all kernels before it, so those are finished; but
    what they wrote is read past the L1 cache, where lines of before may stand. All that the product reads is read once
    this rank's own part is here, so `out` may have been memory of its.
    """
    let_next_start(PDL)
    if not EARLY:
        wait_for_previous(PDL)
    turn = turn_of(control_ptr)
    own = address_of(control_ptr, RANK)
    columns = tl.arange(0, BLOCK)
    stored = columns < hidden
    at = tl.program_id(0) * hidden + columns
    residual = tl.zeros([BLOCK], dtype=tl.float32)
    if residual_ptr is not None:
        residual = tl.load(residual_ptr + at, mask=stored, other=0.0, cache_modifier=".cg").to(tl.float32)
    weight, x_weight = constants_of(weight_ptr, x_weight_ptr, columns, stored)
    size = tokens * hidden
    ranks = tl.arange(0, RANKS)[:, None]
    valid = (ranks < WORLD) & stored[None, :]
    source_ptr = buffer_at(own, turn, SET_BYTES, BITS)
    words = receive(source_ptr + ranks * size + at[None, :], valid, control_ptr, NOTHING, CHECKED)
    x = sum_of_ranks(words, valid, out_ptr.dtype.element_ty, WORLD, RANKS)
    finish_row(
        x, residual, weight, x_weight, at, stored,
        residual_ptr, weight_ptr, x_weight_ptr, out_ptr, hidden, eps, X_SCALE,
    )  # fmt: skip
    pass_turn(control_ptr)
    clear_last(control_ptr, own, turn, (size * WORLD * BITS.primitive_bitwidth + 31) // 32, SET_BYTES, CLEAR)
    if EARLY:
        # Whoever waits for this kernel relies on the product being finished as well.
        wait_for_previous(PDL)


_launch = Launcher(receive_kernel)


def receive_add_norm(
    residual: Tensor | None,
    weight: Tensor | None,
    eps: float,
    out: Tensor,
    x_scale: float,
    x_weight: Tensor | None,
    exchange: Exchange,
) -> None:
    """Every rank calls it behind `send_linear`; Triton alone computes it. `out` is contiguous, and so is `residual`."""
    tokens, hidden = out.shape
    block = triton.next_power_of_2(hidden)
    _launch(
        (tokens,),
        (out, residual, weight, x_weight, exchange.control),
        (hidden,),
        (eps, tokens),
        X_SCALE=x_scale,
        RANKS=triton.next_power_of_2(exchange.world_size),
        BLOCK=block,
        CLEAR=CLEAR,
        CHECKED=CHECKED if out.is_cuda else 0,
        EARLY=tokens <= _EARLY_TOKENS,
        **exchange.constants(out),
        **nearest("add_rms_norm", block=block),
    )
