"""From logits to chosen ids, log-probabilities and top-n lists, for the whole batch at once and without the host.

Order: logit bias, watermark, penalties, minimum of new tokens, mask, temperature, top-k, top-p, typical-p, min-p,
choice. What a row asks for stands in device columns, so one captured graph serves any mixture of requests, and what a
row gets does not depend on its neighbours.

Log-probabilities, and those of the alternatives, are of the distribution that the choice was made from: after the mask
and the filters. TGI reports the same; vLLM's too are taken behind the mask, though before temperature and filters.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ..config.server import WatermarkConfig
from ..kernels import MAX_TOP, logits_process, num_splits, sample, survivors, top_tokens
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


class Sampler:
    """Chooses the next token of rows. Owned by the engine thread; keeps nothing between calls but its parameters."""

    def __init__(self, state: SamplingState, masks: MaskPool, watermark: WatermarkConfig) -> None:
        self._state = state
        self._masks = masks
        self._watermark = watermark

    def __call__(self, logits: Tensor, rows: Tensor, last_token: Tensor, generated: Tensor) -> SampledTokens:
        """`logits` [N, vocab] of the model's type, overwritten if float32; `rows` int64 [N], where a row that is plain
        and greedy may stand several times; `last_token` and `generated` int64 by row. Never waits for the device.
        """
        state, batch, device = self._state, logits.shape[0], logits.device
        splits = num_splits(logits.shape[1], device)
        best, total = (torch.empty(batch, splits, dtype=torch.float32, device=device) for _ in range(2))
        best_id = torch.empty(batch, splits, dtype=torch.int32, device=device)
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
            scores,
            best,
            best_id,
            total,
        )
        bounds = torch.empty(batch, 4, dtype=torch.float32, device=device)
        survivors(scores, best, total, rows, state.floats, state.ints, bounds)
        sampled = SampledTokens.empty(batch, device)
        log_total = torch.empty(batch, dtype=torch.float32, device=device)
        sample(
            logits,
            scores,
            best,
            best_id,
            total,
            bounds,
            rows,
            generated,
            state.seed,
            state.floats,
            state.ints,
            sampled.tokens,
            sampled.logprobs,
            sampled.valid,
            log_total,
        )
        top_tokens(
            scores,
            best,
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
