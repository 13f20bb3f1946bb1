"""The choice among the survivors, and its log-probability.

    greedy    the best score, ties to the lowest id
    sampled   argmax(-u + G) with G standard Gumbel noise of the key (seed, tokens generated, id): a draw from the
              softmax of the survivors, exactly (`gumbel`)
    logprob   -u(token) - log(sum over survivors of exp(-u))

Layouts: `logits`, `scores`, `best`, `best_id`, `total` as in `logits_process`; `bounds` as in `survivors`. Outputs
`[N]` with any stride: `tokens` int64, `logprobs` float32, `valid` int32 (1: the scores were sound); `log_total`
float32 `[N]`: the logarithm in the last line above. Where the scores hold NaN or are infinite, `valid` is 0; where
every token is excluded, it is `EXCLUDED`. Then the token is 0, which is legal everywhere, and the log-probability NaN.

Called once a step. Bytes floor: nothing for rows that are greedy and have no filter, which `logits_process` has read
already; N * vocab * element size for the others.
"""

# pyright: basic, reportArgumentType=false
import torch
from torch import Tensor

from ._launch import Launcher, let_next_start, wait_for_previous
from ._register import register
from ._sampling import (
    CHUNK,
    EXCLUDED,
    FLAGS,
    FLOATS,
    HAS_FILTERS,
    INTS,
    SAMPLES,
    TEMPERATURE,
    WRITES_SCORES,
    Flags,
    Floats,
    asked,
    distance,
    distance_below,
    positions,
    row_best,
    survives,
    within,
)
from ._triton import tl, triton
from .gumbel import gumbel_noise, gumbel_of
from .philox import DOMAIN_GUMBEL, vocabulary_words

BLOCK = 1024
NUM_WARPS = 4

_DOMAIN = tl.constexpr(DOMAIN_GUMBEL)
_EXCLUDED = tl.constexpr(EXCLUDED)


@triton.jit
def sample_kernel(
    logits_ptr,  # [N, vocab]
    scores_ptr,  # [N, vocab]
    best_ptr,  # [N, splits]
    bounds_ptr,  # [N, 4]
    rows_ptr,  # [N]
    generated_ptr,  # [rows]
    seed_ptr,  # [rows]
    floats_ptr,  # [rows, FLOATS]
    ints_ptr,  # [rows, INTS]
    noisy_ptr,  # [N, splits] float32: the split's best -u + G
    winner_ptr,  # [N, splits] int32: its id
    winner_u_ptr,  # [N, splits] float32
    total_ptr,  # [N, splits] float32: sum over the split's survivors of exp(-u)
    vocab,
    stride_logits,
    stride_scores,
    CHUNK: tl.constexpr,
    BLOCK: tl.constexpr,  # divides CHUNK
    BLOCK_S: tl.constexpr,
    PDL: tl.constexpr,
):
    """One program draws within one split of one row; it has nothing to do where a row is greedy without a filter."""
    wait_for_previous(PDL)
    let_next_start(PDL)
    split = tl.program_id(0)
    splits = tl.num_programs(0)
    position = tl.program_id(1).to(tl.int64)
    row = tl.load(rows_ptr + position)
    flags = tl.load(ints_ptr + row * INTS + FLAGS)
    if (flags & (SAMPLES | HAS_FILTERS)) == 0:
        return
    best, _ = row_best(best_ptr + position * splits, splits, BLOCK_S)
    temperature = tl.load(floats_ptr + row * FLOATS + TEMPERATURE)
    seed = tl.load(seed_ptr + row)
    step = tl.load(generated_ptr + row)
    bound_ptr = bounds_ptr + position * 4
    largest, first_id = tl.load(bound_ptr), tl.load(bound_ptr + 1)
    centre, radius = tl.load(bound_ptr + 2), tl.load(bound_ptr + 3)
    highest = tl.full([BLOCK], float("-inf"), dtype=tl.float32)
    winner = split * CHUNK + tl.arange(0, BLOCK)
    winner_u = tl.full([BLOCK], float("inf"), dtype=tl.float32)
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for start in range(split * CHUNK, split * CHUNK + CHUNK, BLOCK):
        ids = start + tl.arange(0, BLOCK)
        if (flags & WRITES_SCORES) != 0:
            x = tl.load(scores_ptr + position * stride_scores + ids, mask=ids < vocab, other=float("-inf"))
        else:
            x = tl.load(logits_ptr + position * stride_logits + ids, mask=ids < vocab, other=float("-inf"))
            x = x.to(tl.float32)
        u = distance_below(x, best, temperature)
        u = tl.where(within(u, ids, largest, first_id, centre, radius), u, float("inf"))
        noisy = -u
        if (flags & SAMPLES) != 0:
            noisy += gumbel_of(vocabulary_words(seed, step, start, _DOMAIN, BLOCK))
        better = noisy > highest
        highest = tl.where(better, noisy, highest)
        winner = tl.where(better, ids, winner)
        winner_u = tl.where(better, u, winner_u)
        total += tl.exp(-u)
    value = tl.max(highest, axis=0)
    token = tl.min(tl.where(highest == value, winner, 2147483647), axis=0)
    part = position * splits + split
    tl.store(noisy_ptr + part, value)
    tl.store(winner_ptr + part, token)
    tl.store(winner_u_ptr + part, tl.sum(tl.where(winner == token, winner_u, 0.0), axis=0))
    tl.store(total_ptr + part, tl.sum(total, axis=0))


