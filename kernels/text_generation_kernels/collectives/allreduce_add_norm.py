"""Fused all-reduce + residual add + RMSNorm over peer memory, one-shot and two-shot.

    x = sum of the x of all ranks, in their order, in float32, rounded to the storage type
    residual, out = add_rms_norm(x, residual, weight, eps, x_scale, x_weight)      (where there is a weight)
    out = x                                                                        (where there is none)

Layouts: `x`, `residual`, `out` `[tokens, hidden]`, contiguous; `weight`, `x_weight` `[hidden]`. `out` may be `x`. Types
as in `add_rms_norm`. All ranks get the same bits, by either algorithm and with any number of tokens. The ranks write
into each other's memory (`exchange.py`), over NVLink or any other peer access.

One-shot: each rank sends its input to all, and every rank reduces everything; from as many rows as SMs on, a thread
block has whole rows (`_one_shot_rows_kernel.py`). Two-shot: each rank sends slices of its input to their owners, which
reduce them and send the result to all (reduce-scatter, then all-gather).

Called after the row-parallel GEMMs of a layer (`TensorParallelGroup`), by whichever algorithm start-up measured to be
the fastest for the size. Raises ValueError for layouts and sizes that the kernels do not take. Bytes that a rank sends,
of S in the message and N ranks: (N - 1) * S one-shot, 2 * S * (N - 1) / N two-shot. On two H200, bfloat16, hidden
8,192, 16 KiB: 5.3 us. Measurements: docs/lab/2026-11-all-reduce-kernels.md.
"""

# pyright: basic, reportArgumentType=false, reportGeneralTypeIssues=false, reportReturnType=false
import torch
from torch import Tensor

from ..runtime.device import num_sms
from ..runtime.launch import Launcher, compiling_only, launch_dependents, wait_for_previous
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
    """Reduces words [RANKS, BLOCK] in the order of the ranks to float32 [BLOCK]."""
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
    """All thread blocks send chunks of SEND values; one thread block receives a token's row and finishes it.

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
    """A thread block handles the same rows of all ranks in three passes: slices to their owners, results to all, and
    the epilogue. A set holds the slices that came, [WORLD, tokens, owned], then the results, [tokens, hidden].
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


_WRITES = ("out", "residual", "control:turn")
_launch_one_shot = Launcher(one_shot_kernel, writes=_WRITES, reads_early=("weight", "x_weight", "control:addresses"))
_launch_row_shot = Launcher(row_shot_kernel, writes=_WRITES, reads_early=("weight", "x_weight", "control:addresses"))
_launch_two_shot = Launcher(two_shot_kernel, writes=_WRITES, reads_early=("control:addresses",))


def reducible(x: Tensor, residual: Tensor | None) -> bool:
    """Whether the kernels read these types and layouts."""
    if x.dim() != 2 or not x.is_contiguous() or x.dtype not in (torch.float16, torch.bfloat16, torch.float32):
        return False
    return residual is None or (residual.is_contiguous() and residual.dtype == x.dtype)


def fits_one_shot(x: Tensor, exchange: Exchange) -> bool:
    """Whether the one-shot algorithm takes `x`."""
    senders = exchange.world_size - _in_rows(x)
    row = triton.next_power_of_2(exchange.world_size) * triton.next_power_of_2(x.shape[-1])
    return x.numel() * x.element_size() * senders <= exchange.set_bytes and row <= MOST_VALUES


def _in_rows(x: Tensor) -> bool:
    """Whether one-shot thread blocks have whole rows: every SM has one then."""
    return x.shape[0] >= num_sms(x.device)


def fits_two_shots(x: Tensor, exchange: Exchange) -> bool:
    """Whether the two-shot algorithm takes `x`."""
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
        raise ValueError("allreduce_add_norm: x, residual and out must be contiguous, of one shape and type")
    if (residual is None) != (weight is None):
        raise ValueError("allreduce_add_norm: residual and weight must both be given, or neither")
    if not (fits_two_shots if two_shots else fits_one_shot)(x, exchange):
        raise ValueError(f"allreduce_add_norm: {tokens} x {hidden} values of {x.dtype} do not fit the buffers")
    if tokens == 0:
        return
    block = triton.next_power_of_2(hidden)
    pointers = (x, residual, weight, x_weight, out, exchange.control)
    constants = {"X_SCALE": x_scale, "BLOCK": block, "CLEAR": CLEAR, "CHECKED": CHECKED if x.is_cuda else 0}
    constants |= exchange.constants(x)
    # All thread blocks must be resident at once, because they wait for those of other ranks.
    most = num_sms(x.device)
    # As many as `add_rms_norm` has, so that squares are added up in the same order.
    warps = constants["num_warps"] = nearest("add_rms_norm", block=block)["num_warps"]
    # A compile dry run does not meet every number of tokens.
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
