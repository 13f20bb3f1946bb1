"""Launch settings of single-token GEMVs: how many bytes of a weight a thread block keeps in registers.

Small matrices have smaller thread blocks, so that all SMs have some; a fused norm or several experts need registers of
their own. `bf16_gemv.py` and `moe/experts_gemv.py` call these. Lab: docs/lab/2026-11-single-token-decode.md.
"""

from torch import Tensor

from ..runtime.triton import triton

_SMALL_MATRIX = 24 << 20
_SMALL_BYTES, _LARGE_BYTES = 16384, 32768
"""Bytes of a matrix in the registers of one thread block: of an expert's or one of at most `_SMALL_MATRIX`, and of a
larger one.
"""
_NORMALISED_BYTES = 8192
"""The same for a small matrix with a fused norm, which needs registers."""
_NORMALISED_MATRIX = 16 << 20
"""With a fused norm and no activation larger matrices count as large: the 20 MiB of QKV of Qwen3-30B-A3B are then
little more than one wave of thread blocks, and attention, which starts with the last of them, starts earlier.
"""
_ADDING_MATRIX = 16 << 20
"""From here on a small matrix whose GEMV adds the residual has thread blocks of twice as many bytes and warps."""
_WARP_BYTES = 8192
"""Bytes of an expert's gate and up matrix for each warp, where routing is fused."""
_SUM_BYTES = 16384
"""Bytes of the down matrices of all experts of a token together."""
_TWO_STEP_SUM_BYTES, _TWO_STEP_WARPS = 32768, 8
"""The same, and the warps, where a row is 3/4 of a power of two and is read in two steps without a mask."""
LONGEST = 4096
"""The most inputs of a row that a thread block takes at a time."""
_WARPS = 4


def blocks_of(inputs: int, elements: int, rows: int) -> dict[str, int]:
    """Launch settings of a thread block with `elements` of a matrix, from at least `rows` rows."""
    longest = min(LONGEST, elements // rows)
    block_k: int = min(longest, triton.next_power_of_2(inputs))  # pyright: ignore[reportAssignmentType]
    whole = block_k >= inputs
    return {"BLOCK_N": elements // block_k, "BLOCK_K": block_k, "WHOLE": whole, "num_warps": _WARPS, "num_stages": 1}


def gemv_blocks(
    weight: Tensor, normalises: bool = False, activates: bool = False, adds: bool = False
) -> dict[str, int]:
    """Launch settings of `bf16_gemv`: at least a gate row and an up row."""
    inputs, element_bytes = weight.shape[-1], weight.element_size()
    largest = _NORMALISED_MATRIX if normalises and not activates else _SMALL_MATRIX
    is_small = weight.dim() == 3 or weight.nbytes <= largest
    if adds and is_small and weight.nbytes >= _ADDING_MATRIX:
        return blocks_of(inputs, _LARGE_BYTES // element_bytes, 2) | {"num_warps": 2 * _WARPS}
    num_bytes = _SMALL_BYTES if is_small else _LARGE_BYTES
    if normalises and is_small:
        # A norm needs whole rows.
        padded: int = triton.next_power_of_2(inputs)  # pyright: ignore[reportAssignmentType]
        num_bytes = max(_NORMALISED_BYTES, 2 * padded * element_bytes)
    return blocks_of(inputs, num_bytes // element_bytes, 2)


def routing_blocks(weight: Tensor) -> dict[str, int]:
    """Launch settings of `expert_gemv` with fused routing: no warp waits for another."""
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
