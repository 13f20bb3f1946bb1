"""How much of a matrix a program has in its registers, in products of single tokens (`bf16_gemv.py`)."""

from torch import Tensor

from ..runtime.triton import triton

_SMALL_MATRIX = 24 << 20
_SMALL_BYTES, _LARGE_BYTES = 16384, 32768
"""Of a matrix in the registers of one program: of one that is at most `_SMALL_MATRIX` and of experts, and of a larger
one. On an H200 one token's pass through Llama-3.1-8B takes 3,984 us with the second number for all and 4,035 with the
first.
"""
_NORMALISED_BYTES = 8192
"""Of a small matrix whose token is normalised first, which takes registers: one token's pass through Qwen3-30B-A3B
took 2,144 us so and 2,175 with twice as much.
"""
_NORMALISED_MATRIX = 16 << 20
"""Larger ones count as large all the same where no activation follows: the 20 MiB of queries, keys and values of
Qwen3-30B-A3B are then little more than one wave of programs, and attention, which starts with the last of them, starts
earlier. In two calls its pass took 2,045 and 2,030 us so, and 2,060 and 2,042 with 8 KiB; in the second 2,036 with 16
and 2,061 with 64 (benchmark/results/one-token-blocks.json). The gate and up matrix of Qwen2.5-0.5B, 17 MiB, loses: 480
us with 16 KiB and 496 with 32 instead of 471.
"""
_ADDING_MATRIX = 16 << 20
"""Of a product that adds, small matrices from here on have programs of twice as many bytes and warps: with the 16 MiB
of Qwen3-30B-A3B's output matrix its pass takes 2,021 us so and 2,028 with the numbers of other small ones, in another
call 2,011 and 2,022.
"""
_WARP_BYTES = 8192
"""Of the first matrix of an expert, for each warp of a program that chooses. With 16 KiB in programs of four warps one
token's pass through Qwen3-30B-A3B takes 2,211 us, so 2,173.
"""
_SUM_BYTES = 16384
"""Of all experts of a token together, of their second matrices."""
_TWO_STEP_SUM_BYTES, _TWO_STEP_WARPS = 32768, 8
"""The same where a row is read in two parts without a mask, of which more fit: 2,185 us instead of 2,241."""
LONGEST = 4096
"""Inputs of a row that a program takes at a time, at most."""
_WARPS = 4


def blocks_of(inputs: int, elements: int, rows: int) -> dict[str, int]:
    """Launch settings for so many elements of a matrix, of so many rows at least."""
    longest = min(LONGEST, elements // rows)
    block_k: int = min(longest, triton.next_power_of_2(inputs))  # pyright: ignore[reportAssignmentType]
    whole = block_k >= inputs
    return {"BLOCK_N": elements // block_k, "BLOCK_K": block_k, "WHOLE": whole, "num_warps": _WARPS, "num_stages": 1}


def gemv_blocks(
    weight: Tensor, normalises: bool = False, activates: bool = False, adds: bool = False
) -> dict[str, int]:
    """Launch settings of `bf16_gemv`: a gate row and an up row at least."""
    inputs, element_bytes = weight.shape[-1], weight.element_size()
    largest = _NORMALISED_MATRIX if normalises and not activates else _SMALL_MATRIX
    is_small = weight.dim() == 3 or weight.nbytes <= largest
    if adds and is_small and weight.nbytes >= _ADDING_MATRIX:
        return blocks_of(inputs, _LARGE_BYTES // element_bytes, 2) | {"num_warps": 2 * _WARPS}
    num_bytes = _SMALL_BYTES if is_small else _LARGE_BYTES
    if normalises and is_small:
        # Whole rows all the same, which a norm needs.
        padded: int = triton.next_power_of_2(inputs)  # pyright: ignore[reportAssignmentType]
        num_bytes = max(_NORMALISED_BYTES, 2 * padded * element_bytes)
    return blocks_of(inputs, num_bytes // element_bytes, 2)


def routing_blocks(weight: Tensor) -> dict[str, int]:
    """Launch settings of `expert_gemv` where its programs choose: warps that wait for no other one."""
    inputs, element_bytes = weight.shape[-1], weight.element_size()
    padded: int = triton.next_power_of_2(inputs)  # pyright: ignore[reportAssignmentType]
    num_bytes = max(_WARP_BYTES, 2 * min(padded, LONGEST) * element_bytes)
    return blocks_of(inputs, num_bytes // element_bytes, 2) | {"num_warps": num_bytes // _WARP_BYTES}


def sum_blocks(weight: Tensor, slots: int) -> dict[str, int]:
    """Launch settings of `expert_gemv_sum`; `slots` a power of two."""
    inputs, element_bytes = weight.shape[-1], weight.element_size()
    padded: int = triton.next_power_of_2(inputs)  # pyright: ignore[reportAssignmentType]
    if 4 * inputs == 3 * padded and padded <= LONGEST:
        rows = max(1, _TWO_STEP_SUM_BYTES // (element_bytes * slots * padded))
        steps = {"BLOCK_K": padded // 2, "REST": padded // 4, "WHOLE": False}
        return {"BLOCK_N": rows, **steps, "num_warps": _TWO_STEP_WARPS, "num_stages": 1}
    return {"REST": 0, **blocks_of(inputs, max(16, _SUM_BYTES // (element_bytes * slots)), 1)}
