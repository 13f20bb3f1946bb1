"""Logits processors fused with split statistics: from logits to scores, and each split's best score and softmax sum.

In this order, each where the row's flags say so:

    logit bias     x <- x + bias[v]
    watermark      x <- x + delta where v is on the green list of the previous token (`watermark.py`)
    repetition     x <- x / r where x >= 0, x * r where x < 0, for each id seen (Keskar et al., "CTRL", 2019)
    frequency      x <- x - f * (times v was counted)          (OpenAI's API)
    presence       x <- x - p where v was counted at all       (OpenAI's API)
    minimum        x <- -inf for end-of-sequence ids while fewer than `min_new_tokens` were generated
    mask           x <- -inf where the mask of the row's slot has no bit for v (tokens that a grammar forbids); each
                   place of a window has a slot of its own

Layouts: `values.py`. A row of `scores` is written only where the row's flags hold `Flags.SCORES`: plain greedy rows
cost one read of their logits. The vocabulary is cut into splits (`split_size`), and each reports `best`, `best_id` and
`total`.

Called once a step. Raises ValueError for layouts that the kernel does not read. Bytes floor: N * vocab * element size;
for rows that write scores 4 more a token, and 4 for counts. On an H200, 256 plain rows of 151,936 ids in bfloat16 take
45 us, 40 % of copy bandwidth. Measurements: docs/lab/2026-11-sampling-and-readback.md.
"""

# pyright: basic, reportArgumentType=false, reportGeneralTypeIssues=false
# ruff: noqa: SIM108 - the choice is made by the compiler
import torch
from torch import Tensor

from ..runtime.launch import Launcher, launch_dependents, wait_for_previous
from ..runtime.register import by_device
from ..runtime.triton import tl, triton
from .columns import (
    BIASES,
    FLOATS,
    FREQUENCY,
    HAS_BIAS,
    HAS_MASK,
    HAS_PENALTIES,
    HAS_WATERMARK,
    INTS,
    MASK_SLOT,
    MIN_NEW_TOKENS,
    NUM_BIAS,
    PRESENCE,
    PROCESSED,
    REPETITION,
    TEMPERATURE,
    WRITES_SCORES,
    Flags,
    Floats,
    Ints,
    batch_indices,
    distance_below,
    flags_of,
    in_splits,
    inverse,
    load_flags,
    mask_words,
    split_size,
)
from .philox import DOMAIN_WATERMARK, vocabulary_words
from .values import SamplingBatch, SamplingColumns, SamplingRules, SplitStatistics
from .watermark import green_bound, green_list

BLOCK = 1024
NUM_WARPS = 4
MAX_REGISTERS = 64
"""Registers of a thread, so that eight thread blocks fit an SM."""

_DOMAIN = tl.constexpr(DOMAIN_WATERMARK)


@triton.jit
def _add_bias(x, ids, first_id, row_ids_ptr, row_values_ptr, number, BLOCK: tl.constexpr):
    """Adds the logit bias. Ids are stored in ascending order: those of this block are neighbours."""
    entry = tl.arange(0, BIASES)
    named = tl.load(row_ids_ptr + entry, mask=entry < number, other=2147483647)
    begin = tl.sum((named < first_id).to(tl.int32), axis=0)
    end = tl.sum((named < first_id + BLOCK).to(tl.int32), axis=0)
    for i in range(begin, end):
        x += tl.where(ids == tl.load(row_ids_ptr + i), tl.load(row_values_ptr + i), 0.0)
    return x


@triton.jit
def _penalised(x, floats_ptr, counts):
    """Applies the penalties of one row."""
    repetition = tl.load(floats_ptr + REPETITION)
    repeated = tl.where(x < 0, x * repetition, tl.div_rn(x, repetition))
    x = tl.where((counts & 1) != 0, repeated, x)
    number = counts >> 1
    presence = tl.where(number > 0, tl.load(floats_ptr + PRESENCE), 0.0)
    return x - (tl.load(floats_ptr + FREQUENCY) * number.to(tl.float32) + presence)


