"""Gumbel-max draw within each vocabulary split: the best token of a row that samples or has filters, under noise.

    greedy    the best survivor, ties to the lowest id
    sampled   argmax(-u + G) with G standard Gumbel noise of the key (seed, tokens generated, id): the best of all
              splits is a draw from the softmax of the survivors, exactly (`gumbel.py`)

u is as in `columns.py`, but below the best score of its split where the row has no filter: a split then needs nothing
of the others, and offers the same bits on any number of ranks. `choose` makes splits comparable.

Layouts: `values.py`, `bounds` as in `survivors`. For those rows each split writes `best_id` and `total`, its token and
the sum over its survivors of exp(-u), and `noisy` and `score`: -u + G and the score of that token. These are undefined
for other rows. Rows with filters must have the whole vocabulary here.

Called once a step. Raises ValueError for layouts that the kernel does not read. Bytes floor: nothing for greedy rows
without a filter, which `logits_process` has read; N * width * element size for others.
"""

# pyright: basic, reportArgumentType=false
import torch
from torch import Tensor

from ..runtime.launch import Launcher, launch_dependents, wait_for_previous
from ..runtime.register import by_device
from ..runtime.triton import tl, triton
from .columns import (
    FLOATS,
    HAS_FILTERS,
    LARGEST,
    SAMPLES,
    TEMPERATURE,
    WRITES_SCORES,
    Flags,
    Floats,
    batch_indices,
    distance_below,
    flags_of,
    in_splits,
    inverse,
    load_flags,
    row_best,
    split_size,
    survives,
    within,
)
from .gumbel import gumbel_noise, gumbel_of
from .philox import DOMAIN_GUMBEL, vocabulary_words
from .values import SamplingBatch, SamplingColumns, SplitStatistics

BLOCK = 1024
NUM_WARPS = 4

_DOMAIN = tl.constexpr(DOMAIN_GUMBEL)
_LARGEST = tl.constexpr(LARGEST)


@triton.jit(
    do_not_specialize_on_alignment=["rows_ptr", "best_ptr", "best_id_ptr", "total_ptr", "noisy_ptr", "score_ptr"]
)
def draw_kernel(
    logits_ptr,  # [N, width]
    scores_ptr,  # [N, width]
    bounds_ptr,  # [N, 4]
    rows_ptr,  # [N]
    generated_ptr,  # [rows]
    seed_ptr,  # [rows]
    floats_ptr,  # [rows, FLOATS]
    ints_ptr,  # [rows, INTS]
    best_ptr,  # [N, splits], and so on
    best_id_ptr,
    total_ptr,
    noisy_ptr,
    score_ptr,
    vocab,
    first_id,
    stride_logits,
    stride_scores,
    CHUNK: tl.constexpr,
    BLOCK: tl.constexpr,  # divides CHUNK
    BLOCK_S: tl.constexpr,
    WIDTH: tl.constexpr,  # successive places of one row
    PDL: tl.constexpr,
):
    """One thread block draws within one split of one row; greedy rows without a filter need nothing."""
    launch_dependents(PDL)
    split = tl.program_id(0)
    splits = tl.num_programs(0)
    batch_index = tl.program_id(1).to(tl.int64)
    row, flags = load_flags(rows_ptr, ints_ptr, batch_index)
    wait_for_previous(PDL)
    if (flags & (SAMPLES | HAS_FILTERS)) == 0:
        return
    place = batch_index * splits + split
    best = tl.load(best_ptr + place)
    temperature = tl.load(floats_ptr + row * FLOATS + TEMPERATURE)
    seed = tl.load(seed_ptr + row)
    step = tl.load(generated_ptr + row) + batch_index % WIDTH
    largest = tl.full([], _LARGEST, dtype=tl.float32)
    bound_id = tl.full([], 0.0, dtype=tl.float32)
    centre = tl.full([], 0.0, dtype=tl.float32)
    radius = tl.full([], float("inf"), dtype=tl.float32)
    if (flags & HAS_FILTERS) != 0:
        best, _ = row_best(best_ptr + batch_index * splits, splits, BLOCK_S)
        bound_ptr = bounds_ptr + batch_index * 4
        largest = tl.load(bound_ptr)
        bound_id = tl.load(bound_ptr + 1)
        centre = tl.load(bound_ptr + 2)
        radius = tl.load(bound_ptr + 3)
    first = first_id + split * CHUNK
    # Pointers are offset so that ids of the whole vocabulary index them.
    logits_ptr += batch_index * stride_logits - first_id
    scores_ptr += batch_index * stride_scores - first_id
    highest = tl.full([BLOCK], float("-inf"), dtype=tl.float32)
    winner = first + tl.arange(0, BLOCK)
    winner_x = tl.full([BLOCK], float("-inf"), dtype=tl.float32)
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for start in range(first, first + CHUNK, BLOCK):
        ids = start + tl.arange(0, BLOCK)
        if (flags & WRITES_SCORES) != 0:
            x = tl.load(scores_ptr + ids, mask=ids < vocab, other=float("-inf"))
        else:
            x = tl.load(logits_ptr + ids, mask=ids < vocab, other=float("-inf")).to(tl.float32)
        u = distance_below(x, best, temperature)
        u = tl.where(within(u, ids, largest, bound_id, centre, radius), u, float("inf"))
        # Filters leave few tokens: most blocks have none, and noise costs more than to see that.
        any_survives = True
        if (flags & HAS_FILTERS) != 0:
            any_survives = tl.min(u, axis=0) < float("inf")
        if any_survives:
            noisy = -u
            if (flags & SAMPLES) != 0:
                noisy += gumbel_of(vocabulary_words(seed, step, start, _DOMAIN, BLOCK))
            better = noisy > highest
            highest = tl.where(better, noisy, highest)
            winner = tl.where(better, ids, winner)
            winner_x = tl.where(better, x, winner_x)
            total += tl.exp(-u)
    value = tl.max(highest, axis=0)
    token = tl.min(tl.where(highest == value, winner, 2147483647), axis=0)
    tl.store(noisy_ptr + place, value)
    tl.store(best_id_ptr + place, token)
    tl.store(score_ptr + place, tl.max(tl.where(winner == token, winner_x, float("-inf")), axis=0))
    tl.store(total_ptr + place, tl.sum(total, axis=0))


