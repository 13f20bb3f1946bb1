"""From logits to chosen ids, log-probabilities and top-n lists, for the whole batch at once and without the host.

Order: logit bias, watermark, penalties, minimum of new tokens, mask, temperature, top-k, top-p, typical-p, min-p,
choice. What a row asks for stands in device columns, so one captured graph serves any mixture of requests, and what a
row gets does not depend on its neighbours.

Log-probabilities, and those of the alternatives, are of the distribution that the choice was made from: after the mask
and the filters. TGI reports the same; vLLM's too are taken behind the mask, though before temperature and filters.

Where ranks share the vocabulary, logits are not gathered. Each rank looks at its splits of the vocabulary, and 20 bytes
for each split and row travel: the best token and the sum of exponentials, and the best token under the row's noise. A
split knows nothing of the others, so tokens and log-probabilities are the same bits on any number of ranks.
Filters and alternatives look at all tokens of a row. For steps that have such rows the ranks share the rows instead:
each sends to each other its columns of that one's rows, which is a rank's part of what a gather brings to it, samples
its rows as one rank does, and the choices travel. A search over what ranks hold together would send less, but as many
as 16 times one after the other.
"""

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


class Sampler:
    """Chooses the next token of rows. Owned by the engine thread; keeps nothing between calls but its parameters.

    All ranks call it with the same rows. `shard`: the columns of logits that this rank has.
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
        self._rules = SamplingRules(state.eos_token_ids, masks.bits, watermark.gamma, watermark.delta)
        self._shard = shard
        self._group = group

    def __call__(
        self, logits: Tensor, rows: Tensor, last_token: Tensor, generated: Tensor, whole_rows: bool
    ) -> SampledTokens:
        """`logits` [N, width of the part] of the model's type, overwritten if float32; `rows` int64 [N], where a row
        that is plain and greedy may stand several times; `last_token` and `generated` int64 by row. `whole_rows`:
        whether a row looks at all of its tokens (`SamplingState.need_whole_rows`). Never waits for the device.
        """
        if self._shard.is_whole:
            return self._sample(logits, rows, last_token, generated)
        if whole_rows:
            return self._sample_by_rows(logits, rows, last_token, generated)
        batch = SamplingBatch.of(logits, rows, last_token, generated, self._shard.start)
        statistics = self._statistics(batch)
        # Without filters no bounds are looked at.
        draw(batch, self._columns, statistics, batch.scores.new_empty(len(rows), 4))
        sampled = self._choose(SplitStatistics.of(self._group.all_gather(statistics.record)), rows)
        sampled.num_top.zero_()
        return sampled

    def _sample_by_rows(self, logits: Tensor, rows: Tensor, last_token: Tensor, generated: Tensor) -> SampledTokens:
        """Each rank samples a part of the rows, over the whole vocabulary."""
        ranks, batch = self._group.world_size, len(rows)
        each = -(-batch // ranks)
        if missing := ranks * each - batch:
            logits = functional.pad(logits, (0, 0, 0, missing))
            rows = torch.cat((rows, rows[-1:].expand(missing)))
        columns = self._group.all_to_all(logits.unflatten(0, (ranks, each)))
        logits = columns.transpose(0, 1).flatten(1)[:, : self._columns.vocab_size]
        mine = slice(self._group.rank * each, (self._group.rank + 1) * each)
        sampled = self._sample(logits, rows[mine], last_token, generated)
        return SampledTokens.of(self._group.all_gather(sampled.record).flatten(0, 1)[:batch])

    def _sample(self, logits: Tensor, rows: Tensor, last_token: Tensor, generated: Tensor) -> SampledTokens:
        """From logits of the whole vocabulary."""
        batch = SamplingBatch.of(logits, rows, last_token, generated)
        statistics = self._statistics(batch)
        bounds = batch.scores.new_empty(len(rows), 4)
        survivors(batch, self._columns, statistics, bounds)
        draw(batch, self._columns, statistics, bounds)
        sampled = self._choose(SplitStatistics.of(statistics.record.unsqueeze(0)), rows)
        top_tokens(batch, self._columns, statistics, bounds, sampled)
        return sampled

    def _statistics(self, batch: SamplingBatch) -> SplitStatistics:
        """Of the batch's scores, which it computes."""
        statistics = SplitStatistics.empty(batch, self._columns.vocab_size)
        logits_process(batch, self._columns, self._rules, statistics)
        return statistics

    def _choose(self, statistics: SplitStatistics, rows: Tensor) -> SampledTokens:
        """The choices, without alternatives. `statistics` of all ranks."""
        sampled = SampledTokens.empty(len(rows), rows.device)
        choose(statistics, rows, self._columns, sampled)
        return sampled
