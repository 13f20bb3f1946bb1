"""Product of tokens with a weight matrix that is stored as codes in groups; the tokens keep their 16 bits.

    out = x[:, perm] @ weight.T + bias, weight = (code - zero) * scale or table[code] * scale

Layouts: `x` `[tokens, inputs]`, `out` `[tokens, outputs]`, unit stride in the last dimension, one floating type;
`packed` as `pack_codes` makes it, or float8 `[outputs, inputs]`; `scales` and `zeros` as `pack_scales` makes them, with
the `group_size` that it returns (0: all inputs are one group); `table` [16] float32, `perm` [inputs] int64, `bias`
`[outputs]`, each or None. Zeros that are not given are 2 ** (bits - 1). A group of another size than 32, 64, 128 or a
multiple of 128 is right, but slow. Batches that are padded to one size give a token the same result to the bit,
whichever others are there.

Up to 192 tokens the kernel reads codes, 64 tokens at a time; more are multiplied with a matrix in 16 bits, which
`dequantise` writes into scratch memory of 512 MiB at most.
Bytes floor: outputs * inputs * bits / 8, and the scales.
Measured on an H200 in bfloat16 with groups of 128 and no zeros, microseconds at 1 / 16 / 32 / 64 tokens, the matrix in
16 bits in brackets (`skinny_linear`):
6144 x 4096 8.2 / 9.2 / 12.4 / 17.9 (14.8 / 15.0 / 15.7 / 16.9), 4096 x 4096 7.3 / 8.7 / 10.2 / 13.4 (11.5 / 11.7 /
11.7 / 12.5), 28672 x 4096 21.5 / 26.7 / 32.6 / 47.5 (59.0 / 61.6 / 60.9 / 65.5), 4096 x 14336 14.2 / 16.1 / 19.5 / 27.7
(32.7 / 31.6 / 32.6 / 35.0), 57344 x 8192 67.4 / 95.1 / 116.1 / 166.5 (209.4 / 213.3 / 217.7 / 229.4).
28672 x 4096 as int8 with a scale for each output 32.5 / 34.0 / 57.3 / 82.0, as float8 32.9 / 35.7 / 62.5 / 87.9; with a
table of 16 values and groups of 64, 49.9 / 57.6 / 66.4 / 88.5. That is 68 % of a copy's bandwidth at one token for
28672 x 4096, 87 % for 57344 x 8192. Many tokens of 28672 x 4096: 256 175 (89), 512 233 (154), 2048 679 (597).
See benchmark/results/tune_grouped.json.
"""

# pyright: basic, reportArgumentType=false, reportAssignmentType=false, reportCallIssue=false
import torch
from torch import Tensor

from ._codes import eight_bits, load_table, lookups, nibbles, plain_plane
from ._config import nearest
from ._device import shared_kib
from ._groups import BLOCK, group_values
from ._launch import Launcher, arrivals, is_last, let_next_start, wait_for_previous
from ._register import register
from ._triton import tl, triton
from .dequantise import dequantise

MAX_TOKENS = 192
"""More tokens than this are for a matrix in 16 bits. On an H200 that takes 150 us for 128 tokens and 28672 x 4096
(175 for 256), and the kernel 48 for each 64.
"""
_BLOCK_TOKENS = 64
"""Of one launch."""


@triton.jit
def _product(weight, x, acc, SWAP: tl.constexpr):
    """[outputs, tokens], or [tokens, outputs] where `SWAP`."""
    if SWAP:
        return tl.dot(x, weight.T, acc)
    else:
        return tl.dot(weight, x.T, acc)


@triton.jit
def _zeros(OUTPUTS: tl.constexpr, TOKENS: tl.constexpr, SWAP: tl.constexpr):
    """What `_product` adds to."""
    if SWAP:
        return tl.zeros([TOKENS, OUTPUTS], dtype=tl.float32)
    else:
        return tl.zeros([OUTPUTS, TOKENS], dtype=tl.float32)


@triton.jit
def _outputs(values, SWAP: tl.constexpr):
    """One value for each output, beside what `_product` returns."""
    return values[None, :] if SWAP else values[:, None]


