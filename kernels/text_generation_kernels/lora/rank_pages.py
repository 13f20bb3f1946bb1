"""Rank pages, of which the weights of adapters consist (LoRA, Hu et al., 2021), and the parts of a site.

    y = W x + scale * B A x, with A [rank, inputs], B [outputs, rank]

A page holds RANK_UNITS rank units of one adapter at every site; units beyond the adapter's rank are zero. So adapters
of any rank lie in one pool, and none is padded to the rank of another.

A site is one linear layer of one decoder layer. Its outputs are ranges, each of which belongs to a part with an A of
its own: queries, keys and values; gate and up; otherwise one part. Several ranges may belong to one part, as where the
gates of attention are further outputs of the query projection, or where gate and up alternate.

Layouts of a site: `a` `[pages, parts, RANK_UNITS, inputs]` and `b` `[pages, outputs, RANK_UNITS]`, in the model's type,
and `scale` `[pages, parts]` float32; each is contiguous within a page, with any stride between pages. B has the outputs
in the order in which the base stores them, and A the inputs.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from ..runtime.shapes import shapes_error

RANK_UNITS = 16
"""Rank units of a page: what one matrix instruction takes."""
OUTPUT_BLOCK = 16
"""Neighbouring outputs that belong to one part."""
LONGEST_RUN = 1024
"""See `run_of`."""


def each_matmul(x: Tensor, weight: Tensor) -> Tensor:
    """Returns `x @ weight`, [W, M, K] by [W, K, N] float32, with a GEMM for each of the W.

    A batched one shares its work among threads by W, so that the bits of an item would depend on what else is in the
    step.
    """
    out = x.new_empty(len(x), x.shape[1], weight.shape[2])
    for each, its_weight, its_out in zip(x, weight, out, strict=True):
        torch.mm(each, its_weight, out=its_out)
    return out


def part_of_blocks(ranges: Sequence[tuple[int, int, int]], outputs: int, device: torch.device) -> Tensor:
    """The part of each block of OUTPUT_BLOCK outputs, int32, from (first, end, part) of every range, in any order.

    Raises ValueError unless the ranges begin and end with blocks and cover all outputs once. The last block may be
    short.
    """
    blocks = -(-outputs // OUTPUT_BLOCK)
    parts = [-1] * blocks
    for first, end, part in ranges:
        aligned = first % OUTPUT_BLOCK == 0 and (end % OUTPUT_BLOCK == 0 or end == outputs)
        if not (aligned and 0 <= first < end <= outputs and part >= 0):
            raise ValueError(
                f"part_of_blocks: range ({first}, {end}) of part {part} must lie in {outputs} outputs and begin and "
                f"end at multiples of {OUTPUT_BLOCK}"
            )
        for block in range(first // OUTPUT_BLOCK, -(-end // OUTPUT_BLOCK)):
            if parts[block] >= 0:
                raise ValueError(f"part_of_blocks: two ranges have output {block * OUTPUT_BLOCK}")
            parts[block] = part
    if -1 in parts:
        raise ValueError(f"part_of_blocks: no range has output {parts.index(-1) * OUTPUT_BLOCK} of {outputs}")
    return torch.tensor(parts, dtype=torch.int32, device=device)


def run_of(ranges: Sequence[tuple[int, int, int]]) -> int:
    """The outputs, at most LONGEST_RUN, that belong to one part from each multiple of this number on."""
    run = LONGEST_RUN
    for first, _, _ in ranges:
        while first % run:
            run //= 2
    return run


def check_tables(name: str, order: Tensor, tiles: Tensor, work: Tensor, v: Tensor, parts: int) -> None:
    """Raises ValueError where the tables of a step, or `v`, do not fit each other. A tile has `v.shape[3]` tokens."""
    fits = v.dim() == 5 and v.shape[1:3] == (len(work), parts) and v.shape[4] == RANK_UNITS
    if not (fits and tiles.shape[1:] == (4,) and work.shape[1:] == (2,) and order.dim() == 1):
        raise shapes_error(name, order=order, tiles=tiles, work=work, v=v)
    if v.shape[3] not in (16, 64):
        raise ValueError(f"{name}: tiles have 16 or 64 tokens, not {v.shape[3]}")
    if not all(each.is_contiguous() for each in (order, tiles, work, v)) or v.dtype != torch.float32:
        raise ValueError(f"{name}: order, tiles, work and v must be contiguous, and v float32")
