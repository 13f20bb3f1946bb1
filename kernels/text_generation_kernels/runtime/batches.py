"""How kernels divide a batch of requests of any lengths: for how many a program plans, and which one an item is of."""

# pyright: basic, reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false
from .triton import tl, triton

# Requests that a program has room for: so few sizes that all can be compiled before they are needed. One is apart
# because prefill then spills fewer registers: 420 TFLOP/s at 8,192 tokens instead of 391 on an H200.
_BATCH_SIZES = (1, 16, 256)


@triton.jit
def locate(counts, item):
    """Work items lie side by side, `counts[b]` of request b: returns the request of `item`, and which of its items.

    The request is `counts.shape[0]` for an item past the last one: grids come from capacities, so there are some.
    """
    requests = tl.arange(0, counts.shape[0])
    request = tl.sum((tl.cumsum(counts, axis=0) <= item).to(tl.int32), axis=0)
    return request, item - tl.sum(tl.where(requests < request, counts, 0), axis=0)


@triton.jit
def find_tile(b_q_start_ptr, item, batch, GROUP: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_B: tl.constexpr):
    """Of which request tile number `item` is, and which of its tiles. The request is not below `batch` past the last.

    Rows of a tile are GROUP heads within tokens.
    """
    requests = tl.arange(0, BLOCK_B)
    here = requests < batch
    q_starts = tl.load(b_q_start_ptr + requests, mask=here, other=0)
    q_lens = tl.load(b_q_start_ptr + 1 + requests, mask=here, other=0) - q_starts
    return locate(tl.cdiv(q_lens * GROUP, BLOCK_M), item)


def padded_batch(batch: int) -> int:
    """Requests that a program plans for: a power of two, at least `batch`."""
    larger: int = triton.next_power_of_2(batch)  # pyright: ignore[reportAssignmentType]
    return next((size for size in _BATCH_SIZES if batch <= size), larger)


def least_batch(batch: int) -> int:
    """The fewest requests for which a program plans for as many as for `batch`."""
    padded = padded_batch(batch)
    smaller = [size for size in _BATCH_SIZES if size < padded]
    return 1 + (padded // 2 if padded > _BATCH_SIZES[-1] else max(smaller, default=0))
