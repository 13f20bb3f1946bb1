"""Query tiles of prefill attention, splits of their keys, and the merge of split partials."""

# pyright: basic, reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false
from dataclasses import dataclass

import torch
from torch import Tensor

from ..runtime.batches import least_batch
from ..runtime.launch import arrivals, compiling_only
from ..runtime.triton import tl, triton
from ._online_softmax import finite

MIN_SPLIT = 256
"""Least keys of a split, a multiple of every tile's BLOCK_N."""
_MAX_SPLITS = 32
"""One thread block merges them."""


@triton.jit
def seen_by(first, prefix, kv_len, GROUP: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """For a tile from row `first` on: keys before `seen_by_all` need no mask, and no query sees keys from `end` on."""
    seen_by_all = (prefix + first // GROUP + 1) // BLOCK_N * BLOCK_N
    last_seen = prefix + (first + BLOCK_M - 1) // GROUP + 1
    return seen_by_all, tl.minimum(kv_len, last_seen)


@triton.jit
def plan_splits(begin, seen_by_all, max_splits, BLOCK_N: tl.constexpr, MIN_SPLIT: tl.constexpr):
    """Length and number of the splits of keys from `begin` to `seen_by_all`, in whole blocks. The last split also takes
    the keys that need a mask.
    """
    shared = seen_by_all - begin
    split_len = tl.maximum(tl.cdiv(shared // BLOCK_N, max_splits) * BLOCK_N, MIN_SPLIT)
    return split_len, tl.maximum(tl.cdiv(shared, split_len), 1)


@triton.jit
def store_partial(
    partial_ptr,  # [splits, BLOCK_M, BLOCK_V] of this tile
    partial_log_sum_ptr,  # [splits, BLOCK_M]
    split,
    acc,  # [BLOCK_M, BLOCK_V]
    log_sums,  # [BLOCK_M]
    count,  # rows that hold a query
    BLOCK_V: tl.constexpr,
    BLOCK_M: tl.constexpr,
):
    """Stores a split's partial for `merge_partials`."""
    rows = tl.arange(0, BLOCK_M)
    elements = tl.arange(0, BLOCK_V)
    places = (split * BLOCK_M + rows)[:, None] * BLOCK_V + elements[None, :]
    tl.store(partial_ptr + places, acc, mask=(rows < count)[:, None])
    tl.store(partial_log_sum_ptr + split * BLOCK_M + rows, log_sums)


@triton.jit
def merge_partials(
    partial_ptr,  # [splits, BLOCK_M, BLOCK_V] of this tile
    partial_log_sum_ptr,  # [splits, BLOCK_M]
    sinks,  # [BLOCK_M] or None
    splits,
    count,  # rows that hold a query
    BLOCK_V: tl.constexpr,
    BLOCK_M: tl.constexpr,
    ALL_MASKED: tl.constexpr,  # as of `accumulate`
):
    """Merges the partials of all splits in their order, [BLOCK_M, BLOCK_V]. Others' partials are in L2, hence `.cg`."""
    rows = tl.arange(0, BLOCK_M)
    places = rows[:, None] * BLOCK_V + tl.arange(0, BLOCK_V)[None, :]
    read = (rows < count)[:, None]
    acc = tl.load(partial_ptr + places, mask=read, other=0.0, cache_modifier=".cg")
    maximum = tl.load(partial_log_sum_ptr + rows, cache_modifier=".cg")
    weight_sum = tl.full([BLOCK_M], 1.0, dtype=tl.float32)
    for split in range(1, splits):
        partial_tile_ptr = partial_ptr + split * BLOCK_M * BLOCK_V + places
        partial = tl.load(partial_tile_ptr, mask=read, other=0.0, cache_modifier=".cg")
        log_sums = tl.load(partial_log_sum_ptr + split * BLOCK_M + rows, cache_modifier=".cg")
        new_maximum = tl.maximum(maximum, log_sums)
        base = finite(new_maximum) if ALL_MASKED else new_maximum
        correction = tl.exp2(maximum - base)
        weights = tl.exp2(log_sums - base)
        acc = acc * correction[:, None] + partial * weights[:, None]
        weight_sum = weight_sum * correction + weights
        maximum = new_maximum
    if sinks is not None:
        weight_sum += tl.exp2(sinks - maximum)
    return acc / weight_sum[:, None]


@dataclass(frozen=True)
class Tiling:
    """Bounds of a launch, and memory for the partials of splits."""

    tiles: int
    """Most tiles of a KV head: each request adds less than one that is not full."""
    max_splits: int
    """Most splits of a tile."""
    partial: Tensor
    """[tiles * KV heads, max_splits, block_m, block_v] float32; nothing where `max_splits` is 1."""
    partial_log_sum: Tensor
    """[tiles * KV heads, max_splits, block_m] float32, likewise."""
    arrived: Tensor
    """[tiles * KV heads] or more int32, zeros: as of `arrivals`."""
    may_split: bool
    """In a compile dry run: whether some step with about as many requests splits its tiles."""

    @classmethod
    def of(
        cls,
        rows: int,
        batch: int,
        kv_heads: int,
        positions: int,
        resident: int,
        block_m: int,
        block_v: int,
        deterministic: bool,
        device: torch.device,
    ) -> "Tiling":
        """`rows`: query rows of `batch` requests for each KV head, which see at most `positions` keys each. `resident`
        thread blocks run at once: fewer tiles are split, but not where `deterministic`.
        """
        tiles = triton.cdiv(rows, block_m) + batch
        count = tiles * kv_heads
        max_splits = max(1, min(resident // count, triton.cdiv(positions, MIN_SPLIT), _MAX_SPLITS))
        may_split = compiling_only() and not deterministic and resident // ((1 + least_batch(batch)) * kv_heads) > 1
        if deterministic or max_splits == 1:
            nothing = torch.empty(0, dtype=torch.float32, device=device)
            return cls(tiles, 1, nothing, nothing, arrivals(device, 0), may_split)
        partial_log_sum = torch.empty(count, max_splits, block_m, dtype=torch.float32, device=device)
        partial = torch.empty(count, max_splits, block_m, block_v, dtype=torch.float32, device=device)
        return cls(tiles, max_splits, partial, partial_log_sum, arrivals(device, count), may_split)

    @property
    def variants(self) -> list[dict[str, int]]:
        """Constexprs of each launch. A compile dry run does not meet every length, so it names the variants with and
        without splits.
        """
        splits = (True, False) if self.may_split else (self.max_splits > 1,)
        return [{"MIN_SPLIT": MIN_SPLIT, "SPLIT": split} for split in splits]
