"""GEMV of one token with an adapter beside it, in one launch: what `bf16_gemv` computes, and B (scale * A x).

    out = activation(norm(x) @ weight.T + delta + bias), and with `adds` what was in `out` besides
    delta = sum over the pages of the adapter of (scale * norm(x) @ a.T) @ b.T

Formula, layouts, types and rounding are those of `token_linear`; `a`, `b`, `scale`, `part_of_block` those of a site
(`rank_pages.py`), of one type with `weight`; `work`: `adapter_tiles.py`, of a step of one token.

The first thread blocks have a row of A each in place of rows of the weight, and pass their dot products to all others
(`shrunk_words.py`), which add B times these to their own. They are there when most of these have read their
rows. So an adapter is no kernel more: at one token a launch costs more than the bytes of an adapter of rank 16.
A thread block has as many registers as one of `bf16_gemv`, so that no fewer of them are on an SM.

A layer calls it in a step of one token that has an adapter. `weight`, `a`, `scale` and the tables are read before the
previous kernel has finished, so no kernel of the step may write them.
Bytes floor: (outputs * inputs + pages * RANK_UNITS * (parts * inputs + outputs)) * element size.
Lab: docs/lab/2026-11-adapters-on-a-card.md.
"""

# pyright: basic, reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false
import torch
from torch import Tensor

from ..lora.rank_pages import OUTPUT_BLOCK, RANK_UNITS
from ..lora.shrunk_words import turn_of, values_of, words_of
from ..lora.site_adapters import SiteAdapters
from ..norm.act_and_mul import act_and_mul_torch
from ..norm.activations import gated_activation
from ..norm.rms_norm import normalise_row, rms_norm_torch, rms_norm_triton
from ..runtime.launch import Launcher, launch_dependents, wait_for_previous
from ..runtime.register import register, triton_enabled
from ..runtime.triton import tl, triton
from .bf16_gemv import add_rest_of_rows, load_residual, read_weights, store_with_residual
from .bf16_ladder import BF16, BF16_GEMV, Bf16Problem
from .gemv_blocks import LONGEST, gemv_blocks
from .rows import weight_rows_of
from .token_linear import NO_NORM, NormPrologue

_SHRUNK_AT_ONCE = 4
"""Pages whose rows have thread blocks of their own. A graph has room for adapters of many pages, which few have."""
_WARP_THREADS = 32


@triton.jit
def _weighted(x, norm_ptr, norm_weight, inputs, eps):
    """The token times the weight of the norm, where there is one, and what multiplies dot products with that."""
    if norm_ptr is not None:
        return x * norm_weight.to(tl.float32), tl.rsqrt(tl.sum(x * x, axis=0) / inputs + eps)
    else:
        return x, 1.0


@triton.jit
def _norm_weight(norm_ptr, columns, inputs):
    """The weight of the norm; 0 where there is none."""
    if norm_ptr is not None:
        return tl.load(norm_ptr + columns, mask=columns < inputs, other=0.0)
    else:
        return 0.0


