"""What adapters add to the outputs of a layer, shrink and expand in one launch.

    out[token] = sum over the pages of the token's adapter of (scale * x[token] @ a.T) @ b.T, zeros without adapter

Layouts: `x` `[tokens, inputs]`, `out` `[tokens, outputs]` float32, as one of the split-K partials `[n, tokens,
outputs]` that the next kernel adds up; both with unit stride in the last dimension, any stride between tokens. The
pages of a site and the tables of a step, with tiles of TILE_TOKENS tokens: `site_adapters.py`. `x`, `a` and `b` have
one 16-bit type; sums are float32. ValueError for shapes that do not fit.

The first thread blocks shrink (`delta_shrink.py`) and pass the results to the others (`shrunk_words.py`), which expand
some outputs of one tile at a time (`delta_expand.py`). Their number does not depend on that of adapters: a graph has
tables for as many adapters as tokens, and thread blocks for all of them would take longer to start than those of one
adapter to compute. Where the type is bfloat16, the GEMMs of expand take what shrink made as two bfloat16 numbers, of
which nothing is rounded before the sums; else as three TF32 numbers.

A site calls it in a step of few tokens, in one of two ways:

- `beside`: after the GEMM of the base, as one more split-K partial. `x` is read and everything computed while the GEMM
  runs, which therefore must launch dependents after its wait and not write `x`; only the end waits for it.
- before a GEMM whose epilogue adds the result (`adapted_linear`). It launches dependents once it has waited, when `x`
  is finished, so that the GEMM runs while this computes, and waits at its own end.

Either way thread blocks of both must fit into an SM, which shared memory and registers are measured for. The pages and
the tables are read before the previous kernel has finished, so no kernel of the step may write them.
Bytes floor: for each page in use RANK_UNITS * (parts * inputs + outputs) * element size, and for each token its inputs
and 4 * outputs. Lab: docs/lab/2026-11-adapters-on-a-card.md.
"""

# pyright: basic, reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false
import torch
from torch import Tensor

from ..runtime.device import num_sms
from ..runtime.launch import Launcher, launch_dependents, wait_for_previous
from ..runtime.register import register, triton_enabled
from ..runtime.triton import tl, triton
from .adapter_tiles import TILE_TOKENS
from .delta_expand import expand
from .delta_shrink import shrink
from .rank_pages import OUTPUT_BLOCK, RANK_UNITS
from .shrunk_words import turn_of
from .site_adapters import SiteAdapters

MOST_TOKENS = 64
"""Of a step: with more, the GEMM of the base takes so long that launches count for little."""
_STEP, _STEPS_AT_ONCE = 64, 8
"""Inputs that a thread block shrinks in one step, and the steps whose loads are in flight together."""
_MOST_SPLITS = 8
"""Of the inputs of a layer, because expand reads the sums of each."""
_OUTPUTS, _BLOCK_N = 256, 64
"""Outputs of a thread block at a time, and those of a tile."""
_SHRINK_BLOCKS, _EXPAND_BLOCKS = 2, 3
"""The most thread blocks that shrink and that expand, by SM."""
_SHRINK_BLOCKS_AHEAD, _EXPAND_BLOCKS_AHEAD = 2, 3
"""The same before a GEMM, whose thread blocks are to find room beside these."""
_WARPS, _REGISTERS = 4, 168
"""Two thread blocks of so many registers, and of so little shared memory, fit beside one of the GEMM."""


@triton.jit(
    do_not_specialize=["items", "shrink_blocks", "launch"],
    do_not_specialize_on_alignment=["order_ptr", "tiles_ptr", "work_ptr", "counts_ptr"],
)
def lora_delta_kernel(
    x_ptr,  # [tokens, inputs]
    a_ptr,  # [pages, PARTS, UNITS, inputs]
    b_ptr,  # [pages, outputs, UNITS]
    scale_ptr,  # [pages, PARTS] float32
    part_of_block_ptr,  # [blocks] int32, None where PARTS is 1
    order_ptr,  # [tokens] int32
    tiles_ptr,  # [tiles, 4] int32
    work_ptr,  # [items, 2] int32
    counts_ptr,  # [3] int32: the step, tiles, items
    words_ptr,  # [SPLITS, items, PARTS, BLOCK_M, UNITS] int64
    out_ptr,  # [tokens, outputs] float32
    inputs,
    outputs,
    inputs_of_split,  # a multiple of BLOCK_K
    stride_x_token,
    stride_a_page,
    stride_b_page,
    stride_scale_page,
    stride_out_token,
    items,
    shrink_blocks,
    launch,
    BESIDE: tl.constexpr,  # whether the previous kernel is the GEMM of the base
    SPLITS: tl.constexpr,
    BLOCK_S: tl.constexpr,  # power of two, at least SPLITS
    PARTS: tl.constexpr,
    UNITS: tl.constexpr,
    OUTPUT_BLOCK: tl.constexpr,
    MASK_K: tl.constexpr,  # whether BLOCK_K does not divide `inputs`
    BLOCK_M: tl.constexpr,  # tokens of a tile
    STEPS: tl.constexpr,  # of BLOCK_K inputs, whose loads are in flight together
    BLOCK_K: tl.constexpr,
    OUTPUTS: tl.constexpr,  # of a thread block at a time, all of one part
    BLOCK_N: tl.constexpr,  # those of a tile
    THREADS: tl.constexpr,  # of a thread block
    PDL: tl.constexpr,
):
    """Thread blocks below `shrink_blocks` shrink; the others expand."""
    if BESIDE:
        # The next kernel waits for this one, which ends after the previous one.
        launch_dependents(PDL)
    turn = turn_of(counts_ptr, launch)
    if tl.program_id(0) < shrink_blocks:
        shrink(
            tl.program_id(0), x_ptr, a_ptr, scale_ptr, order_ptr, tiles_ptr, work_ptr, counts_ptr, words_ptr, turn,
            inputs, inputs_of_split, stride_x_token, stride_a_page, stride_scale_page, items, shrink_blocks,
            BESIDE, SPLITS, PARTS, UNITS, MASK_K, BLOCK_M, STEPS, BLOCK_K, PDL,
        )  # fmt: skip
    else:
        expand(
            tl.program_id(0) - shrink_blocks, tl.num_programs(0) - shrink_blocks,
            b_ptr, part_of_block_ptr, order_ptr, tiles_ptr, work_ptr, counts_ptr, words_ptr, turn, out_ptr,
            outputs, stride_b_page, stride_out_token, items,
            BESIDE, SPLITS, BLOCK_S, PARTS, UNITS, OUTPUT_BLOCK, BLOCK_M, OUTPUTS, BLOCK_N, THREADS, PDL,
        )  # fmt: skip
    if BESIDE:
        wait_for_previous(PDL)


