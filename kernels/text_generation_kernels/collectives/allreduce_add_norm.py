"""Sum over the ranks, and the residual addition and normalisation that follow, in one kernel.

    x = sum of the x of all ranks, in their order, in float32, rounded to the storage type
    residual, out = add_rms_norm(x, residual, weight, eps, x_scale, x_weight)      (where there is a weight)
    out = x                                                                        (where there is none)

Layouts: `x`, `residual`, `out` `[tokens, hidden]`, contiguous; `weight`, `x_weight` `[hidden]`. `out` may be `x`. Types
as in `add_rms_norm`. All ranks get the same bits, whatever way they are computed in, and however many tokens there are.
The ranks write into each other's memory (`exchange.py`), over NVLink or whatever else lets them.

One shot: each rank sends its owned to all, and all add up everything; of as many rows as there are processors, each has
whole ones (`_one_shot_rows_kernel.py`). Two shots: each rank sends slices of its owned to their owners, which add up and
send the sum to all.
Bytes that a rank sends, of S in the message and N ranks: (N - 1) * S in one shot, 2 * S * (N - 1) / N in two.
Measured on two H200 over NVLink without multicast, bfloat16, hidden 8192, microseconds in a graph at 16 KiB / 128 KiB /
1 MiB / 8 MiB (benchmark/results/reduce_add_norm.json; runs differ by about 1 us at small sizes):
sums in one shot 4.6 / 4.4 / 9.4 / 33.9, in two 7.5 / 6.3 / 10.0 / 30.1, by NCCL 15.2 / 15.3 / 18.1 / 52.9;
with addition and norm 5.3 / 5.4 / 9.0 / 41.0, 8.0 / 6.4 / 10.4 / 34.8, and in two kernels 10.7 / 11.3 / 16.1 / 53.7.
That was one shot in elements: in rows 8 MiB take 30.2 where two shots took 35.0 in the same run, and 16 MiB 54.7 where
NCCL took 89.9; 8 MiB of tokens of 4096 values 28.8 instead of 43.1. Two programs of 64 registers a thread on each
processor were no faster, three of 40 slower (benchmark/results/tune_two_ranks.json).
Tried and left out: programs beside the one-shot kernel's that bring 1 to 16 MiB of the next matrix into the L2 cache,
before or after the wait for the kernels before: the products and sums of a layer of 70B took 215 to 220 us at one token
with them, 215 to 219 without. Twice as many programs in two shots (benchmark/results/tried-two-ranks.json): 30.2 us
instead of 33.4 at 8 MiB, as long below, and 43 instead of 34 at 4 MiB of tokens of 4096 values. Halves of columns, of
which a copy engine sends the first while the second is computed: 23 us instead of 28 at 8 MiB, of which products in
halves and waits for copies take back most or all (same file). Products of 8 and of 64 tokens that write their results
into the ranks' buffers themselves took as long or longer (same file); those of one token do so, and
`allreduce_add_norm_receive` takes this kernel's place.
"""

# pyright: basic, reportArgumentType=false, reportGeneralTypeIssues=false, reportReturnType=false
import torch
from torch import Tensor

from ..runtime.device import num_sms
from ..runtime.launch import Launcher, launch_dependents, compiling_only, wait_for_previous
from ..runtime.settings import nearest
from ..runtime.triton import tl, triton
from ._add_norm_row import constants_of, finish_row, residual_of
from ._one_shot_rows_kernel import row_shot_kernel
from .exchange import (
    CHECKED,
    MOST_VALUES,
    Exchange,
    address_of,
    buffer_at,
    clear_last,
    receive,
    take_turn,
    words_to_send,
)

CLEAR = 2048


@triton.jit
def reduce_ranks(words, valid, TYPE: tl.constexpr, WORLD: tl.constexpr, RANKS: tl.constexpr):
    """[RANKS, BLOCK] words to their sum in the order of the ranks, float32 [BLOCK]."""
    values = tl.where(valid, words.to(TYPE, bitcast=True).to(tl.float32), 0.0)
    ranks = tl.arange(0, RANKS)[:, None]
    total = tl.sum(tl.where(ranks == 0, values, 0.0), axis=0)
    for rank in tl.static_range(1, WORLD):
        total += tl.sum(tl.where(ranks == rank, values, 0.0), axis=0)
    return total