@triton.jit
def _repeated(sums, OUTPUTS: tl.constexpr, SWAP: tl.constexpr):
    """Equal rows (columns where `SWAP`), repeated until there are as many as outputs."""
    if SWAP:
        tokens: tl.constexpr = sums.shape[0]
        times: tl.constexpr = OUTPUTS // sums.shape[1]
        return tl.reshape(tl.broadcast_to(sums[:, None, :], [tokens, times, sums.shape[1]]), [tokens, OUTPUTS])
    else:
        tokens: tl.constexpr = sums.shape[1]
        times: tl.constexpr = OUTPUTS // sums.shape[0]
        return tl.reshape(tl.broadcast_to(sums[None, :, :], [times, sums.shape[0], tokens]), [OUTPUTS, tokens])


@triton.jit
def _columns(values, COUNT: tl.constexpr):
    """[rows, COUNT] to its columns, as float32."""
    values = values.to(tl.float32)
    rows: tl.constexpr = values.shape[0]
    if COUNT == 2:
        return tl.split(values)
    elif COUNT == 4:
        even, odd = tl.split(tl.reshape(values, [rows, 2, 2]))
        a, c = tl.split(even)
        b, d = tl.split(odd)
        return a, b, c, d
    else:
        even, odd = tl.split(tl.reshape(values, [rows, 4, 2]))
        even = _columns(even, 4)
        odd = _columns(odd, 4)
        return even[0], odd[0], even[1], odd[1], even[2], odd[2], even[3], odd[3]