@triton.jit(do_not_specialize_on_alignment=["tokens_ptr", "logprobs_ptr", "valid_ptr"])
def merge_kernel(
    best_ptr,  # [N, splits], and so on until floats, as above or in `logits_process`
    best_id_ptr,
    total_ptr,
    noisy_ptr,
    winner_ptr,
    winner_u_ptr,
    kept_total_ptr,
    rows_ptr,
    floats_ptr,
    ints_ptr,
    tokens_ptr,  # [N]
    logprobs_ptr,  # [N]
    valid_ptr,  # [N]
    log_total_ptr,  # [N]
    splits,
    stride_tokens,
    stride_logprobs,
    stride_valid,
    BLOCK_S: tl.constexpr,  # power of two, at least splits
    PDL: tl.constexpr,
):
    """One program merges the splits of one row."""
    wait_for_previous(PDL)
    let_next_start(PDL)
    position = tl.program_id(0).to(tl.int64)
    row = tl.load(rows_ptr + position)
    flags = tl.load(ints_ptr + row * INTS + FLAGS)
    split = tl.arange(0, BLOCK_S)
    valid = split < splits
    part = position * splits + split
    best, sound = row_best(best_ptr + position * splits, splits, BLOCK_S)
    of_splits = tl.load(best_ptr + part, mask=valid, other=float("-inf"))
    excluded = tl.max((of_splits != float("-inf")).to(tl.int32), axis=0) == 0
    if (flags & (SAMPLES | HAS_FILTERS)) != 0:
        value = tl.load(noisy_ptr + part, mask=valid, other=float("-inf"))
        ids = tl.load(winner_ptr + part, mask=valid, other=2147483647)
        distances = tl.load(winner_u_ptr + part, mask=valid, other=0.0)
        total = tl.load(kept_total_ptr + part, mask=valid, other=0.0)
    else:
        value = of_splits
        ids = tl.load(best_id_ptr + part, mask=valid, other=2147483647)
        distances = tl.zeros([BLOCK_S], dtype=tl.float32)
        below = distance_below(value, best, tl.load(floats_ptr + row * FLOATS + TEMPERATURE))
        total = tl.load(total_ptr + part, mask=valid, other=0.0) * tl.exp(-below)
    token = tl.min(tl.where(valid & (value == tl.max(value, axis=0)), ids, 2147483647), axis=0)
    u = tl.sum(tl.where(ids == token, distances, 0.0), axis=0)
    log_total = tl.log(tl.sum(total, axis=0))
    logprob = -u - log_total
    sound = sound & (tl.abs(logprob) < float("inf"))
    tl.store(tokens_ptr + position * stride_tokens, tl.where(sound, token, 0).to(tl.int64))
    tl.store(logprobs_ptr + position * stride_logprobs, tl.where(sound, logprob, float("nan")))
    tl.store(valid_ptr + position * stride_valid, tl.where(excluded, _EXCLUDED, sound.to(tl.int32)))
    tl.store(log_total_ptr + position, log_total)


_launch, _launch_merge = Launcher(sample_kernel), Launcher(merge_kernel)


