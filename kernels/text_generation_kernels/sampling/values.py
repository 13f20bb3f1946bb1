"""Inputs and outputs of the sampling operators, each value declared once.

    batch       SamplingBatch      logits, and the rows that they belong to
    columns     SamplingColumns    parameters of each row
    rules       SamplingRules      parameters of all rows
    statistics  SplitStatistics    statistics of each vocabulary split of each row
    bounds      float32 [N, 4]     filter bounds: see `survivors`
    sampled     SampledTokens      sampled tokens

N rows sample a token on R ranks. A tensor "by row" is indexed by the row of a running request: place i of the batch
uses entry `rows[i]`. With speculation a row samples `width` tokens in successive places, each as if those before it had
been appended already.

`rows`, the statistics and the sampled tokens are views that may begin at any element of a larger tensor. Kernels list
these pointers in `do_not_specialize_on_alignment`: each combination of alignments would be a variant to compile, of
identical machine code.
"""

from enum import IntEnum
from typing import NamedTuple

import torch
from torch import Tensor

from .columns import MAX_TOP, split_size


class SamplingBatch(NamedTuple):
    """Logits of a batch. Those of a vocabulary shard belong to the ids from `first_id` on, in whole splits; columns
    past the end of the vocabulary count as -inf.
    """

    logits: Tensor
    """[N, width] of any floating type, unit stride in the last dimension."""
    scores: Tensor
    """float32 [N, width], likewise, may be `logits`: output of `logits_process`."""
    rows: Tensor
    """int64 [N]"""
    last_token: Tensor
    """int64 by row: newest token."""
    generated: Tensor
    """int64 by row: tokens generated so far."""
    first_id: int
    width: int = 1
    """Successive places of one row: place i is token `i % width` of its window."""
    inputs: Tensor | None = None
    """int64 [N], the token that each place follows: of place 0 of a window the newest. None: `width` is 1."""

    @classmethod
    def of(
        cls,
        logits: Tensor,
        rows: Tensor,
        last_token: Tensor,
        generated: Tensor,
        first_id: int = 0,
        width: int = 1,
        inputs: Tensor | None = None,
    ) -> "SamplingBatch":
        """Allocates scores, which share the memory of float32 logits."""
        scores = logits if logits.dtype == torch.float32 else torch.empty_like(logits, dtype=torch.float32)
        return cls(logits, scores, rows, last_token, generated, first_id, width, inputs)

    @property
    def offsets(self) -> Tensor:
        """int64 [N]: the place of each token within its window."""
        return torch.arange(len(self.rows), device=self.rows.device) % self.width

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
    """Parameters of all rows."""

    eos_token_ids: Tensor
    """int32 [num_eos]: excluded while a row has fewer tokens than its minimum."""
    masks: Tensor
    """int32 [max_masks, mask_words]: a row reads the one that its column `MASK_SLOT` names; slot 0 allows everything,
    and a row that has it (no `Flags.MASK`) reads no mask.
    """
    window_masks: Tensor
    """int32 [rows, widest]: the same for each place of a row's window, where windows are wider than one token."""
    gamma: float
    """Share of the vocabulary that is on a green list of the watermark."""
    delta: float
    """Added to the logits of such tokens."""


class SplitStatistics(NamedTuple):
    """Statistics of each split of each row, in one matrix, so that one all-gather brings them to the other ranks."""

    record: Tensor
    """int32 [..., 5, N, splits], of which the others are views [..., N, splits]."""
    best: Tensor
    """float32: largest score, NaN where the split holds a NaN or an infinite score."""
    best_id: Tensor
    """int32: the lowest id of that score; after `draw`, of the token that the split offers."""
    total: Tensor
    """float32: sum of exp((x - best) / t); after `draw`, over the survivors."""
    noisy: Tensor
    """float32: -u + G of the token that the split offers. This and the next are valid after `draw`, for rows that
    sample or have filters.
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
    """Sampled tokens of a batch, in one matrix, so that one copy brings them to the host."""

    record: Tensor
    """int32 [N, WIDTH], of which the others are views."""
    tokens: Tensor
    """int64 [N]"""
    logprobs: Tensor
    """float32 [N]: log-probability of the token among the survivors; NaN where `valid` is not 1."""
    valid: Tensor
    """int32 [N]: 1 for a sampled token; 0 where scores held NaN or were infinite, `EXCLUDED` where every token was
    excluded. The token is 0 then, which is legal everywhere.
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
        """Memory for `batch` tokens."""
        return cls.of(torch.empty(batch, cls.WIDTH, dtype=torch.int32, device=device))