@triton.jit(do_not_specialize=["tokens", "splits"])
def grouped_linear_kernel(
    x_ptr,  # [tokens, inputs]
    packed_ptr,  # int32 [outputs, blocks * 32], or uint8 [outputs, inputs]
    scales_ptr,  # [blocks, outputs, GROUPS], or [1, outputs] where GROUPS is 1
    zeros_ptr,  # as scales_ptr, or None
    table_ptr,  # [16] float32 or None
    bias_ptr,  # [outputs] or None
    out_ptr,  # [tokens, outputs]
    partial_ptr,  # [splits, tiles, BLOCK_N * BLOCK_M] float32, used where splits > 1
    arrived_ptr,  # [tiles] int32, zero before and after
    inputs,
    outputs,
    stride_x_token,
    stride_packed_output,
    stride_out_token,
    tokens,
    splits,
    FLOAT8: tl.constexpr,  # uint8 are the bytes of float8
    GROUPS: tl.constexpr,  # in 256 inputs; 1: all inputs are one group
    MASK_K: tl.constexpr,  # whether inputs are no whole blocks of 256
    FOLD: tl.constexpr,  # weights are scaled and rounded to 16 bits, not sums of a group
    SUMS: tl.constexpr,  # zeros are subtracted from sums of a group, not from weights
    SWAP: tl.constexpr,  # tokens are the left operand
    PLAIN: tl.constexpr,  # no inline instructions
    BLOCK_M: tl.constexpr,  # at least tokens
    BLOCK_N: tl.constexpr,
    BLOCK_S: tl.constexpr,  # outputs that sums are computed for
    PDL: tl.constexpr,
):
    """One program computes BLOCK_N outputs of all tokens, over one of `splits` parts of the inputs.

    The last program of a tile adds up its parts, in their order.
    """
    FOUR: tl.constexpr = packed_ptr.dtype.element_ty == tl.int32
    DTYPE: tl.constexpr = x_ptr.dtype.element_ty
    FP16: tl.constexpr = tl.float16 == DTYPE
    BLOCK_K: tl.constexpr = 256
    COUNT: tl.constexpr = GROUPS if GROUPS > 1 else 2
    GROUP: tl.constexpr = BLOCK_K // COUNT
    DEPTH: tl.constexpr = 32 if FOUR else GROUP
    # What codes are in registers, more than they stand for where zeros are not given.
    BASE: tl.constexpr = (0 if table_ptr is not None else 1024 if FP16 else 128) if FOUR else -128
    SHIFTED: tl.constexpr = zeros_ptr is not None or (FOUR and table_ptr is None)
    tile = tl.program_id(0)
    split = tl.program_id(1)
    blocks = tl.cdiv(inputs, BLOCK_K)
    part = tl.cdiv(blocks, splits)
    begin = split * part
    end = tl.minimum(begin + part, blocks)
    rows = tile * BLOCK_N + tl.arange(0, BLOCK_N)
    # Rows past the end read the last one, and are not stored.
    weight_rows = tl.minimum(rows, outputs - 1)
    members = tl.arange(0, BLOCK_M)
    here = (members < tokens)[:, None]
    columns = tl.arange(0, DEPTH)[None, :]
    row_ptrs = packed_ptr + weight_rows.to(tl.int64)[:, None] * stride_packed_output
    step = BLOCK_K // 8 if FOUR else BLOCK_K
    x_rows = x_ptr + members.to(tl.int64)[:, None] * stride_x_token + columns
    row_places = weight_rows[:, None] * COUNT + tl.arange(0, COUNT)[None, :]
    # Programs begin at different blocks, or all would read the same part of x at the same time from the L2 cache.
    block = tl.minimum(begin + tile % tl.maximum(end - begin, 1), blocks - 1)
    if GROUPS > 1:
        next_scales = tl.load(scales_ptr + row_places + block * outputs * COUNT)
        if zeros_ptr is not None:
            next_zeros = tl.load(zeros_ptr + row_places + block * outputs * COUNT)
    ones = tl.full([BLOCK_S, DEPTH], 1.0, tl.float32).to(DTYPE)
    table = None
    if table_ptr is not None and not PLAIN:
        table = load_table(table_ptr, FP16)
    if GROUPS == 1 and zeros_ptr is not None:
        whole_zero = tl.load(zeros_ptr + weight_rows).to(tl.float32) + BASE

    wait_for_previous(PDL)
    acc = _zeros(BLOCK_N, BLOCK_M, SWAP)
    shared_sums = _zeros(BLOCK_S, BLOCK_M, SWAP)
    for _ in range(begin, end):
        this_block = block
        packed_ptrs = row_ptrs + block * step
        x_ptrs = x_rows + block * BLOCK_K
        block = tl.where(block + 1 == end, begin, block + 1)
        if FOUR and not PLAIN:
            words = tl.load(packed_ptrs + tl.arange(0, 32)[None, :], eviction_policy="evict_first")
            planes = nibbles(words, FP16) if table_ptr is None else lookups(words, table, FP16)
        if GROUPS > 1:
            # Of the next block, because these loads are not part of Triton's pipeline.
            places = row_places + block * outputs * COUNT
            following_scales = tl.load(scales_ptr + places)
            scales = _columns(next_scales, COUNT)
            if zeros_ptr is not None:
                following_zeros = tl.load(zeros_ptr + places)
                zeros = _columns(next_zeros, COUNT)
        for group in tl.static_range(COUNT):
            if GROUPS > 1 and not FOLD:
                partial = _zeros(BLOCK_N, BLOCK_M, SWAP)
                sums = _zeros(BLOCK_S, BLOCK_M, SWAP)
            else:
                partial = acc
                sums = shared_sums
            for dot in tl.static_range(GROUP // DEPTH):
                first = group * GROUP + dot * DEPTH
                if MASK_K:
                    inside = columns < inputs - this_block * BLOCK_K - first
                    x = tl.load(x_ptrs + first, mask=here & inside, other=0.0)
                else:
                    x = tl.load(x_ptrs + first, mask=here, other=0.0)
                if FOUR:
                    if PLAIN:
                        weight = plain_plane(packed_ptrs, table_ptr, group * (GROUP // DEPTH) + dot, DTYPE)
                    else:
                        weight = planes[group * (GROUP // DEPTH) + dot]
                else:
                    if MASK_K:
                        codes = tl.load(packed_ptrs + first + columns, mask=inside, other=0)
                    else:
                        codes = tl.load(packed_ptrs + first + columns, eviction_policy="evict_first")
                    weight = eight_bits(codes, FLOAT8, DTYPE, PLAIN)
                if SHIFTED:
                    if SUMS:
                        sums = _product(ones, x, sums, SWAP)
                    elif zeros_ptr is None:
                        weight -= BASE + 8
                    elif GROUPS > 1:
                        weight -= (zeros[group] + BASE).to(DTYPE)[:, None]
                    else:
                        weight -= whole_zero.to(DTYPE)[:, None]
                if FOLD and GROUPS > 1:
                    weight *= scales[group].to(DTYPE)[:, None]
                partial = _product(weight, x, partial, SWAP)
            if GROUPS > 1 and not FOLD:
                if SHIFTED and SUMS:
                    if zeros_ptr is None:
                        partial -= _repeated(sums, BLOCK_N, SWAP) * (BASE + 8.0)
                    else:
                        partial -= _repeated(sums, BLOCK_N, SWAP) * _outputs(zeros[group] + BASE, SWAP)
                acc += partial * _outputs(scales[group], SWAP)
            else:
                acc = partial
                shared_sums = sums
        if GROUPS > 1:
            next_scales = following_scales
            if zeros_ptr is not None:
                next_zeros = following_zeros
    # Not earlier: a kernel that has waited relies on all before the last product being finished.
    let_next_start(PDL)

    if GROUPS == 1:
        if SHIFTED and SUMS:
            if zeros_ptr is None:
                acc -= _repeated(shared_sums, BLOCK_N, SWAP) * (BASE + 8.0)
            else:
                acc -= _repeated(shared_sums, BLOCK_N, SWAP) * _outputs(whole_zero, SWAP)
        acc *= _outputs(tl.load(scales_ptr + weight_rows).to(tl.float32), SWAP)
    output_places = _outputs(tl.arange(0, BLOCK_N), SWAP)
    token_places = members[:, None] if SWAP else members[None, :]
    if splits > 1:
        tile_ptr = partial_ptr + tile * BLOCK_N * BLOCK_M + output_places * BLOCK_M + token_places
        if SWAP:
            tile_ptr = partial_ptr + tile * BLOCK_N * BLOCK_M + token_places * BLOCK_N + output_places
        stride_split = tl.num_programs(0) * BLOCK_N * BLOCK_M
        tl.store(tile_ptr + split * stride_split, acc)
        if not is_last(arrived_ptr + tile, splits):
            return
        acc = _zeros(BLOCK_N, BLOCK_M, SWAP)
        # Some parts at once, because each waits for memory.
        for first in range(0, splits, 4):
            for index in tl.static_range(4):
                part_ptr = tile_ptr + (first + index) * stride_split
                acc += tl.load(part_ptr, mask=first + index < splits, other=0.0, cache_modifier=".cg")
    if bias_ptr is not None:
        acc += _outputs(tl.load(bias_ptr + weight_rows).to(tl.float32), SWAP)
    out_ptrs = out_ptr + token_places.to(tl.int64) * stride_out_token + _outputs(rows, SWAP)
    stored = (token_places < tokens) & _outputs(rows < outputs, SWAP)
    tl.store(out_ptrs, acc.to(DTYPE), mask=stored)


_launch = Launcher(grouped_linear_kernel)
_SCRATCH_BYTES = 512 << 20
"""What a matrix in 16 bits may take; larger ones are made in parts. Parts that stay in the L2 cache (16 to 64 MiB) were
slower on an H200, because the library's products with them are small.
"""


def grouped_linear_triton(
    x: Tensor,
    packed: Tensor,
    scales: Tensor,
    zeros: Tensor | None,
    table: Tensor | None,
    perm: Tensor | None,
    bias: Tensor | None,
    out: Tensor,
    group_size: int,
) -> None:
    """Triton implementation. Raises ValueError for shapes that do not fit.

    On one stream at a time: programs of all calls count their arrivals in one place. Run once before a capture.
    """
    tokens, inputs = x.shape
    outputs = packed.shape[0]
    width = -(-inputs // BLOCK) * BLOCK // 8 if packed.dtype == torch.int32 else inputs
    if packed.shape[1] != width or out.shape != (tokens, outputs) or (bias is not None and bias.shape != (outputs,)):
        shapes = [tuple(tensor.shape) for tensor in (x, packed, bias, out) if tensor is not None]
        raise ValueError(f"grouped_linear: shapes of x, packed, bias, out do not fit: {shapes}")
    if tokens == 0:
        return
    if perm is not None:
        x = x.index_select(1, perm)
    if tokens > MAX_TOKENS or not _fits(x, packed, scales, out, group_size):
        _by_matrix(x, packed, scales, zeros, table, bias, out, group_size)
        return
    for first in range(0, tokens, _BLOCK_TOKENS):
        block = slice(first, first + _BLOCK_TOKENS)
        _by_codes(x[block], packed, scales, zeros, table, bias, out[block])


def _by_codes(
    x: Tensor,
    packed: Tensor,
    scales: Tensor,
    zeros: Tensor | None,
    table: Tensor | None,
    bias: Tensor | None,
    out: Tensor,
) -> None:
    """One launch of the kernel."""
    tokens, inputs = x.shape
    outputs = packed.shape[0]
    block_m = max(8, triton.next_power_of_2(tokens))
    bits = 4 if packed.dtype == torch.int32 else 8
    sizes = {"bits": bits, "outputs": outputs, "inputs": inputs, "tokens": block_m}
    config = dict(nearest("grouped_linear", shared_kib=shared_kib(x.device), **sizes))
    splits, swap, fold = config.pop("splits"), bool(config.pop("SWAP")), bool(config.pop("FOLD"))
    block_n = config["BLOCK_N"]
    tiles = triton.cdiv(outputs, block_n)
    float8 = packed.is_floating_point()
    arrived = arrivals(x.device, tiles)
    partial = x.new_empty(splits * tiles * block_n * block_m if splits > 1 else 0, dtype=torch.float32)
    _launch(
        (tiles, splits),
        (x, packed.view(torch.uint8) if float8 else packed, scales, zeros, table, bias, out, partial, arrived),
        (inputs, outputs, x.stride(0), packed.stride(0), out.stride(0)),
        (tokens, splits),
        FLOAT8=float8,
        GROUPS=scales.shape[2] if scales.dim() == 3 else 1,
        MASK_K=inputs % BLOCK != 0,
        FOLD=fold,
        SUMS=not fold and _sums(x.dtype, block_m),
        SWAP=swap,
        PLAIN=not x.is_cuda or torch.version.cuda is None,
        BLOCK_M=block_m,
        BLOCK_S=min(block_n, config["num_warps"] * (8 if swap else 16)),
        **config,
    )


def _sums(dtype: torch.dtype, block_m: int) -> bool:
    """Whether zeros are subtracted from sums: 136 x costs no bit that counts in float32, 1032 x would. For more tokens
    it is fewer instructions to subtract them from weights.
    """
    return dtype == torch.bfloat16 and block_m <= 32


def _fits(x: Tensor, packed: Tensor, scales: Tensor, out: Tensor, group_size: int) -> bool:
    """Whether the kernel reads these tensors."""
    return (
        x.element_size() == 2
        and x.dtype == out.dtype
        and x.stride(1) == out.stride(1) == packed.stride(1) == 1
        and (group_size == 0 or scales.dim() == 3)
    )


def _by_matrix(
    x: Tensor,
    packed: Tensor,
    scales: Tensor,
    zeros: Tensor | None,
    table: Tensor | None,
    bias: Tensor | None,
    out: Tensor,
    group_size: int,
) -> None:
    """Some outputs at a time: their weights in 16 bits, and the library's product with them."""
    outputs, inputs = packed.shape[0], x.shape[1]
    part = max(1, _SCRATCH_BYTES // (inputs * x.element_size()))
    matrix = x.new_empty(min(part, outputs), inputs)
    for first in range(0, outputs, part):
        rows = slice(first, min(first + part, outputs))
        weight = matrix[: rows.stop - first]
        dequantise(
            packed[rows],
            scales[:, rows],
            None if zeros is None else zeros[:, rows],
            table,
            weight,
            group_size,
        )
        torch.mm(x, weight.t(), out=out[:, rows])
    if bias is not None:
        out += bias


def grouped_linear_torch(
    x: Tensor,
    packed: Tensor,
    scales: Tensor,
    zeros: Tensor | None,
    table: Tensor | None,
    perm: Tensor | None,
    bias: Tensor | None,
    out: Tensor,
    group_size: int,
) -> None:
    """Torch implementation: the CPU path and the reference of the tests. Computes in float32."""
    x = (x if perm is None else x[:, perm]).float()
    result = x @ group_values(packed, scales, zeros, table, x.shape[1], group_size).t()
    out.copy_(result if bias is None else result + bias.float())


grouped_linear = register(grouped_linear_torch, mutates=("out",), triton=grouped_linear_triton)
