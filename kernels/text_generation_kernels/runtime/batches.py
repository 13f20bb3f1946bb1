"""Division of work items among requests of any lengths, on the device, and the batch sizes that kernels compile for."""

# pyright: basic, reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false
from .triton import tl, triton

# Requests that a kernel variant has room for: so few sizes that warm-up compiles all. A single request has its own,
# because prefill attention then spills fewer registers (docs/lab/2026-11-prefill-attention.md).
_BATCH_SIZES = (1, 16, 256)


@triton.jit
def locate(counts, item):
    """Returns the request of `item`, and its index within that request, where request b has `counts[b]` items.

    The request is `counts.shape[0]` for items past the last one, which exist because grids follow from capacities.
    """
    requests = tl.arange(0, counts.shape[0])
    request = tl.sum((tl.cumsum(counts, axis=0) <= item).to(tl.int32), axis=0)
    return request, item - tl.sum(tl.where(requests < request, counts, 0), axis=0)


@triton.jit
def find_tile(b_q_start_ptr, item, batch, GROUP: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_B: tl.constexpr):
    """Returns the request of tile `item`, and which of its tiles it is. Past the last tile the request is not below
    `batch`. Rows of a tile are GROUP heads within tokens.
    """
    requests = tl.arange(0, BLOCK_B)
    here = requests < batch
    q_starts = tl.load(b_q_start_ptr + requests, mask=here, other=0)
    q_lens = tl.load(b_q_start_ptr + 1 + requests, mask=here, other=0) - q_starts
    return locate(tl.cdiv(q_lens * GROUP, BLOCK_M), item)


def padded_batch(batch: int) -> int:
    """Requests that a kernel variant has room for: a power of two, at least `batch`."""
    larger: int = triton.next_power_of_2(batch)  # pyright: ignore[reportAssignmentType]
    return next((size for size in _BATCH_SIZES if batch <= size), larger)


def least_batch(batch: int) -> int:
    """The smallest batch with the same `padded_batch`."""
    padded = padded_batch(batch)
    smaller = [size for size in _BATCH_SIZES if size < padded]
    return 1 + (padded // 2 if padded > _BATCH_SIZES[-1] else max(smaller, default=0))


def tile_capacity(rows: int, groups: int, block_m: int) -> int:
    """The most tiles of `block_m` rows of one group each that `rows` rows can need: each group that has rows has at
    most one tile that is not full.
    """
    return (rows + min(groups, rows) * (block_m - 1)) // block_m
