"""What the sampling operators take and give, each value declared once.

    batch       SamplingBatch      the logits, and the rows that they belong to
    columns     SamplingColumns    what rows ask for
    rules       SamplingRules      what holds for all rows
    statistics  SplitStatistics    what each split of the vocabulary says of each row
    bounds      float32 [N, 4]     which tokens survive the filters: see `survivors`
    sampled     SampledTokens      what was chosen

N rows choose a token, R ranks take part. A tensor "by row" is indexed by the row of a running request: place i of the
batch uses entry `rows[i]` of it.

`rows`, the statistics and what was chosen are views that may begin at any element of a larger tensor. Kernels say so of
these pointers (`do_not_specialize_on_alignment`): each combination of alignments would be a form to compile, and the
machine code of all of them is the same.
"""

from enum import IntEnum
from typing import NamedTuple

import torch
from torch import Tensor

from .columns import MAX_TOP, split_size


class SamplingBatch(NamedTuple):
    """Logits from which rows choose. Those of a rank that has a part of the vocabulary are of the ids from `first_id`
    on, whole splits; columns behind the end of the vocabulary count as -inf.
    """

    logits: Tensor
    """[N, width] of any floating type, unit stride in the last dimension."""
    scores: Tensor
    """float32 [N, width], likewise, may be `logits`: what `logits_process` makes of them."""
    rows: Tensor
    """int64 [N]"""
    last_token: Tensor
    """int64 by row: newest token."""
    generated: Tensor
    """int64 by row: tokens generated so far."""
    first_id: int

    @classmethod
    def of(
        cls, logits: Tensor, rows: Tensor, last_token: Tensor, generated: Tensor, first_id: int = 0
    ) -> "SamplingBatch":
        """With memory for scores, which is that of the logits where these are float32."""
        scores = logits if logits.dtype == torch.float32 else torch.empty_like(logits, dtype=torch.float32)
        return cls(logits, scores, rows, last_token, generated, first_id)

    @property
    def is_cuda(self) -> bool:
        """Whether its tensors are on a GPU."""
        return self.logits.is_cuda


class SamplingColumns(NamedTuple):
    """Parameters and token counts by row."""

    floats: Tensor
    """float32 [rows, Floats.WIDTH]: temperature, top-p, typical-p, min-p and penalties."""
    ints: Tensor
    """int32 [rows, Ints.WIDTH]: flags, mask slot, top-k, top-n, minimum of new tokens, entries of the bias."""
    seed: Tensor
    """int64 [rows]: bit pattern of the 64-bit seed."""
    bias_ids: Tensor
    """int32 [rows, MAX_LOGIT_BIAS], ascending; only the first entries, as many as `ints` says, are valid."""
    bias_values: Tensor
    """float32 [rows, MAX_LOGIT_BIAS]"""
    counts: Tensor
    """int32 [rows, vocab]: twice the times that penalties count a token, plus 1 where it was seen; valid for rows with
    penalties.
    """

    @property
    def vocab_size(self) -> int:
        """Ids of the whole vocabulary."""
        return self.counts.shape[1]


class SamplingRules(NamedTuple):
    """What does not depend on the row."""

    eos_token_ids: Tensor
    """int32 [num_eos]: excluded while a row has fewer tokens than its minimum."""
    masks: Tensor
    """int32 [max_masks, mask_words]: a row reads the one that its column `MASK_SLOT` names; slot 0 allows everything,
    and a row that has it (no `Flags.MASK`) reads no mask.
    """
    gamma: float
    """Share of the vocabulary that is on a green list of the watermark."""
    delta: float
    """What is added to the logits of such tokens."""


class SplitStatistics(NamedTuple):
    """What each split says of each row, in one matrix, so that one gather brings all of it to the other ranks."""

    record: Tensor
    """int32 [..., 5, N, splits], of which the others are views [..., N, splits]."""
    best: Tensor
    """float32: largest score, NaN where the split holds a NaN or an infinite score."""
    best_id: Tensor
    """int32: the lowest id of that score; after `draw`, of the token that the split offers."""
    total: Tensor
    """float32: sum of exp((x - best) / t); after `draw`, over the survivors."""
    noisy: Tensor
    """float32: what the token that the split offers is compared by. This and the next are valid after `draw`, for rows
    that sample or have filters.
    """
    score: Tensor
    """float32: the score of that token."""

    @classmethod
    def of(cls, record: Tensor) -> "SplitStatistics":
        """Views of `record`."""
        best, _, total, noisy, score = record.view(torch.float32).unbind(-3)
        return cls(record, best, record.select(-3, 1), total, noisy, score)

    @classmethod
    def empty(cls, batch: SamplingBatch, vocab_size: int) -> "SplitStatistics":
        """Memory for the splits of the batch's logits."""
        num_rows, width = batch.logits.shape
        splits = -(-width // split_size(vocab_size))
        return cls.of(torch.empty(5, num_rows, splits, dtype=torch.int32, device=batch.logits.device))

    @property
    def is_cuda(self) -> bool:
        """Whether its tensors are on a GPU."""
        return self.record.is_cuda


class _Words(IntEnum):
    """Columns of the record of `SampledTokens`: where the words of a value begin."""

    TOKENS = 0
    LOGPROBS = 2
    VALID = 3
    NUM_TOP = 4
    LOG_TOTAL = 5
    TOP_IDS = 6
    TOP_LOGPROBS = TOP_IDS + MAX_TOP
    # An even number, so that every row is one of int64 too.
    WIDTH = TOP_LOGPROBS + MAX_TOP


class SampledTokens(NamedTuple):
    """What was chosen for a batch, in one matrix, so that one copy brings all of it to the host."""

    record: Tensor
    """int32 [N, WIDTH], of which the others are views."""
    tokens: Tensor
    """int64 [N]"""
    logprobs: Tensor
    """float32 [N]: of the tokens, among the survivors of the processed scores; NaN where there is no choice."""
    valid: Tensor
    """int32 [N]: 1 for a choice; 0 where the scores held NaN or were infinite, `EXCLUDED` where no token was left. The
    token is 0 then, which is legal everywhere.
    """
    num_top: Tensor
    """int32 [N]: entries of the two lists that are valid."""
    log_total: Tensor
    """float32 [N]: logarithm of the sum of exp(-u) over the survivors."""
    top_ids: Tensor
    """int32 [N, MAX_TOP], best first."""
    top_logprobs: Tensor
    """float32 [N, MAX_TOP]"""

    WIDTH = int(_Words.WIDTH)

    @classmethod
    def of(cls, record: Tensor) -> "SampledTokens":
        """Views of `record`."""
        floats, longs = record.view(torch.float32), record.view(torch.int64)
        return cls(
            record,
            tokens=longs.select(1, _Words.TOKENS),
            logprobs=floats.select(1, _Words.LOGPROBS),
            valid=record.select(1, _Words.VALID),
            num_top=record.select(1, _Words.NUM_TOP),
            log_total=floats.select(1, _Words.LOG_TOTAL),
            top_ids=record.narrow(1, _Words.TOP_IDS, MAX_TOP),
            top_logprobs=floats.narrow(1, _Words.TOP_LOGPROBS, MAX_TOP),
        )

    @classmethod
    def empty(cls, batch: int, device: torch.device) -> "SampledTokens":
        """Memory for `batch` choices."""
        return cls.of(torch.empty(batch, cls.WIDTH, dtype=torch.int32, device=device))