_PAGES = ("a", "b", "scale", "part_of_block", "order", "tiles", "work", "counts")
_launch = Launcher(lora_delta_kernel, writes=("out", "words"), reads_early=_PAGES, dependents="after the wait")
_launch_beside = Launcher(
    lora_delta_kernel, writes=("out", "words"), reads_early=("x", "words", "out", *_PAGES), name="lora_delta_beside"
)


def delta_splits(inputs: int) -> int:
    """The number of splits of a layer's inputs, none of them empty."""
    steps = -(-inputs // _STEP)
    return -(-steps // _steps_of_split(inputs))


def _steps_of_split(inputs: int) -> int:
    steps = -(-inputs // _STEP)
    return max(_STEPS_AT_ONCE, -(-steps // _MOST_SPLITS))


def lora_delta_takes(x: Tensor, a: Tensor) -> bool:
    """Whether `lora_delta` is the fastest for so many tokens, on this device."""
    return x.is_cuda and triton_enabled() and len(x) <= MOST_TOKENS and x.dtype == a.dtype and x.element_size() == 2


def lora_delta_triton(x: Tensor, adapters: SiteAdapters, out: Tensor, beside: bool = False) -> None:
    """Triton implementation. Raises ValueError for shapes and layouts that do not fit.

    It runs on one stream at a time, as all calls share the words.
    """
    outputs, inputs = out.shape[1], x.shape[1]
    splits = delta_splits(inputs)
    each = adapters
    each.check("lora_delta", x, outputs, splits)
    if x.stride(1) != 1 or out.stride(1) != 1 or out.dtype != torch.float32 or len(out) != len(x):
        raise ValueError("lora_delta: out must be float32, and tokens of x and out contiguous")
    own = min(each.run, _OUTPUTS)
    expands, shrinks = len(each.tiles) * triton.cdiv(outputs, own), len(each.work) * splits * each.parts
    to_shrink, to_expand = (_SHRINK_BLOCKS, _EXPAND_BLOCKS) if beside else (_SHRINK_BLOCKS_AHEAD, _EXPAND_BLOCKS_AHEAD)
    sms = num_sms(x.device)
    shrink_blocks = min(shrinks, to_shrink * sms)
    (_launch_beside if beside else _launch)(
        (shrink_blocks + min(expands, to_expand * sms),),
        (
            *(x, each.a, each.b, each.scale, each.part_of_block),
            *(each.order, each.tiles, each.work, each.counts, each.words, out),
        ),
        (
            *(inputs, outputs, _steps_of_split(inputs) * _STEP),
            *(x.stride(0), each.a.stride(0), each.b.stride(0), each.scale.stride(0), out.stride(0)),
        ),
        (len(each.work), shrink_blocks, each.launch),
        BESIDE=beside,
        SPLITS=splits,
        BLOCK_S=triton.next_power_of_2(splits),
        PARTS=each.parts,
        UNITS=RANK_UNITS,
        OUTPUT_BLOCK=OUTPUT_BLOCK,
        MASK_K=inputs % _STEP != 0,
        BLOCK_M=TILE_TOKENS,
        STEPS=_STEPS_AT_ONCE,
        BLOCK_K=_STEP,
        OUTPUTS=own,
        BLOCK_N=min(own, _BLOCK_N),
        THREADS=32 * _WARPS,
        num_warps=_WARPS,
        num_stages=1,
        maxnreg=_REGISTERS,
    )


def lora_delta_torch(x: Tensor, adapters: SiteAdapters, out: Tensor, beside: bool = False) -> None:
    """Torch implementation: the reference of the tests. `beside` changes nothing."""
    del beside
    adapters.check("lora_delta", x, out.shape[1], 1)
    out.copy_(adapters.delta(x))


lora_delta = register(lora_delta_torch, mutates=("adapters_words", "out"), triton=lora_delta_triton)