def sample_triton(
    logits: Tensor,
    scores: Tensor,
    best: Tensor,
    best_id: Tensor,
    total: Tensor,
    bounds: Tensor,
    rows: Tensor,
    generated: Tensor,
    seed: Tensor,
    floats: Tensor,
    ints: Tensor,
    tokens: Tensor,
    logprobs: Tensor,
    valid: Tensor,
    log_total: Tensor,
) -> None:
    """Triton implementation. Raises ValueError for layouts that the kernels do not read."""
    (batch, vocab), splits = logits.shape, best.shape[1]
    if scores.shape != logits.shape or splits != triton.cdiv(vocab, CHUNK):
        raise ValueError("sample: shapes of logits, scores and statistics do not fit")
    if logits.stride(1) != 1 or scores.stride(1) != 1:
        raise ValueError("sample: the last dimension of logits and scores must have stride 1")
    if batch == 0:
        return
    block_s = triton.next_power_of_2(splits)
    noisy, winner_u, kept_total = (torch.empty_like(best) for _ in range(3))
    winner = torch.empty_like(best_id)
    _launch(
        (splits, batch),
        (
            logits,
            scores,
            best,
            bounds,
            rows,
            generated,
            seed,
            floats,
            ints,
            noisy,
            winner,
            winner_u,
            kept_total,
        ),
        (vocab, logits.stride(0), scores.stride(0)),
        CHUNK=CHUNK,
        BLOCK=BLOCK,
        BLOCK_S=block_s,
        num_warps=NUM_WARPS,
    )
    _launch_merge(
        (batch,),
        (
            best,
            best_id,
            total,
            noisy,
            winner,
            winner_u,
            kept_total,
            rows,
            floats,
            ints,
            tokens,
            logprobs,
            valid,
            log_total,
        ),
        (splits, tokens.stride(0), logprobs.stride(0), valid.stride(0)),
        BLOCK_S=block_s,
        num_warps=1,
    )


def sample_torch(
    logits: Tensor,
    scores: Tensor,
    best: Tensor,
    best_id: Tensor,
    total: Tensor,
    bounds: Tensor,
    rows: Tensor,
    generated: Tensor,
    seed: Tensor,
    floats: Tensor,
    ints: Tensor,
    tokens: Tensor,
    logprobs: Tensor,
    valid: Tensor,
    log_total: Tensor,
) -> None:
    """Torch implementation: the CPU path and the reference of the tests."""
    temperature, flags = floats[:, Floats.TEMPERATURE].index_select(0, rows), asked(ints, rows)
    highest = best.amax(dim=1)
    split = (best == highest.unsqueeze(1)).byte().argmax(dim=1, keepdim=True)
    tokens.copy_(best_id.gather(1, split).squeeze(1))
    weights = distance(best, highest, temperature).neg_().exp_()
    log_total.copy_((total * weights).sum(dim=1).log_())
    torch.neg(log_total, out=logprobs)
    if chosen := positions(flags, Flags.SAMPLE | Flags.FILTERS):
        r = rows[chosen]
        flags = [flags[position] for position in chosen]
        uses_scores = torch.tensor([f & Flags.SCORES != 0 for f in flags], device=scores.device).unsqueeze(1)
        x = torch.where(uses_scores, scores[chosen], logits[chosen].float())
        u = distance(x, highest[chosen], temperature[chosen])
        u.masked_fill_(~survives(u, bounds[chosen]), torch.inf)
        noisy = -u
        if drawn := positions(flags, Flags.SAMPLE):
            noisy[drawn] += gumbel_noise(seed[r[drawn]], generated[r[drawn]], u.shape[1])
        token = noisy.argmax(dim=1)
        sums = u.neg().exp_().sum(dim=1).log_()
        tokens[chosen] = token
        log_total[chosen] = sums
        logprobs[chosen] = -u.gather(1, token.unsqueeze(1)).squeeze(1) - sums
    unsound = ~(highest + logprobs).isfinite()
    valid.copy_(~unsound)
    valid.masked_fill_((best == -torch.inf).all(dim=1), EXCLUDED)
    tokens.masked_fill_(unsound, 0)
    logprobs.masked_fill_(unsound, torch.nan)


sample = register(sample_torch, mutates=("tokens", "logprobs", "valid", "log_total"), triton=sample_triton)
