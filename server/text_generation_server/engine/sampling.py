"""Sampling: from logits to token ids, log-probabilities and top-n lists, for the whole batch at once, without the host.

The order is logit bias, watermark, penalties, minimum of new tokens, mask, temperature, top-k, top-p, typical-p, min-p,
draw. The parameters of a row are in device columns, so one CUDA graph serves any mixture of requests, and a row's token
does not depend on the other rows.

Log-probabilities, and those of the alternatives, are of the distribution that the token is drawn from: after the mask
and the filters. TGI reports the same; vLLM reports them after the mask, but before temperature and filters.

Where ranks share the vocabulary, they do not gather logits. Each rank reduces its splits of the vocabulary, and the
ranks all-gather 20 bytes for each split and row: the best token, the sum of exponentials, and the best token under the
row's noise. Splits are independent, so tokens and log-probabilities have the same bits on any number of ranks.

Filters and alternatives need all logits of a row. For steps with such rows the ranks share the rows instead: an
all-to-all brings each rank all columns of its rows, it samples them as one rank does, and the ranks all-gather the
tokens. A distributed search would send less, but in up to 16 rounds.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from text_generation_kernels import (
    SampledTokens,
    SamplingBatch,
    SamplingRules,
    SplitStatistics,
    choose,
    draw,
    logits_process,
    survivors,
    top_tokens,
)

from ..config.server import WatermarkConfig
from ..distributed import TensorParallelGroup
from ..layers.weights import VocabularyShard
from .mask_pool import MaskPool
from .sampling_state import SamplingState


class SampledWindow(NamedTuple):
    """Successive places of each row, as in `SamplingBatch`."""

    width: int = 1
    inputs: Tensor | None = None
    """int64 [N]"""


SINGLE = SampledWindow()
"""One place for each row."""


class Sampler:
    """Samples the next token of rows. The engine thread owns it; it has no state but its parameters.

    All ranks call it with the same rows. `shard` names the columns of logits that this rank has.
    """

    def __init__(
        self,
        state: SamplingState,
        masks: MaskPool,
        watermark: WatermarkConfig,
        shard: VocabularyShard,
        group: TensorParallelGroup,
    ) -> None:
        self._columns = state.columns
        self._rules = SamplingRules(
            state.eos_token_ids, masks.bits, state.window_masks, watermark.gamma, watermark.delta
        )
        self._shard = shard
        self._group = group

    def __call__(
        self,
        logits: Tensor,
        rows: Tensor,
        last_token: Tensor,
        generated: Tensor,
        whole_rows: bool,
        window: SampledWindow = SINGLE,
    ) -> SampledTokens:
        """Samples without waiting for the device. `logits` [N, width of the shard] have the model's type, and are
        overwritten if float32; `rows` int64 [N] may repeat a row that is plain and greedy; `last_token` and `generated`
        are int64 by row. `whole_rows` says whether a row needs all its logits (`SamplingState.need_whole_rows`).
        With a wider `window`, rows have so many successive places.
        """
        if self._shard.is_whole:
            return self._sample(logits, rows, last_token, generated, window)
        if whole_rows:
            return self._sample_by_rows(logits, rows, last_token, generated, window)
        batch = SamplingBatch.of(logits, rows, last_token, generated, self._shard.start, *window)
        statistics = self._statistics(batch)
        # Without filters, `draw` reads no bounds.
        draw(batch, self._columns, statistics, batch.scores.new_empty(len(rows), 4))
        sampled = self._choose(SplitStatistics.of(self._group.all_gather(statistics.record)), rows)
        sampled.num_top.zero_()
        return sampled

    def _sample_by_rows(
        self, logits: Tensor, rows: Tensor, last_token: Tensor, generated: Tensor, window: SampledWindow
    ) -> SampledTokens:
        """Samples with ranks that share the rows, each over the whole vocabulary. No window is divided."""
        ranks, batch, (width, inputs) = self._group.world_size, len(rows), window
        each = -(-batch // (ranks * width)) * width
        if missing := ranks * each - batch:
            logits = functional.pad(logits, (0, 0, 0, missing))
            rows = torch.cat((rows, rows[-1:].expand(missing)))
            inputs = None if inputs is None else torch.cat((inputs, inputs[-1:].expand(missing)))
        columns = self._group.all_to_all(logits.unflatten(0, (ranks, each)))
        logits = columns.transpose(0, 1).flatten(1)[:, : self._columns.vocab_size]
        mine = slice(self._group.rank * each, (self._group.rank + 1) * each)
        of_mine = SampledWindow(width, None if inputs is None else inputs[mine])
        sampled = self._sample(logits, rows[mine], last_token, generated, of_mine)
        return SampledTokens.of(self._group.all_gather(sampled.record).flatten(0, 1)[:batch])

    def _sample(
        self, logits: Tensor, rows: Tensor, last_token: Tensor, generated: Tensor, window: SampledWindow
    ) -> SampledTokens:
        """Samples from logits of the whole vocabulary."""
        batch = SamplingBatch.of(logits, rows, last_token, generated, 0, *window)
        statistics = self._statistics(batch)
        bounds = batch.scores.new_empty(len(rows), 4)
        survivors(batch, self._columns, statistics, bounds)
        draw(batch, self._columns, statistics, bounds)
        sampled = self._choose(SplitStatistics.of(statistics.record.unsqueeze(0)), rows)
        top_tokens(batch, self._columns, statistics, bounds, sampled)
        return sampled

    def _statistics(self, batch: SamplingBatch) -> SplitStatistics:
        """Computes the batch's scores, and returns their statistics."""
        statistics = SplitStatistics.empty(batch, self._columns.vocab_size)
        logits_process(batch, self._columns, self._rules, statistics)
        return statistics

    def _choose(self, statistics: SplitStatistics, rows: Tensor) -> SampledTokens:
        """Chooses the tokens from the statistics of all ranks, without alternatives."""
        sampled = SampledTokens.empty(len(rows), rows.device)
        choose(statistics, rows, self._columns, sampled)
        return sampled
