"""Chunks of decode attention on the host: how many there may be, memory for their partials, and the merge of these."""

# pyright: basic, reportArgumentType=false, reportGeneralTypeIssues=false
from dataclasses import dataclass

import torch
from torch import Tensor

from ..runtime.batches import padded_batch
from ..runtime.launch import Launcher, launch_dependents, wait_for_previous
from ..runtime.triton import tl, triton
from ._online_softmax import load_per_head
from ._split_kv import plan, row_offsets

# Up to this many requests are cut into one wave of chunks; more of them into more chunks, which balance lengths that
# differ.
_FEW_REQUESTS = 4

# Deterministic chunks depend on the length alone: this many positions, or more where a context would have more than
# _DETERMINISTIC_CHUNKS of them, which bounds the memory of partials.
_DETERMINISTIC_CHUNK = 256
_DETERMINISTIC_CHUNKS = 32


@triton.jit
def merge_chunks(
    partial_ptr,  # [items, members, V_DIM]
    partial_log_sum_ptr,  # [items, members]
    sinks_ptr,  # [heads] or None
    first_item,
    num_chunks,
    num_members,  # heads of all tokens of a request
    members,  # [BLOCK_H]
    heads,  # [BLOCK_H], those of `members`
    in_group,  # [BLOCK_H], whether there is such a member
    V_DIM: tl.constexpr,
    BLOCK_V: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK_H: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Merges the partials of all chunks in their order, BLOCK_C at a time, [BLOCK_H, BLOCK_V]. Of several tokens, those
    that are not there, or that see nothing, are no members, and yield zeros.

    Partials of other thread blocks are in L2, hence `.cg`.
    """
    elements = tl.arange(0, BLOCK_V)
    acc = tl.zeros([BLOCK_H, BLOCK_V], dtype=tl.float32)
    weight_sum = tl.zeros([BLOCK_H], dtype=tl.float32)
    maximum = tl.full([BLOCK_H], float("-inf"), dtype=tl.float32)
    for start in range(0, num_chunks, BLOCK_C):
        index = start + tl.arange(0, BLOCK_C)
        read = (index < num_chunks)[:, None] & in_group[None, :]
        rows = (first_item + index).to(tl.int64)[:, None] * num_members + members[None, :]
        log_sums = tl.load(partial_log_sum_ptr + rows, mask=read, other=float("-inf"), cache_modifier=".cg")
        places = rows[:, :, None] * V_DIM + elements[None, None, :]
        read = read[:, :, None] & (elements < V_DIM)[None, None, :]
        partial = tl.load(partial_ptr + places, mask=read, other=0.0, cache_modifier=".cg")
        # The first chunk is longer than WIDTH, so that every member sees some of it: those that exist are finite here.
        new_maximum = tl.where(in_group, tl.maximum(maximum, tl.max(log_sums, axis=0)), 0.0)
        correction = tl.exp2(maximum - new_maximum)
        weights = tl.exp2(log_sums - new_maximum[None, :])
        acc = acc * correction[:, None] + tl.sum(partial * weights[:, :, None], axis=0)
        weight_sum = weight_sum * correction + tl.sum(weights, axis=0)
        maximum = new_maximum
    if sinks_ptr is not None:
        weight_sum += tl.exp2(load_per_head(sinks_ptr, heads, in_group) - maximum)
    if WIDTH > 1:
        weight_sum = tl.where(weight_sum == 0.0, 1.0, weight_sum)
    return acc / weight_sum[:, None]


@triton.jit
def merge_log_sums(partial_log_sum_ptr, first_item, num_chunks, num_members, member, BLOCK_C: tl.constexpr):
    """Merges the logarithms of the sums of all chunks of one member."""
    maximum = float("-inf")
    total = 0.0
    for start in range(0, num_chunks, BLOCK_C):
        index = start + tl.arange(0, BLOCK_C)
        rows = (first_item + index).to(tl.int64) * num_members + member
        log_sums = tl.load(
            partial_log_sum_ptr + rows, mask=index < num_chunks, other=float("-inf"), cache_modifier=".cg"
        )
        new_maximum = tl.maximum(maximum, tl.max(log_sums, axis=0))
        base = tl.where(new_maximum == float("-inf"), 0.0, new_maximum)
        total = total * tl.exp2(maximum - base) + tl.sum(tl.exp2(log_sums - base), axis=0)
        maximum = new_maximum
    return maximum + tl.log2(total)


@triton.jit(
    do_not_specialize=["batch", "target_items", "one_wave", "min_chunk"],
    do_not_specialize_on_alignment=["b_kv_len_ptr"],
)
def merge_kernel(
    b_kv_len_ptr,  # [batch * WIDTH]
    partial_ptr,  # [items, WIDTH * heads, V_DIM] float32
    partial_log_sum_ptr,  # [items, WIDTH * heads] float32
    sinks_ptr,  # [heads] float32 or None
    out_ptr,  # [batch * WIDTH, heads, V_DIM]
    log_sum_ptr,  # [batch * WIDTH, heads] float32 or None
    stride_out_token,
    stride_out_head,
    batch,
    target_items,
    one_wave,
    min_chunk,
    V_DIM: tl.constexpr,
    BLOCK_V: tl.constexpr,
    BLOCK_B: tl.constexpr,
    BLOCK_C: tl.constexpr,  # chunks at a time
    DETERMINISTIC: tl.constexpr,
    WINDOW: tl.constexpr,
    WIDTH: tl.constexpr,
    PDL: tl.constexpr,
):
    """One thread block merges the chunks of one head of one token. A single chunk is in `out` already."""
    launch_dependents(PDL)
    member = tl.program_id(0) + tl.arange(0, 1)
    request = tl.program_id(1)
    head, token, exists = member, member, member >= 0
    if WIDTH > 1:
        heads = tl.num_programs(0) // WIDTH
        head, token = member % heads, member // heads
        exists = tl.load(b_kv_len_ptr + request * WIDTH + token) > 0
    _, chunks = plan(b_kv_len_ptr, batch, target_items, one_wave, min_chunk, BLOCK_B, DETERMINISTIC, WINDOW, WIDTH)
    requests = tl.arange(0, BLOCK_B)
    num_chunks = tl.sum(tl.where(requests == request, chunks, 0), axis=0)
    first = tl.sum(tl.where(requests < request, chunks, 0), axis=0)
    wait_for_previous(PDL)
    if num_chunks <= 1:
        return
    elements = tl.arange(0, BLOCK_V)
    out = merge_chunks(
        partial_ptr, partial_log_sum_ptr, sinks_ptr, first, num_chunks, tl.num_programs(0), member, head, exists,
        V_DIM, BLOCK_V, BLOCK_C, 1, WIDTH,
    )  # fmt: skip
    out_row_ptr = out_ptr + (request * WIDTH).to(tl.int64) * stride_out_token
    out_row_ptr += row_offsets(head[:, None], token[:, None], stride_out_token, stride_out_head, WIDTH)
    tl.store(out_row_ptr + elements[None, :], out.to(out_ptr.dtype.element_ty), mask=(elements < V_DIM)[None, :])
    if log_sum_ptr is not None:
        log_sum = merge_log_sums(partial_log_sum_ptr, first, num_chunks, tl.num_programs(0), tl.program_id(0), BLOCK_C)
        tl.store(log_sum_ptr + request * tl.num_programs(0) + tl.program_id(0), log_sum)


_launch_merge = Launcher(merge_kernel, writes=("out", "log_sum"), reads_early=("b_kv_len",))


@dataclass(frozen=True)
class Chunking:
    """Bounds of a launch, and memory for the partials of its chunks."""

    items: int
    """Most chunks of all requests."""
    several: bool
    """Whether a request may have more than one chunk."""
    partial: Tensor
    """[items, heads of all tokens of a request, elements of a result] float32"""
    partial_log_sum: Tensor
    """[items, heads of all tokens of a request] float32"""
    planned: tuple[int, int, int, int]
    """Arguments of `plan`: `batch`, `target_items`, `one_wave`, `min_chunk`."""
    constants: dict[str, int]
    """Constexprs of `plan`."""

    @classmethod
    def of(
        cls,
        out: Tensor,
        max_kv_len: int,
        programs: int,
        resident: int,
        min_chunk: int,
        deterministic: bool,
        window: int = 0,
        width: int = 1,
    ) -> "Chunking":
        """`out` [batch * width, heads, elements]. `max_kv_len`: most positions that a token attends to, but for
        `window`. `resident` chunks run at once, and `programs` chunks balance lengths that differ.
        """
        tokens, heads, elements = out.shape
        batch, members = tokens // width, heads * width
        # The first of several tokens sees positions that lie before the window of the last.
        max_seen = (min(max_kv_len, window) if window else max_kv_len) + width - 1
        window += width - 1 if window else 0
        one_wave = max(1, resident)
        if deterministic:
            target_items, min_chunk = _DETERMINISTIC_CHUNKS, _DETERMINISTIC_CHUNK
        else:
            target_items = one_wave if batch <= _FEW_REQUESTS else max(one_wave, programs)
        longest = min(max(1, triton.cdiv(max_seen, min_chunk)), target_items)  # chunks of the longest request
        items = batch * longest if deterministic else min(batch * longest, target_items + batch)
        return cls(
            items,
            longest > 1,
            out.new_empty(items, members, elements, dtype=torch.float32),
            out.new_empty(items, members, dtype=torch.float32),
            (batch, target_items, one_wave, min_chunk),
            {"BLOCK_B": padded_batch(batch), "DETERMINISTIC": deterministic, "WINDOW": window, "WIDTH": width},
        )

    def merge(
        self,
        b_kv_len: Tensor,
        sinks: Tensor | None,
        out: Tensor,
        block_v: int,
        block_c: int,
        warps: int = 4,
        log_sum: Tensor | None = None,
    ) -> None:
        """Launches the merge of each request's chunks, `block_c` of them at a time. `log_sum` has the meaning of
        `latent_decode_attention`: for requests of one token, without sinks.
        """
        if not self.several:
            return
        (tokens, heads, elements), width = out.shape, self.constants["WIDTH"]
        _launch_merge(
            (heads * width, tokens // width),
            (b_kv_len, self.partial, self.partial_log_sum, sinks, out, log_sum),
            out.stride()[:2],
            self.planned,
            V_DIM=elements,
            BLOCK_V=block_v,
            BLOCK_C=block_c,
            num_warps=warps,
            **self.constants,
        )
