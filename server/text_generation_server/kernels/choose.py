"""The choice among what the splits of the vocabulary offer, and its log-probability.

    token     the best score, or for rows that sample the best -u + G; ties to the lowest id
    logprob   -u(token) - log(sum over survivors of exp(-u))

with u below the best score of the row (`_sampling`). Inputs `[R, N, splits]`, of R ranks in their order, which may
stand apart from each other, and of whose splits the first `number` exist: `best`, `best_id` and `total` as
`logits_process` wrote them, `noisy` and `score` as `draw` did. Outputs `[N]` with any stride: `tokens` int64,
`logprobs` float32, `valid` int32 (1: the scores were sound); `log_total` float32 `[N]`: the logarithm in the last line
above. Where the scores hold NaN or are infinite, `valid` is 0; where every token is excluded, it is `EXCLUDED`. Then
the token is 0, which is legal everywhere, and the log-probability NaN.

Called once a step. Bytes floor: R * N * splits * 20.
"""

# pyright: basic, reportArgumentType=false
import torch
from torch import Tensor

from ._launch import Launcher, let_next_start, wait_for_previous
from ._register import register
from ._sampling import (
    EXCLUDED,
    FLAGS,
    FLOATS,
    HAS_FILTERS,
    INTS,
    SAMPLES,
    TEMPERATURE,
    Flags,
    Floats,
    Ints,
    distance,
    distance_below,
)
from ._triton import tl, triton

_EXCLUDED = tl.constexpr(EXCLUDED)


@triton.jit(
    do_not_specialize=["stride_rank"],
    do_not_specialize_on_alignment=[
        "best_ptr", "best_id_ptr", "total_ptr", "noisy_ptr", "score_ptr", "tokens_ptr", "logprobs_ptr", "valid_ptr",
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
    stride_rank,
    BLOCK_S: tl.constexpr,  # power of two, at least number
    PDL: tl.constexpr,
):
    """One program merges the splits of one row."""
    wait_for_previous(PDL)
    let_next_start(PDL)
    batch_index = tl.program_id(0).to(tl.int64)
    row = tl.load(rows_ptr + batch_index)
    flags = tl.load(ints_ptr + row * INTS + FLAGS)
    temperature = tl.load(floats_ptr + row * FLOATS + TEMPERATURE)
    split = tl.arange(0, BLOCK_S)
    valid = split < number
    part = (split // splits) * stride_rank + batch_index * splits + split % splits
    of_splits = tl.load(best_ptr + part, mask=valid, other=float("-inf"))
    best = tl.max(of_splits, axis=0)
    broken = tl.max((of_splits != of_splits).to(tl.int32), axis=0) != 0
    excluded = tl.max((of_splits != float("-inf")).to(tl.int32), axis=0) == 0
    ids = tl.load(best_id_ptr + part, mask=valid, other=2147483647)
    total = tl.load(total_ptr + part, mask=valid, other=0.0)
    # How far what a split offers is measured from the best of the row.
    below = distance_below(of_splits, best, temperature)
    if (flags & HAS_FILTERS) != 0:
        below = tl.zeros([BLOCK_S], dtype=tl.float32)
    value = of_splits
    x = of_splits
    if (flags & (SAMPLES | HAS_FILTERS)) != 0:
        value = tl.load(noisy_ptr + part, mask=valid, other=float("-inf")) - below
        x = tl.load(score_ptr + part, mask=valid, other=float("-inf"))
    token = tl.min(tl.where(valid & (value == tl.max(value, axis=0)), ids, 2147483647), axis=0)
    chosen = tl.max(tl.where(ids == token, x, float("-inf")), axis=0)
    log_total = tl.log(tl.sum(total * tl.exp(-below), axis=0))
    logprob = -distance_below(chosen, best, temperature) - log_total
    sound = (tl.abs(best) < float("inf")) & (not broken) & (tl.abs(logprob) < float("inf"))
    tl.store(tokens_ptr + batch_index * stride_tokens, tl.where(sound, token, 0).to(tl.int64))
    tl.store(logprobs_ptr + batch_index * stride_logprobs, tl.where(sound, logprob, float("nan")))
    tl.store(valid_ptr + batch_index * stride_valid, tl.where(excluded, _EXCLUDED, sound.to(tl.int32)))
    tl.store(log_total_ptr + batch_index, log_total)


_launch = Launcher(choose_kernel)


def choose_triton(
    best: Tensor,
    best_id: Tensor,
    total: Tensor,
    noisy: Tensor,
    score: Tensor,
    number: int,
    rows: Tensor,
    floats: Tensor,
    ints: Tensor,
    tokens: Tensor,
    logprobs: Tensor,
    valid: Tensor,
    log_total: Tensor,
) -> None:
    """Triton implementation. Raises ValueError for layouts that the kernel does not read."""
    _, batch, splits = best.shape
    stride = best.stride(0)
    if not all(part.stride() == (stride, splits, 1) for part in (best, best_id, total, noisy, score)):
        raise ValueError("choose: the parts of the ranks must be contiguous, and equally far apart")
    if batch == 0:
        return
    _launch(
        (batch,),
        (
            best,
            best_id,
            total,
            noisy,
            score,
            rows,
            floats,
            ints,
            tokens,
            logprobs,
            valid,
            log_total,
        ),
        (number, splits, tokens.stride(0), logprobs.stride(0), valid.stride(0)),
        (stride,),
        BLOCK_S=triton.next_power_of_2(number),
        num_warps=1,
    )


def choose_torch(
    best: Tensor,
    best_id: Tensor,
    total: Tensor,
    noisy: Tensor,
    score: Tensor,
    number: int,
    rows: Tensor,
    floats: Tensor,
    ints: Tensor,
    tokens: Tensor,
    logprobs: Tensor,
    valid: Tensor,
    log_total: Tensor,
) -> None:
    """Torch implementation: the CPU path and the reference of the tests."""
    best, best_id, total, noisy, score = (
        part.transpose(0, 1).flatten(1)[:, :number] for part in (best, best_id, total, noisy, score)
    )
    flags, temperature = ints[rows, Ints.FLAGS].unsqueeze(1), floats[rows, Floats.TEMPERATURE]
    filtered, drawn = flags & Flags.FILTERS != 0, flags & (Flags.SAMPLE | Flags.FILTERS) != 0
    highest = best.amax(dim=1)
    below = distance(best, highest, temperature).masked_fill_(filtered, 0.0)
    split = torch.where(drawn, noisy - below, best).argmax(dim=1, keepdim=True)
    tokens.copy_(best_id.gather(1, split).squeeze(1))
    x = torch.where(drawn, score, best).gather(1, split)
    log_total.copy_((total * below.neg_().exp_()).sum(dim=1).log_())
    logprobs.copy_(-distance(x, highest, temperature).squeeze(1) - log_total)
    unsound = ~(highest + logprobs).isfinite()
    valid.copy_(~unsound)
    valid.masked_fill_((best == -torch.inf).all(dim=1), EXCLUDED)
    tokens.masked_fill_(unsound, 0)
    logprobs.masked_fill_(unsound, torch.nan)


choose = register(choose_torch, mutates=("tokens", "logprobs", "valid", "log_total"), triton=choose_triton)