_launch = Launcher(draw_kernel, writes=("best_id", "noisy", "score", "total"), reads_early=("rows", "ints"))


def draw_triton(batch: SamplingBatch, columns: SamplingColumns, statistics: SplitStatistics, bounds: Tensor) -> None:
    """Triton implementation. Raises ValueError for layouts that the kernel does not read."""
    logits, scores, vocab = batch.logits, batch.scores, columns.vocab_size
    (number, width), chunk = logits.shape, split_size(vocab)
    splits = triton.cdiv(width, chunk)
    if scores.shape != logits.shape or statistics.best.shape != (number, splits):
        raise ValueError("draw: shapes of logits, scores and statistics do not fit")
    if logits.stride(1) != 1 or scores.stride(1) != 1:
        raise ValueError("draw: the last dimension of logits and scores must have stride 1")
    if number == 0:
        return
    _launch(
        (splits, number),
        (
            logits,
            scores,
            bounds,
            batch.rows,
            batch.generated,
            columns.seed,
            columns.floats,
            columns.ints,
            statistics.best,
            statistics.best_id,
            statistics.total,
            statistics.noisy,
            statistics.score,
        ),
        (vocab, batch.first_id, logits.stride(0), scores.stride(0)),
        CHUNK=chunk,
        BLOCK=min(BLOCK, chunk),
        BLOCK_S=triton.next_power_of_2(splits),
        WIDTH=batch.width,
        num_warps=NUM_WARPS,
    )


def draw_torch(batch: SamplingBatch, columns: SamplingColumns, statistics: SplitStatistics, bounds: Tensor) -> None:
    """Torch implementation: the CPU path and the reference of the tests."""
    rows, floats, scores, vocab = batch.rows, columns.floats, batch.scores, columns.vocab_size
    flags = flags_of(columns.ints, rows)
    chosen = batch_indices(flags, Flags.SAMPLE | Flags.FILTERS)
    if not chosen:
        return
    size, r = split_size(vocab), rows[chosen]
    flags = [flags[batch_index] for batch_index in chosen]
    uses_scores = torch.tensor([f & Flags.SCORES != 0 for f in flags], device=scores.device).unsqueeze(1)
    x = torch.where(uses_scores, scores[chosen], batch.logits[chosen].float())
    x[:, max(0, vocab - batch.first_id) :] = -torch.inf
    by_split = in_splits(x, size)
    reference = statistics.best[chosen]
    filtered = batch_indices(flags, Flags.FILTERS)
    reference[filtered] = reference[filtered].amax(dim=1, keepdim=True)
    scale = inverse(floats[r, Floats.TEMPERATURE])[:, None, None]
    # A split whose tokens are all excluded has no best score.
    u = (reference.unsqueeze(2) - by_split).mul_(scale).nan_to_num_(nan=torch.inf, posinf=torch.inf)
    if filtered:
        kept = survives(u[filtered].flatten(1), bounds[chosen][filtered])
        u[filtered] = u[filtered].masked_fill(~kept.unflatten(1, (-1, size)), torch.inf)
    offered = -u
    if drawn := batch_indices(flags, Flags.SAMPLE):
        keys = columns.seed[r[drawn]], batch.generated[r[drawn]] + batch.offsets[chosen][drawn]
        noise = gumbel_noise(*keys, offered[0].numel(), batch.first_id)
        offered[drawn] += noise.unflatten(1, (-1, size))
    index = offered.argmax(dim=2, keepdim=True)
    starts = batch.first_id + torch.arange(0, size * by_split.shape[1], size, device=by_split.device)
    statistics.best_id[chosen] = (index.squeeze(2) + starts).to(torch.int32)
    statistics.total[chosen] = u.neg().exp_().sum(dim=2)
    statistics.noisy[chosen] = offered.gather(2, index).squeeze(2)
    statistics.score[chosen] = by_split.gather(2, index).squeeze(2)


draw = by_device(draw_torch, draw_triton)
