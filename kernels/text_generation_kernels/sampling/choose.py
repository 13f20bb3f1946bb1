"""Choice among what the vocabulary splits of all ranks offer, and its log-probability.

    token     the best score, or for rows that sample the best -u + G; ties to the lowest id
    logprob   -u(token) - log(sum over survivors of exp(-u))

with u below the best score of the row (`columns.py`).

Layouts: `values.py`. The statistics `[R, N, splits]` are those of R ranks in their order, as `logits_process` and
`draw` wrote them, any distance apart. The first splits are those of the vocabulary; others are ignored. Written:
`tokens`, `logprobs`, `valid` and `log_total` of `sampled`, the last being the logarithm in the last line above.

Called once a step. Raises ValueError for layouts that the kernel does not read. Bytes floor: R * N * splits * 20.
"""

# pyright: basic, reportArgumentType=false
import torch
from torch import Tensor

from ..runtime.launch import Launcher, launch_dependents, wait_for_previous
from ..runtime.register import by_device
from ..runtime.triton import tl, triton
from .columns import (
    EXCLUDED,
    FLOATS,
    HAS_FILTERS,
    SAMPLES,
    TEMPERATURE,
    Flags,
    Floats,
    Ints,
    distance,
    distance_below,
    load_flags,
    num_splits,
)
from .values import SampledTokens, SamplingColumns, SplitStatistics

_EXCLUDED = tl.constexpr(EXCLUDED)


@triton.jit(
    do_not_specialize=["stride_rank"],
    do_not_specialize_on_alignment=[
        "best_ptr", "best_id_ptr", "total_ptr", "noisy_ptr", "score_ptr", "rows_ptr", "tokens_ptr", "logprobs_ptr",
        "valid_ptr", "log_total_ptr",
    ],
)  # fmt: skip
def choose_kernel(
    best_ptr,  # [R, N, splits], and so on
    best_id_ptr,
    total_ptr,
    noisy_ptr,
    score_ptr,
    rows_ptr,  # [N]
    floats_ptr,  # [rows, FLOATS]
    ints_ptr,  # [rows, INTS]
    tokens_ptr,  # [N]
    logprobs_ptr,  # [N]
    valid_ptr,  # [N]
    log_total_ptr,  # [N]
    number,
    splits,
    stride_tokens,
    stride_logprobs,
    stride_valid,
    stride_log_total,
    stride_rank,
    BLOCK_S: tl.constexpr,  # power of two, at least number
    PDL: tl.constexpr,
):
    """One thread block merges the splits of one row."""
    launch_dependents(PDL)
    batch_index = tl.program_id(0).to(tl.int64)
    row, flags = load_flags(rows_ptr, ints_ptr, batch_index)
    temperature = tl.load(floats_ptr + row * FLOATS + TEMPERATURE)
    wait_for_previous(PDL)
    split = tl.arange(0, BLOCK_S)
    valid = split < number
    place = (split // splits) * stride_rank + batch_index * splits + split % splits
    of_splits = tl.load(best_ptr + place, mask=valid, other=float("-inf"))
    best = tl.max(of_splits, axis=0)
    broken = tl.max((of_splits != of_splits).to(tl.int32), axis=0) != 0
    excluded = tl.max((of_splits != float("-inf")).to(tl.int32), axis=0) == 0
    ids = tl.load(best_id_ptr + place, mask=valid, other=2147483647)
    total = tl.load(total_ptr + place, mask=valid, other=0.0)
    # Distance of each split's reference score from the best of the row.
    below = distance_below(of_splits, best, temperature)
    if (flags & HAS_FILTERS) != 0:
        below = tl.zeros([BLOCK_S], dtype=tl.float32)
    value = of_splits
    x = of_splits
    if (flags & (SAMPLES | HAS_FILTERS)) != 0:
        value = tl.load(noisy_ptr + place, mask=valid, other=float("-inf")) - below
        x = tl.load(score_ptr + place, mask=valid, other=float("-inf"))
    token = tl.min(tl.where(valid & (value == tl.max(value, axis=0)), ids, 2147483647), axis=0)
    chosen = tl.max(tl.where(ids == token, x, float("-inf")), axis=0)
    log_total = tl.log(tl.sum(total * tl.exp(-below), axis=0))
    logprob = -distance_below(chosen, best, temperature) - log_total
    sound = (tl.abs(best) < float("inf")) & (not broken) & (tl.abs(logprob) < float("inf"))
    tl.store(tokens_ptr + batch_index * stride_tokens, tl.where(sound, token, 0).to(tl.int64))
    tl.store(logprobs_ptr + batch_index * stride_logprobs, tl.where(sound, logprob, float("nan")))
    tl.store(valid_ptr + batch_index * stride_valid, tl.where(excluded, _EXCLUDED, sound.to(tl.int32)))
    tl.store(log_total_ptr + batch_index * stride_log_total, log_total)


_launch = Launcher(
    choose_kernel, writes=("tokens", "logprobs", "valid", "log_total"), reads_early=("rows", "ints", "floats")
)


def choose_triton(statistics: SplitStatistics, rows: Tensor, columns: SamplingColumns, sampled: SampledTokens) -> None:
    """Triton implementation. Raises ValueError for layouts that the kernel does not read."""
    _, *measures = statistics
    _, batch, splits = statistics.best.shape
    stride, number = statistics.best.stride(0), num_splits(columns.vocab_size)
    if not all(measure.stride() == (stride, splits, 1) for measure in measures):
        raise ValueError("choose: statistics of each rank must be contiguous, and equally far apart")
    if batch == 0:
        return
    tokens, logprobs, valid, log_total = sampled.tokens, sampled.logprobs, sampled.valid, sampled.log_total
    _launch(
        (batch,),
        (*measures, rows, columns.floats, columns.ints, tokens, logprobs, valid, log_total),
        (number, splits, tokens.stride(0), logprobs.stride(0), valid.stride(0), log_total.stride(0)),
        (stride,),
        BLOCK_S=triton.next_power_of_2(number),
        num_warps=1,
    )


def choose_torch(statistics: SplitStatistics, rows: Tensor, columns: SamplingColumns, sampled: SampledTokens) -> None:
    """Torch implementation: the CPU path and the reference of the tests."""
    _, *measures = statistics
    number = num_splits(columns.vocab_size)
    best, best_id, total, noisy, score = (each.transpose(0, 1).flatten(1)[:, :number] for each in measures)
    flags, temperature = columns.ints[rows, Ints.FLAGS].unsqueeze(1), columns.floats[rows, Floats.TEMPERATURE]
    filtered, drawn = flags & Flags.FILTERS != 0, flags & (Flags.SAMPLE | Flags.FILTERS) != 0
    highest = best.amax(dim=1)
    below = distance(best, highest, temperature).masked_fill_(filtered, 0.0)
    split = torch.where(drawn, noisy - below, best).argmax(dim=1, keepdim=True)
    sampled.tokens.copy_(best_id.gather(1, split).squeeze(1))
    x = torch.where(drawn, score, best).gather(1, split)
    sampled.log_total.copy_((total * below.neg_().exp_()).sum(dim=1).log_())
    sampled.logprobs.copy_(-distance(x, highest, temperature).squeeze(1) - sampled.log_total)
    unsound = ~(highest + sampled.logprobs).isfinite()
    sampled.valid.copy_(~unsound)
    sampled.valid.masked_fill_((best == -torch.inf).all(dim=1), EXCLUDED)
    sampled.tokens.masked_fill_(unsound, 0)
    sampled.logprobs.masked_fill_(unsound, torch.nan)


choose = by_device(choose_torch, choose_triton)
