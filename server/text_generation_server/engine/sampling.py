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

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from ..config.server import WatermarkConfig
from ..distributed import TensorParallelGroup
from ..kernels import MAX_TOP, choose, draw, logits_process, num_splits, split_size, survivors, top_tokens
from ..layers.weights import VocabularyPart
from .mask_pool import MaskPool
from .sampling_state import SamplingState


@dataclass(frozen=True)
class SampledTokens:
    """What was chosen for a batch, in one matrix, so that one copy brings all of it to the host.

    `record` int32 [N, WIDTH], of which the properties are views.
    """

    record: Tensor

    WIDTH = 6 + 2 * MAX_TOP

    @classmethod
    def empty(cls, batch: int, device: torch.device) -> "SampledTokens":
        """Memory for `batch` choices."""
        return cls(torch.empty(batch, cls.WIDTH, dtype=torch.int32, device=device))

    @property
    def tokens(self) -> Tensor:
        """int64 [N]."""
        return self.record[:, :2].view(torch.int64).squeeze(1)

    @property
    def logprobs(self) -> Tensor:
        """float32 [N]: of the tokens, among the survivors of the processed scores."""
        return self.record[:, 2].view(torch.float32)

    @property
    def valid(self) -> Tensor:
        """int32 [N]: 1 for a choice; 0 where the scores held NaN or were infinite, `EXCLUDED` where no token was left.
        The token is 0 then.
        """
        return self.record[:, 3]

    @property
    def num_top(self) -> Tensor:
        """int32 [N]: entries of the next two that are valid."""
        return self.record[:, 4]

    @property
    def top_ids(self) -> Tensor:
        """int32 [N, MAX_TOP], best first."""
        return self.record[:, 6 : 6 + MAX_TOP]

    @property
    def top_logprobs(self) -> Tensor:
        """float32 [N, MAX_TOP]."""
        return self.record[:, 6 + MAX_TOP :].view(torch.float32)


@dataclass(frozen=True)
class _Offers:
    """What each split of a rank's part of the vocabulary offers to each row, in one matrix, so that one gather brings
    all of it to the other ranks.

    `record` int32 [..., 5, N, splits], of which the properties, [..., N, splits], are views.
    """

    record: Tensor

    @classmethod
    def empty(cls, batch: int, splits: int, device: torch.device) -> "_Offers":
        return cls(torch.empty(5, batch, splits, dtype=torch.int32, device=device))

    @property
    def best(self) -> Tensor:
        """float32; see `logits_process` and `draw` for this and the others."""
        return self.record.select(-3, 0).view(torch.float32)

    @property
    def best_id(self) -> Tensor:
        """int32"""
        return self.record.select(-3, 1)

    @property
    def total(self) -> Tensor:
        """float32"""
        return self.record.select(-3, 2).view(torch.float32)

    @property
    def noisy(self) -> Tensor:
        """float32"""
        return self.record.select(-3, 3).view(torch.float32)

    @property
    def score(self) -> Tensor:
        """float32"""
        return self.record.select(-3, 4).view(torch.float32)


