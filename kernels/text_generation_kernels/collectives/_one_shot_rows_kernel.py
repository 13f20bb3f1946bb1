"""One-shot kernel of `allreduce_add_norm` for many tokens: a thread block sends whole rows and finishes them."""

# pyright: basic, reportArgumentType=false, reportGeneralTypeIssues=false, reportReturnType=false
from ..runtime.launch import launch_dependents, wait_for_previous
from ..runtime.triton import tl, triton
from ._add_norm_row import constants_of, finish_row, residual_of
from .exchange import address_of, buffer_at, clear_last, receive, take_turn, words_to_send


@triton.jit
def _send_row(
    x_ptr, row, columns, valid, hidden, size, turn, control_ptr,
    RANK: tl.constexpr, WORLD: tl.constexpr, SET_BYTES: tl.constexpr, BITS: tl.constexpr, NOTHING: tl.constexpr,
):  # fmt: skip
    """Sends a row to all other ranks, where it lies after those of lower ranks. Returns its words."""
    at = row * hidden + columns
    words = words_to_send(tl.load(x_ptr + at, mask=valid, other=0.0), BITS, NOTHING)
    for peer in tl.static_range(WORLD):
        if peer != RANK:
            target_ptr = buffer_at(address_of(control_ptr, peer), turn, SET_BYTES, BITS)
            tl.store(target_ptr + (RANK - (peer < RANK)) * size + at, words, mask=valid)
    return words


@triton.jit(do_not_specialize=["tokens"])
def row_shot_kernel(
    x_ptr,  # [tokens, hidden]
    residual_ptr,  # [tokens, hidden], updated in place, or None
    weight_ptr,  # [hidden] or None
    x_weight_ptr,  # [hidden] or None
    out_ptr,  # [tokens, hidden], may be x
    control_ptr,
    hidden,
    eps,
    tokens,
    X_SCALE: tl.constexpr,
    RANK: tl.constexpr,
    WORLD: tl.constexpr,
    BLOCK: tl.constexpr,  # power of two, at least hidden
    SET_BYTES: tl.constexpr,
    BITS: tl.constexpr,
    NOTHING: tl.constexpr,
    CLEAR: tl.constexpr,
    CHECKED: tl.constexpr,
    PDL: tl.constexpr,
):
    """A thread block sends its next row before it waits for the one before, so links and memory are busy together.

    This rank's own row stays in registers, so `out` may be `x`. A set holds the rows of the other ranks, [WORLD - 1,
    tokens, hidden]. Thread blocks wait for those of the same number alone.
    """
    program = tl.program_id(0)
    programs = tl.num_programs(0)
    size = tokens * hidden
    columns = tl.arange(0, BLOCK)
    stored = columns < hidden
    weight, x_weight = constants_of(weight_ptr, x_weight_ptr, columns, stored)
    address = address_of(control_ptr, RANK)
    launch_dependents(PDL)
    wait_for_previous(PDL)

    turn = take_turn(control_ptr)
    own = _send_row(
        x_ptr, program, columns, stored, hidden, size, turn, control_ptr, RANK, WORLD, SET_BYTES, BITS, NOTHING
    )
    used = (size * (WORLD - 1) * BITS.primitive_bitwidth + 31) // 32
    clear_last(control_ptr, address, turn, used, SET_BYTES, CLEAR)

    source_ptr = buffer_at(address, turn, SET_BYTES, BITS)
    for row in range(program, tokens, programs):
        following = row + programs
        sent = stored & (following < tokens)
        next_own = _send_row(
            x_ptr, following, columns, sent, hidden, size, turn, control_ptr, RANK, WORLD, SET_BYTES, BITS, NOTHING
        )
        at = row * hidden + columns
        residual = residual_of(residual_ptr, at, stored)
        x = tl.zeros([BLOCK], dtype=tl.float32)
        for rank in tl.static_range(WORLD):
            words = own
            if rank != RANK:
                places = (rank - (rank > RANK)) * size + at
                words = receive(source_ptr + places, stored, control_ptr, NOTHING, CHECKED)
            x += words.to(x_ptr.dtype.element_ty, bitcast=True).to(tl.float32)
        finish_row(
            x, residual, weight, x_weight, at, stored,
            residual_ptr, weight_ptr, x_weight_ptr, out_ptr, hidden, eps, X_SCALE,
        )  # fmt: skip
        own = next_own