@triton.jit
def _row_of_a(
    row, a_ptr, scale_ptr, work_ptr, columns, inputs, stride_a_page, stride_scale_page, items,
    PARTS: tl.constexpr, UNITS: tl.constexpr, STEPS_A: tl.constexpr,
):  # fmt: skip
    """A row of A, as many inputs at a time as `columns` has, its scale, and whether there is one."""
    item = row // (PARTS * UNITS)
    unit = row % (PARTS * UNITS)
    page = tl.load(work_ptr + item * 2, mask=item < items, other=-1).to(tl.int64)
    here = page >= 0
    row_ptr = a_ptr + page * stride_a_page + unit * inputs
    a = ()
    for step in tl.static_range(STEPS_A):
        begin = step * columns.shape[0]
        a += (tl.load(row_ptr + begin + columns, mask=(columns < inputs - begin) & here, other=0.0),)
    return a, tl.load(scale_ptr + page * stride_scale_page + unit // UNITS, mask=here, other=0.0), here


@triton.jit
def _shrink(
    row, x_ptr, norm_ptr, a_ptr, scale_ptr, work_ptr, counts_ptr, words_ptr,
    inputs, stride_a_page, stride_scale_page, eps, shrink_blocks, items, launch,
    PARTS: tl.constexpr, UNITS: tl.constexpr, STEPS_A: tl.constexpr, BLOCK_A: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One thread block computes the dot product with one row of A of one page, all inputs at once; with very many
    pages, several, one after the other.
    """
    columns = tl.arange(0, BLOCK_A)
    a, scale, here = _row_of_a(
        row, a_ptr, scale_ptr, work_ptr, columns, inputs, stride_a_page, stride_scale_page, items, PARTS, UNITS, STEPS_A
    )
    turn = turn_of(counts_ptr, launch)
    norm_weight = _norm_weight(norm_ptr, columns, inputs)
    wait_for_previous(PDL)
    launch_dependents(PDL)
    while here:
        value = 0.0
        for step in tl.static_range(STEPS_A):
            begin = step * BLOCK_A
            x = tl.load(x_ptr + begin + columns, mask=columns < inputs - begin, other=0.0).to(tl.float32)
            x, norm = _weighted(x, norm_ptr, norm_weight, inputs, eps)
            value += tl.sum(a[step].to(tl.float32) * x, axis=0) * norm
        tl.store(words_ptr + row, words_of(value * scale, turn))
        row += shrink_blocks
        a, scale, here = _row_of_a(
            row, a_ptr, scale_ptr, work_ptr, columns, inputs, stride_a_page, stride_scale_page, items,
            PARTS, UNITS, STEPS_A,
        )  # fmt: skip


@triton.jit
def _pages_of(of_column, work_ptr, items):
    """The page of each column, whose item of work is `of_column`; -1 where there is none."""
    return tl.load(work_ptr + of_column * 2, mask=of_column < items, other=-1)


@triton.jit
def _load_words_and_b(word_ptrs, b_ptrs, pages, stride_b_page):
    """The words of some pages, perhaps not all there yet, their B, and which of these columns have a page."""
    here = tl.broadcast_to((pages >= 0)[None, :], b_ptrs.shape)
    words = tl.load(word_ptrs, mask=here, other=0, volatile=True)
    b = tl.load(b_ptrs + pages.to(tl.int64)[None, :] * stride_b_page, mask=here, other=0.0)
    return words, b, here


@triton.jit(
    do_not_specialize=["shrink_blocks", "items", "launch"],
    do_not_specialize_on_alignment=["work_ptr", "counts_ptr"],
)
def adapted_gemv_kernel(
    x_ptr,  # [inputs]
    weight_ptr,  # [outputs, inputs]
    bias_ptr,  # [outputs] or None
    norm_ptr,  # [inputs] or None: the weight of the norm that is fused as prologue
    normalised_ptr,  # [inputs] or None: where the normalised token is written
    out_ptr,  # [outputs or, with ACTIVATION, outputs / 2]
    a_ptr,  # [pages, PARTS, UNITS, inputs]
    b_ptr,  # [pages, outputs, UNITS]
    scale_ptr,  # [pages, PARTS] float32
    part_of_block_ptr,  # [blocks] int32, None where PARTS is 1
    work_ptr,  # [items, 2] int32, those of the token before empty ones
    counts_ptr,  # [3] int32: the step, tiles, items
    words_ptr,  # [items, PARTS, UNITS] int64
    inputs,
    outputs,
    stride_weight_output,
    stride_a_page,
    stride_b_page,
    stride_scale_page,
    eps,
    shrink_blocks,  # thread blocks for rows of A
    items,
    launch,
    ADDS: tl.constexpr,  # whether outputs are added to what is in `out`
    ACTIVATION: tl.constexpr,  # key of GATED, or None
    PARTS: tl.constexpr,
    UNITS: tl.constexpr,
    OUTPUT_BLOCK: tl.constexpr,
    STEPS_A: tl.constexpr,  # of BLOCK_A inputs, which a row of A has; 1 with a norm
    BLOCK_A: tl.constexpr,  # power of two
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    AT_ONCE: tl.constexpr,  # pages, so that there are as many words as threads (`values_of`)
    WHOLE: tl.constexpr,  # whether BLOCK_K is at least `inputs`
    MASK: tl.constexpr,  # whether BLOCK_K does not divide `inputs`
    PDL: tl.constexpr,
):
    """One thread block computes one rank unit, the others BLOCK_N outputs each."""
    if tl.program_id(0) < shrink_blocks:
        _shrink(
            tl.program_id(0), x_ptr, norm_ptr, a_ptr, scale_ptr, work_ptr, counts_ptr, words_ptr,
            inputs, stride_a_page, stride_scale_page, eps, shrink_blocks, items, launch,
            PARTS, UNITS, STEPS_A, BLOCK_A, PDL,
        )  # fmt: skip
        return
    block = tl.program_id(0) - shrink_blocks
    weight_rows = weight_rows_of(block, outputs, BLOCK_N, ACTIVATION is not None)
    # Nothing here waits for these before the rows are on their way.
    turn = turn_of(counts_ptr, launch)
    all_pages = tl.load(counts_ptr + 2)
    if PARTS > 1:
        parts = tl.load(part_of_block_ptr + weight_rows // OUTPUT_BLOCK)
    # Columns of B: the rank units of pages.
    units = tl.arange(0, AT_ONCE * UNITS)
    pages = _pages_of(units // UNITS, work_ptr, items)
    columns = tl.arange(0, BLOCK_K)
    weight_ptrs = weight_ptr + weight_rows.to(tl.int64)[:, None] * stride_weight_output + columns[None, :]
    weight = read_weights(weight_ptrs, (columns < inputs)[None, :], MASK)
    norm_weight = _norm_weight(norm_ptr, columns, inputs)
    wait_for_previous(PDL)
    # Not earlier: the next kernel relies on all kernels before this one being finished.
    launch_dependents(PDL)
    if ACTIVATION is None:
        places = block * BLOCK_N + tl.arange(0, BLOCK_N)
        end = outputs
    else:
        places = block * (BLOCK_N // 2) + tl.arange(0, BLOCK_N // 2)
        end = outputs // 2
    before = load_residual(out_ptr + places, places < end, ADDS)
    x = tl.load(x_ptr + columns, mask=columns < inputs, other=0.0).to(tl.float32)
    word_ptrs = words_ptr + (units // UNITS * (PARTS * UNITS) + units % UNITS)[None, :]
    if PARTS > 1:
        word_ptrs += parts[:, None] * UNITS
    else:
        word_ptrs = tl.broadcast_to(word_ptrs, [BLOCK_N, AT_ONCE * UNITS])
    b_ptrs = b_ptr + weight_rows[:, None] * UNITS + (units % UNITS)[None, :]
    # Most thread blocks find the words here, while they wait for their rows.
    words, b, here = _load_words_and_b(word_ptrs, b_ptrs, pages, stride_b_page)
    if norm_ptr is not None:  # noqa: SIM102 - Triton evaluates this, and compiles the inner condition
        if block == 0:
            normalised = normalise_row(x, norm_weight.to(tl.float32), inputs, eps, norm_ptr.dtype.element_ty)
            tl.store(normalised_ptr + columns, normalised.to(x_ptr.dtype.element_ty), mask=columns < inputs)
    x, norm = _weighted(x, norm_ptr, norm_weight, inputs, eps)
    acc = tl.sum(weight.to(tl.float32) * x[None, :], axis=1) * norm
    if not WHOLE:
        acc = add_rest_of_rows(acc, weight_ptrs, x_ptr + columns, columns, inputs, BLOCK_K, MASK)

    for first in range(0, all_pages, AT_ONCE):
        acc += tl.sum(values_of(word_ptrs, words, here, turn) * b.to(tl.float32), axis=1)
        word_ptrs += AT_ONCE * PARTS * UNITS
        pages = _pages_of(first + AT_ONCE + units // UNITS, work_ptr, items)
        words, b, here = _load_words_and_b(word_ptrs, b_ptrs, pages, stride_b_page)
    if bias_ptr is not None:
        acc += tl.load(bias_ptr + weight_rows).to(tl.float32)
    if ACTIVATION is None:
        out = acc
    else:
        acc = acc.to(x_ptr.dtype.element_ty).to(tl.float32)
        gate, up = tl.split(tl.reshape(acc, [BLOCK_N // 2, 2]))
        out = gated_activation(gate, up, ACTIVATION)
    store_with_residual(out_ptr + places, out, before, places < end, ADDS)


_launch = Launcher(
    adapted_gemv_kernel,
    writes=("out", "normalised", "words"),
    reads_early=("weight", "norm", "a", "scale", "part_of_block", "work", "counts"),
    dependents="after the wait",
)


def adapted_gemv_takes(weight: Tensor, a: Tensor) -> bool:
    """Whether `adapted_gemv` computes the GEMV of a token of the type of this weight, on this device."""
    if not (weight.is_cuda and triton_enabled()) or a.dtype != weight.dtype:
        return False
    like = weight[:1]
    return BF16.pick(Bf16Problem.of(like, weight, like)).kernel is BF16_GEMV


def adapted_gemv_triton(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    out: Tensor,
    adapters: SiteAdapters,
    activation: str | None = None,
    norm: NormPrologue = NO_NORM,
    adds: bool = False,
) -> None:
    """Triton implementation, for what `adapted_gemv_takes`. Raises ValueError for shapes and layouts that do not fit.

    It runs on one stream at a time, as all calls share the words.
    """
    adapters.check("adapted_gemv", x, len(weight), 1)
    outputs, inputs = weight.shape
    if inputs > LONGEST:
        x, norm = norm.apply(x, rms_norm_triton), NO_NORM
    config = gemv_blocks(weight, norm.weight is not None, activation is not None, adds)
    a, b, scale, parts = adapters.a, adapters.b, adapters.scale, adapters.parts
    items = len(adapters.work)
    shrink_blocks = min(items, _SHRUNK_AT_ONCE) * parts * RANK_UNITS
    words_of_page = config["BLOCK_N"] * RANK_UNITS
    _launch(
        (shrink_blocks + triton.cdiv(outputs, config["BLOCK_N"]),),
        (
            *(x, weight, bias, norm.weight, norm.normalised, out, a, b, scale, adapters.part_of_block),
            *(adapters.work, adapters.counts, adapters.words),
        ),
        (inputs, outputs, weight.stride(0), a.stride(0), b.stride(0), scale.stride(0)),
        (norm.eps, shrink_blocks, items, adapters.launch),
        ADDS=adds,
        ACTIVATION=activation,
        PARTS=parts,
        UNITS=RANK_UNITS,
        OUTPUT_BLOCK=OUTPUT_BLOCK,
        STEPS_A=triton.cdiv(inputs, LONGEST),
        BLOCK_A=min(LONGEST, triton.next_power_of_2(inputs)),
        AT_ONCE=max(1, config["num_warps"] * _WARP_THREADS // words_of_page),
        MASK=inputs % config["BLOCK_K"] != 0,
        **config,
    )


def adapted_gemv_torch(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    out: Tensor,
    adapters: SiteAdapters,
    activation: str | None = None,
    norm: NormPrologue = NO_NORM,
    adds: bool = False,
) -> None:
    """Torch implementation: the reference of the tests."""
    adapters.check("adapted_gemv", x, len(weight), 1)
    x = norm.apply(x, rms_norm_torch)
    sums = x.float() @ weight.float().t() + adapters.delta(x)
    result = (sums if bias is None else sums + bias.float()).to(out.dtype)
    if activation is not None:
        gated = torch.empty_like(out)
        act_and_mul_torch(result, activation, gated)
        result = gated
    out.copy_(out + result if adds else result)


adapted_gemv = register(
    adapted_gemv_torch, mutates=("out", "adapters_words", "norm_normalised"), triton=adapted_gemv_triton
)
