"""Prefetch into the L2 cache, of what a kernel reads once it has waited for the previous one, or later."""

# pyright: basic, reportArgumentType=false, reportCallIssue=false
from .triton import tl, triton


@triton.jit
def prefetch_l2(line_ptrs):
    """Prefetches the 128 bytes at each pointer into the L2 cache, without registers or shared memory."""
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.b32 $0, 0;", "=r,l", [line_ptrs], dtype=tl.int32, is_pure=False, pack=1
    )