@triton.jit(do_not_specialize=["tokens", "rank"])
def one_shot_kernel(
    x_ptr,  # [tokens, hidden]
    residual_ptr,  # [tokens, hidden], updated in place, or None
    weight_ptr,  # [hidden] or None
    x_weight_ptr,  # [hidden] or None
    out_ptr,  # [tokens, hidden], may be x
    control_ptr,
    hidden,
    eps,
    tokens,
    rank,
    X_SCALE: tl.constexpr,
    WORLD: tl.constexpr,
    RANKS: tl.constexpr,  # power of two, at least WORLD
    BLOCK: tl.constexpr,  # power of two, at least hidden
    SEND: tl.constexpr,
    SET_BYTES: tl.constexpr,
    BITS: tl.constexpr,
    NOTHING: tl.constexpr,
    CLEAR: tl.constexpr,
    CHECKED: tl.constexpr,
    PDL: tl.constexpr,
):
    """All programs send elements of SEND values; a token's row is received by one program, which finishes it.

    A rank sends to itself as well: a row that has come has been read, so `out` may be `x`.
    """
    program = tl.program_id(0)
    programs = tl.num_programs(0)
    size = tokens * hidden
    columns = tl.arange(0, BLOCK)
    stored = columns < hidden
    weight, x_weight = constants_of(weight_ptr, x_weight_ptr, columns, stored)
    own = address_of(control_ptr, rank)
    launch_dependents(PDL)
    wait_for_previous(PDL)

    elements = program * SEND + tl.arange(0, SEND)
    values = tl.load(x_ptr + elements, mask=elements < size, other=0.0)
    turn = take_turn(control_ptr)
    for _ in range(program * SEND, size, programs * SEND):
        words = words_to_send(values, BITS, NOTHING)
        for peer in tl.static_range(WORLD):
            target_ptr = buffer_at(address_of(control_ptr, peer), turn, SET_BYTES, BITS)
            tl.store(target_ptr + rank * size + elements, words, mask=elements < size)
        elements += programs * SEND
        values = tl.load(x_ptr + elements, mask=elements < size, other=0.0)

    clear_last(control_ptr, own, turn, (size * WORLD * BITS.primitive_bitwidth + 31) // 32, SET_BYTES, CLEAR)

    source_ptr = buffer_at(own, turn, SET_BYTES, BITS)
    ranks = tl.arange(0, RANKS)[:, None]
    valid = (ranks < WORLD) & stored[None, :]
    for row in range(program, tokens, programs):
        at = row * hidden + columns
        residual = residual_of(residual_ptr, at, stored)
        places = ranks * size + at[None, :]
        words = receive(source_ptr + places, valid, control_ptr, NOTHING, CHECKED)
        x = reduce_ranks(words, valid, x_ptr.dtype.element_ty, WORLD, RANKS)
        finish_row(
            x, residual, weight, x_weight, at, stored,
            residual_ptr, weight_ptr, x_weight_ptr, out_ptr, hidden, eps, X_SCALE,
        )  # fmt: skip


@triton.jit(do_not_specialize=["tokens", "rank"])
def two_shot_kernel(
    x_ptr,  # [tokens, hidden]
    residual_ptr,  # [tokens, hidden], updated in place, or None
    weight_ptr,  # [hidden] or None
    x_weight_ptr,  # [hidden] or None
    out_ptr,  # [tokens, hidden], may be x
    control_ptr,
    hidden,
    owned,  # values of a row that one rank owns: hidden / WORLD
    eps,
    tokens,
    rank,
    X_SCALE: tl.constexpr,
    WORLD: tl.constexpr,
    RANKS: tl.constexpr,  # power of two, at least WORLD
    BLOCK: tl.constexpr,  # power of two, at least hidden
    OWNED: tl.constexpr,  # power of two, at least owned
    SET_BYTES: tl.constexpr,
    BITS: tl.constexpr,
    NOTHING: tl.constexpr,
    CLEAR: tl.constexpr,
    CHECKED: tl.constexpr,
    PDL: tl.constexpr,
):
    """A program handles the same rows of all ranks in three passes: parts to their owners, sums to all, the rest.

    A set holds the parts that came, [WORLD, tokens, owned], and behind them the sums, [tokens, hidden].
    """
    program = tl.program_id(0)
    programs = tl.num_programs(0)
    size = tokens * hidden
    own = address_of(control_ptr, rank)
    launch_dependents(PDL)
    wait_for_previous(PDL)
    turn = take_turn(control_ptr)

    inner = tl.arange(0, OWNED)
    for row in range(program, tokens, programs):
        for owner in tl.static_range(WORLD):
            values = tl.load(x_ptr + row * hidden + owner * owned + inner, mask=inner < owned, other=0.0)
            target_ptr = buffer_at(address_of(control_ptr, owner), turn, SET_BYTES, BITS)
            words = words_to_send(values, BITS, NOTHING)
            tl.store(target_ptr + (rank * tokens + row) * owned + inner, words, mask=inner < owned)

    clear_last(control_ptr, own, turn, (size * 2 * BITS.primitive_bitwidth + 31) // 32, SET_BYTES, CLEAR)

    source_ptr = buffer_at(own, turn, SET_BYTES, BITS)
    ranks = tl.arange(0, RANKS)[:, None]
    valid = (ranks < WORLD) & (inner < owned)[None, :]
    for row in range(program, tokens, programs):
        places = (ranks * tokens + row) * owned + inner[None, :]
        words = receive(source_ptr + places, valid, control_ptr, NOTHING, CHECKED)
        total = reduce_ranks(words, valid, x_ptr.dtype.element_ty, WORLD, RANKS).to(x_ptr.dtype.element_ty)
        for peer in tl.static_range(WORLD):
            target_ptr = buffer_at(address_of(control_ptr, peer), turn, SET_BYTES, BITS)
            sent = words_to_send(total, BITS, NOTHING)
            tl.store(target_ptr + size + row * hidden + rank * owned + inner, sent, mask=inner < owned)

    columns = tl.arange(0, BLOCK)
    stored = columns < hidden
    weight, x_weight = constants_of(weight_ptr, x_weight_ptr, columns, stored)
    for row in range(program, tokens, programs):
        at = row * hidden + columns
        residual = residual_of(residual_ptr, at, stored)
        words = receive(source_ptr + size + at, stored, control_ptr, NOTHING, CHECKED)
        x = words.to(x_ptr.dtype.element_ty, bitcast=True).to(tl.float32)
        finish_row(
            x, residual, weight, x_weight, at, stored,
            residual_ptr, weight_ptr, x_weight_ptr, out_ptr, hidden, eps, X_SCALE,
        )  # fmt: skip


_launch_one_shot = Launcher(one_shot_kernel)
_launch_row_shot = Launcher(row_shot_kernel)
_launch_two_shot = Launcher(two_shot_kernel)


def reducible(x: Tensor, residual: Tensor | None) -> bool:
    """Whether these are of types and layouts that the kernels read."""
    if x.dim() != 2 or not x.is_contiguous() or x.dtype not in (torch.float16, torch.bfloat16, torch.float32):
        return False
    return residual is None or (residual.is_contiguous() and residual.dtype == x.dtype)


def fits_one_shot(x: Tensor, exchange: Exchange) -> bool:
    """Whether `allreduce_add_norm` takes this in one shot."""
    parts = exchange.world_size - _in_rows(x)
    row = triton.next_power_of_2(exchange.world_size) * triton.next_power_of_2(x.shape[-1])
    return x.numel() * x.element_size() * parts <= exchange.set_bytes and row <= MOST_VALUES


def _in_rows(x: Tensor) -> bool:
    """Whether one shot is computed by programs that have whole rows: with so many rows every processor has one."""
    return x.shape[0] >= num_sms(x.device)


def fits_two_shots(x: Tensor, exchange: Exchange) -> bool:
    """Whether `allreduce_add_norm` takes this in two shots."""
    whole = x.shape[-1] % (16 * exchange.world_size) == 0 and x.shape[-1] <= MOST_VALUES
    return whole and x.numel() * x.element_size() * 2 <= exchange.set_bytes


def allreduce_add_norm(
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor | None,
    eps: float,
    out: Tensor,
    x_scale: float,
    x_weight: Tensor | None,
    exchange: Exchange,
    two_shots: bool,
) -> None:
    """Every rank calls it with the same sizes, in the same order, on one stream; Triton alone computes it.

    Raises ValueError for layouts and sizes that the kernels do not take; see `fits_one_shot`.
    """
    tokens, hidden = x.shape
    tensors = [x, out] if residual is None else [x, out, residual]
    if any(each.shape != x.shape or not each.is_contiguous() or each.dtype != x.dtype for each in tensors):
        raise ValueError("allreduce_add_norm: x, residual and out must be contiguous and alike")
    if (residual is None) != (weight is None):
        raise ValueError("allreduce_add_norm: residual and weight belong together")
    if not (fits_two_shots if two_shots else fits_one_shot)(x, exchange):
        raise ValueError(f"allreduce_add_norm: {tokens} x {hidden} values of {x.dtype} do not fit the buffers")
    if tokens == 0:
        return
    block = triton.next_power_of_2(hidden)
    pointers = (x, residual, weight, x_weight, out, exchange.control)
    constants = {"X_SCALE": x_scale, "BLOCK": block, "CLEAR": CLEAR, "CHECKED": CHECKED if x.is_cuda else 0}
    constants |= exchange.constants(x)
    # All programs must be on the device at a time, because they wait for those of other ranks.
    most = num_sms(x.device)
    # As many as of that operator, so that squares are added up in the same order.
    warps = constants["num_warps"] = nearest("add_rms_norm", block=block)["num_warps"]
    # A rehearsal does not meet every number of tokens.
    if not two_shots and (_in_rows(x) or compiling_only()):
        _launch_row_shot((most,), pointers, (hidden,), (eps, tokens), **constants, RANK=exchange.rank)
        if not compiling_only():
            return
    constants["RANKS"] = triton.next_power_of_2(exchange.world_size)
    if two_shots:
        owned = hidden // exchange.world_size
        constants["OWNED"] = triton.next_power_of_2(owned)
        _launch_two_shot((min(tokens, most),), pointers, (hidden, owned), (eps, tokens, exchange.rank), **constants)
        return
    send = min(warps * 32 * 16 // x.element_size(), block)
    programs = min(max(tokens, triton.cdiv(tokens * hidden, send)), most)
    _launch_one_shot((programs,), pointers, (hidden,), (eps, tokens, exchange.rank), **constants, SEND=send)