class Sampler:
    """Chooses the next token of rows. Owned by the engine thread; keeps nothing between calls but its parameters.

    All ranks call it with the same rows. `part`: the columns of logits that this rank has.
    """

    def __init__(
        self,
        state: SamplingState,
        masks: MaskPool,
        watermark: WatermarkConfig,
        part: VocabularyPart,
        group: TensorParallelGroup,
    ) -> None:
        self._state = state
        self._masks = masks
        self._watermark = watermark
        self._part = part
        self._group = group

    def __call__(
        self, logits: Tensor, rows: Tensor, last_token: Tensor, generated: Tensor, whole_rows: bool
    ) -> SampledTokens:
        """`logits` [N, width of the part] of the model's type, overwritten if float32; `rows` int64 [N], where a row
        that is plain and greedy may stand several times; `last_token` and `generated` int64 by row. `whole_rows`:
        whether a row looks at all of its tokens (`SamplingState.need_whole_rows`). Never waits for the device.
        """
        if self._part.is_whole:
            return self._sample(logits, rows, last_token, generated)
        if whole_rows:
            return self._sample_by_rows(logits, rows, last_token, generated)
        offers, scores = self._process(logits, rows, last_token, generated, self._part.start)
        # Without filters no bounds are looked at.
        bounds = scores.new_empty(len(rows), 4)
        self._draw(logits, scores, bounds, rows, generated, self._part.start, offers)
        sampled, _ = self._choose(_Offers(self._group.all_gather(offers.record)), rows)
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
        logits = columns.transpose(0, 1).flatten(1)[:, : self._state.vocab_size]
        mine = slice(self._group.rank * each, (self._group.rank + 1) * each)
        sampled = self._sample(logits, rows[mine], last_token, generated)
        return SampledTokens(self._group.all_gather(sampled.record).flatten(0, 1)[:batch])

    def _sample(self, logits: Tensor, rows: Tensor, last_token: Tensor, generated: Tensor) -> SampledTokens:
        """From logits of the whole vocabulary."""
        state = self._state
        offers, scores = self._process(logits, rows, last_token, generated, 0)
        bounds = scores.new_empty(len(rows), 4)
        survivors(scores, offers.best, offers.total, rows, state.floats, state.ints, bounds)
        self._draw(logits, scores, bounds, rows, generated, 0, offers)
        sampled, log_total = self._choose(_Offers(offers.record.unsqueeze(0)), rows)
        top_tokens(
            scores,
            offers.best,
            bounds,
            rows,
            state.floats,
            state.ints,
            sampled.valid,
            log_total,
            sampled.top_ids,
            sampled.top_logprobs,
            sampled.num_top,
        )
        return sampled

    def _process(
        self, logits: Tensor, rows: Tensor, last_token: Tensor, generated: Tensor, first_id: int
    ) -> tuple[_Offers, Tensor]:
        """Scores float32 of the ids from `first_id` on, and their statistics."""
        state, (batch, width) = self._state, logits.shape
        offers = _Offers.empty(batch, -(-width // split_size(state.vocab_size)), logits.device)
        scores = logits if logits.dtype == torch.float32 else torch.empty_like(logits, dtype=torch.float32)
        logits_process(
            logits,
            rows,
            last_token,
            generated,
            state.floats,
            state.ints,
            state.bias_ids,
            state.bias_values,
            state.counts,
            state.eos_token_ids,
            self._masks.bits,
            self._watermark.gamma,
            self._watermark.delta,
            first_id,
            scores,
            offers.best,
            offers.best_id,
            offers.total,
        )
        return offers, scores

    def _draw(
        self,
        logits: Tensor,
        scores: Tensor,
        bounds: Tensor,
        rows: Tensor,
        generated: Tensor,
        first_id: int,
        offers: _Offers,
    ) -> None:
        state = self._state
        draw(
            logits,
            scores,
            bounds,
            rows,
            generated,
            state.seed,
            state.floats,
            state.ints,
            state.vocab_size,
            first_id,
            offers.best,
            offers.best_id,
            offers.total,
            offers.noisy,
            offers.score,
        )

    def _choose(self, offers: _Offers, rows: Tensor) -> tuple[SampledTokens, Tensor]:
        """The choices, without alternatives, and the logarithms of the survivors' sums. `offers` of all ranks."""
        state = self._state
        sampled = SampledTokens.empty(len(rows), rows.device)
        log_total = torch.empty(len(rows), dtype=torch.float32, device=rows.device)
        choose(
            offers.best,
            offers.best_id,
            offers.total,
            offers.noisy,
            offers.score,
            num_splits(state.vocab_size),
            rows,
            state.floats,
            state.ints,
            sampled.tokens,
            sampled.logprobs,
            sampled.valid,
            log_total,
        )
        return sampled, log_total