@triton.jit(do_not_specialize_on_alignment=["rows_ptr", "best_ptr", "best_id_ptr", "total_ptr"])
def logits_process_kernel(
    logits_ptr,  # [N, width]
    rows_ptr,  # [N]
    last_token_ptr,  # [rows]
    inputs_ptr,  # [N], or None where WIDTH is 1
    generated_ptr,  # [rows]
    floats_ptr,  # [rows, FLOATS]
    ints_ptr,  # [rows, INTS]
    bias_ids_ptr,  # [rows, BIASES]
    bias_values_ptr,  # [rows, BIASES]
    counts_ptr,  # [rows, vocab]
    eos_token_ids_ptr,  # [num_eos]
    masks_ptr,  # [max_masks, mask_words(vocab)]
    window_masks_ptr,  # [rows, WIDEST]
    scores_ptr,  # [N, width]
    best_ptr,  # [N, splits]
    best_id_ptr,  # [N, splits]
    total_ptr,  # [N, splits]
    vocab,
    first_id,
    num_eos,
    stride_logits,
    stride_scores,
    DELTA: tl.constexpr,
    GREEN: tl.constexpr,
    CHUNK: tl.constexpr,
    BLOCK: tl.constexpr,  # divides CHUNK
    WIDTH: tl.constexpr,  # successive places of one row
    WIDEST: tl.constexpr,  # the most of them in any step
    PDL: tl.constexpr,
):
    """One thread block handles one split of one row, in registers."""
    split = tl.program_id(0)
    batch_index = tl.program_id(1).to(tl.int64)
    first = first_id + split * CHUNK
    ids = first + tl.arange(0, CHUNK)
    inside = ids < vocab
    # Pointers are offset so that ids of the whole vocabulary index them.
    logits_ptr += batch_index * stride_logits - first_id
    scores_ptr += batch_index * stride_scores - first_id
    row, flags = load_flags(rows_ptr, ints_ptr, batch_index)
    floats_ptr += row * FLOATS
    ints_ptr += row * INTS
    temperature = tl.load(floats_ptr + TEMPERATURE)
    launch_dependents(PDL)
    wait_for_previous(PDL)
    x = tl.load(logits_ptr + ids, mask=inside, other=float("-inf")).to(tl.float32)
    if (flags & PROCESSED) != 0:
        in_window = batch_index % WIDTH
        if WIDTH == 1:
            previous = tl.load(last_token_ptr + row)
        else:
            previous = tl.load(inputs_ptr + batch_index)
        below_minimum = tl.load(generated_ptr + row) + in_window < tl.load(ints_ptr + MIN_NEW_TOKENS)
        # In small blocks: these rows are few and must not cost the others registers.
        for start in range(first, first + CHUNK, BLOCK):
            block_ids = start + tl.arange(0, BLOCK)
            stored = block_ids < vocab
            y = tl.load(logits_ptr + block_ids, mask=stored, other=float("-inf")).to(tl.float32)
            if (flags & HAS_BIAS) != 0:
                number = tl.load(ints_ptr + NUM_BIAS)
                y = _add_bias(
                    y, block_ids, start, bias_ids_ptr + row * BIASES, bias_values_ptr + row * BIASES, number, BLOCK
                )
            if (flags & HAS_WATERMARK) != 0:
                words = vocabulary_words(previous, previous * 0, start, _DOMAIN, BLOCK)
                y += tl.where(words.to(tl.int64) < GREEN, DELTA, 0.0)
            if (flags & HAS_PENALTIES) != 0:
                counts = tl.load(counts_ptr + row * vocab + block_ids, mask=stored, other=0)
                if WIDTH > 1:
                    for i in range(in_window):
                        # The tokens of the window before this one, behind the newest, which is counted.
                        token = tl.load(inputs_ptr + batch_index - i)
                        counts = tl.where(block_ids == token, (counts | 1) + 2, counts)
                y = _penalised(y, floats_ptr, counts)
            if below_minimum:
                for i in range(num_eos):
                    y = tl.where(block_ids == tl.load(eos_token_ids_ptr + i), float("-inf"), y)
            if (flags & HAS_MASK) != 0:
                if WIDTH == 1:
                    slot = tl.load(ints_ptr + MASK_SLOT).to(tl.int64)
                else:
                    slot = tl.load(window_masks_ptr + row * WIDEST + in_window).to(tl.int64)
                words = tl.load(masks_ptr + slot * tl.cdiv(vocab, 32) + block_ids // 32, mask=stored, other=0)
                y = tl.where(((words >> (block_ids % 32)) & 1) != 0, y, float("-inf"))
            tl.store(scores_ptr + block_ids, y, mask=stored)
        tl.debug_barrier()
        x = tl.load(scores_ptr + ids, mask=inside, other=float("-inf"))
    elif (flags & WRITES_SCORES) != 0:
        tl.store(scores_ptr + ids, x, mask=inside)
    # A NaN shows as an infinite best.
    best, best_id = tl.max(tl.where(x != x, float("inf"), x), axis=0, return_indices=True)
    u = distance_below(x, best, temperature)
    total = tl.sum(tl.where(x > float("-inf"), tl.exp(-u), 0.0), axis=0)
    place = batch_index * tl.num_programs(0) + split
    tl.store(best_ptr + place, tl.where(best == float("inf"), float("nan"), best))
    tl.store(best_id_ptr + place, first + best_id)
    tl.store(total_ptr + place, total)


_launch = Launcher(
    logits_process_kernel, writes=("scores", "best", "best_id", "total"), reads_early=("rows", "ints", "floats")
)


def logits_process_triton(
    batch: SamplingBatch, columns: SamplingColumns, rules: SamplingRules, statistics: SplitStatistics
) -> None:
    """Triton implementation. Raises ValueError for layouts that the kernel does not read."""
    logits, scores, first_id = batch.logits, batch.scores, batch.first_id
    (number, width), vocab = logits.shape, columns.vocab_size
    chunk = split_size(vocab)
    splits = triton.cdiv(width, chunk)
    if batch.width > rules.window_masks.shape[1]:
        raise ValueError(
            f"logits_process: windows of {batch.width} places have masks for {rules.window_masks.shape[1]}"
        )
    if not statistics.best.shape == statistics.best_id.shape == statistics.total.shape == (number, splits):
        found = statistics.best.shape[1]
        raise ValueError(f"logits_process: statistics of {width} ids have {splits} splits, not {found}")
    if scores.shape != logits.shape or rules.masks.shape[1] != mask_words(vocab):
        raise ValueError("logits_process: shapes of logits, scores, counts, masks do not fit")
    if first_id % chunk or (width % chunk and first_id + width != vocab):
        raise ValueError(f"logits_process: ids {first_id} to {first_id + width} are not whole splits of {vocab}")
    if logits.stride(1) != 1 or scores.stride(1) != 1:
        raise ValueError("logits_process: the last dimension of logits and scores must have stride 1")
    if number == 0:
        return
    _launch(
        (splits, number),
        (
            logits,
            batch.rows,
            batch.last_token,
            batch.inputs,
            batch.generated,
            columns.floats,
            columns.ints,
            columns.bias_ids,
            columns.bias_values,
            columns.counts,
            rules.eos_token_ids,
            rules.masks,
            rules.window_masks,
            scores,
            statistics.best,
            statistics.best_id,
            statistics.total,
        ),
        (vocab, first_id, rules.eos_token_ids.shape[0], logits.stride(0), scores.stride(0)),
        DELTA=rules.delta,
        GREEN=green_bound(rules.gamma),
        CHUNK=chunk,
        BLOCK=min(BLOCK, chunk),
        WIDTH=batch.width,
        WIDEST=rules.window_masks.shape[1],
        num_warps=NUM_WARPS,
        maxnreg=MAX_REGISTERS,
    )


def logits_process_torch(
    batch: SamplingBatch, columns: SamplingColumns, rules: SamplingRules, statistics: SplitStatistics
) -> None:
    """Torch implementation: the CPU path and the reference of the tests. Writes every row of `scores`."""
    scores, rows, first_id = batch.scores, batch.rows, batch.first_id
    floats, ints, counts = columns.floats, columns.ints, columns.counts
    if scores.data_ptr() != batch.logits.data_ptr():
        scores.copy_(batch.logits)
    stop = min(columns.vocab_size, first_id + scores.shape[1])
    number = max(0, stop - first_id)
    scores[:, number:] = -torch.inf
    inside = scores[:, :number]
    flags = flags_of(ints, rows)
    for batch_index in batch_indices(flags, Flags.BIAS):
        row = rows[batch_index]
        entries = ints[row, Ints.NUM_BIAS]
        ids = columns.bias_ids[row, :entries] - first_id
        ours = (ids >= 0) & (ids < number)
        inside[batch_index].index_add_(0, ids[ours], columns.bias_values[row, :entries][ours])
    if chosen := batch_indices(flags, Flags.WATERMARK):
        previous = batch.last_token[rows[chosen]] if batch.inputs is None else batch.inputs[chosen]
        green = green_list(previous, rules.gamma, number, first_id)
        inside[chosen] += rules.delta * green
    if chosen := batch_indices(flags, Flags.PENALTIES):
        counted = _counted(batch, counts, chosen)[:, first_id:stop]
        inside[chosen] = _penalise(inside[chosen], counted, floats[rows[chosen]])
    if chosen := batch_indices(flags, Flags.MIN_NEW_TOKENS):
        r = rows[chosen]
        places = torch.tensor(chosen, device=scores.device)
        early = places[batch.generated[r] + batch.offsets[places] < ints[r, Ints.MIN_NEW_TOKENS]]
        ends = rules.eos_token_ids
        ends = ends[(ends >= first_id) & (ends < stop)] - first_id
        inside[early.unsqueeze(1), ends.unsqueeze(0)] = -torch.inf
    if chosen := batch_indices(flags, Flags.MASK):
        slots = ints[rows[chosen], Ints.MASK_SLOT]
        if batch.width > 1:
            places = torch.tensor(chosen, device=scores.device)
            slots = rules.window_masks[rows[chosen], batch.offsets[places]]
        words = rules.masks[slots, first_id // 32 :]
        inside[chosen] = inside[chosen].masked_fill(~_bits(words, number), -torch.inf)
    temperature = floats[:, Floats.TEMPERATURE].index_select(0, rows)
    _fill(statistics, scores, temperature, first_id, split_size(columns.vocab_size))


def _counted(batch: SamplingBatch, counts: Tensor, chosen: list[int]) -> Tensor:
    """Token counts of these places, [places, vocab], as if the tokens of the window before them had been appended."""
    counted = counts[batch.rows[chosen]]
    if batch.inputs is None:
        return counted
    for i, place in enumerate(chosen):
        for token in batch.inputs[place - place % batch.width + 1 : place + 1]:
            counted[i, token] = (counted[i, token] | 1) + 2
    return counted


def _penalise(scores: Tensor, counts: Tensor, floats: Tensor) -> Tensor:
    """`counts` int32 [N, vocab]: twice the number of times counted, plus one where seen."""
    repetition, frequency, presence = (
        floats[:, column].unsqueeze(1) for column in (Floats.REPETITION, Floats.FREQUENCY, Floats.PRESENCE)
    )
    repeated = torch.where(scores < 0, scores * repetition, scores / repetition)
    scores = torch.where(counts & 1 != 0, repeated, scores)
    number = counts >> 1
    return scores - (frequency * number + presence * (number > 0))


def _bits(words: Tensor, number: int) -> Tensor:
    """int32 [N, words] to bool [N, number], the lowest bit of a word first."""
    bits = words.unsqueeze(2) >> torch.arange(32, dtype=torch.int32, device=words.device) & 1
    return bits.flatten(1)[:, :number].bool()


def _fill(statistics: SplitStatistics, scores: Tensor, temperature: Tensor, first_id: int, size: int) -> None:
    """Statistics of all splits."""
    best = statistics.best
    by_split = in_splits(scores, size)
    index = by_split.argmax(dim=2, keepdim=True)
    highest = by_split.gather(2, index)
    best.copy_(highest.squeeze(2))
    starts = torch.arange(first_id, first_id + size * best.shape[1], size, device=best.device)
    statistics.best_id.copy_(index.squeeze(2) + starts)
    # A split whose tokens are all excluded has no mass.
    u = (highest - by_split).mul_(inverse(temperature)[:, None, None]).nan_to_num_(nan=torch.inf, posinf=torch.inf)
    statistics.total.copy_(u.neg_().exp_().sum(dim=2))
    best.masked_fill_(best == torch.inf, torch.nan)


logits_process = by_device(logits_process_torch, logits_process_triton)
