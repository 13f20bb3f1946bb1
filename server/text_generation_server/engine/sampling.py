"""From logits to chosen ids, log-probabilities and top-n lists, for the whole batch at once.

Order: watermark, repetition and frequency penalty, temperature, top-k, top-p, typical-p, choice. Each operator runs on
the rows that ask for it, and is exact per row, so what a row gets does not depend on its neighbours. A batch of plain
greedy rows pays for argmax and one log-sum-exp.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..config.server import WatermarkConfig
from ..kernels.gumbel import gumbel_argmax
from ..kernels.logprobs import token_logprobs
from ..kernels.penalties import count_tokens, penalties
from ..kernels.temperature import temperature_scale
from ..kernels.top_k import top_k_filter
from ..kernels.top_n import top_n_mask
from ..kernels.top_p import top_p_filter
from ..kernels.typical_p import typical_filter
from ..kernels.watermark import watermark
from .batches import RunningRequest
from .requests import NextTokenChooserParameters, Tokens
from .rows import RowTable


@dataclass(frozen=True)
class Choice:
    """What was chosen for one row. `token` is a valid id even when `valid` is false: NaN or infinite scores."""

    token: int
    logprob: float
    valid: bool
    top_tokens: Tokens | None


class Sampler:
    """Chooses the next token of rows. Owned by the engine thread; keeps no state between calls."""

    def __init__(self, table: RowTable, watermark_config: WatermarkConfig) -> None:
        self._table = table
        self._watermark = watermark_config

    def __call__(self, logits: Tensor, running: Sequence[RunningRequest], rows: Tensor) -> tuple[Tensor, list[Choice]]:
        """`logits` float32 [N, vocab], overwritten; `rows` int64 [N], the rows of `running`.

        Returns the ids int64 [N] on the device and the same on the host with their log-probabilities.
        """
        # NaN and +inf anywhere, and -inf everywhere, show in the maximum.
        valid = logits.amax(dim=-1).isfinite()
        scores = self._process(logits, running, rows)
        tokens = self._choose(scores, running, rows)
        logprobs = token_logprobs(scores, tokens)
        valid &= logprobs.isfinite()
        # One copy to the host; float64 holds every id and log-probability exactly.
        columns = torch.stack((tokens.double(), logprobs.double(), valid.double())).tolist()
        tops = self._top_tokens(scores, running, rows)
        choices = [
            Choice(int(token), logprob, bool(ok), tops.get(i))
            for i, (token, logprob, ok) in enumerate(zip(*columns, strict=True))
        ]
        return tokens, choices

    def _process(self, logits: Tensor, running: Sequence[RunningRequest], rows: Tensor) -> Tensor:
        table = self._table
        vocab_size = logits.shape[1]
        parameters = [r.request.parameters for r in running]
        longest = max(r.length for r in running)
        largest_k = max(p.top_k for p in parameters)

        def apply(
            scores: Tensor,
            wanted: Callable[[NextTokenChooserParameters], bool],
            operator: Callable[[Tensor, Tensor], Tensor],
        ) -> Tensor:
            picked = [i for i, p in enumerate(parameters) if wanted(p)]
            if not picked:
                return scores
            if len(picked) == len(parameters):
                return operator(scores, rows)
            index = torch.tensor(picked, device=scores.device)
            return scores.index_copy_(0, index, operator(scores[index], rows[index]))

        def penalize(scores: Tensor, r: Tensor) -> Tensor:
            counts = count_tokens(table.history[r, :longest], table.length[r], vocab_size)
            return penalties(scores, counts, table.repetition_penalty[r], table.frequency_penalty[r])

        config = self._watermark
        scores = apply(
            logits,
            lambda p: p.watermark,
            lambda s, r: watermark(s, table.last_token[r], config.gamma, config.delta),
        )
        scores = apply(scores, lambda p: p.repetition_penalty != 1.0 or p.frequency_penalty != 0.0, penalize)
        scores = apply(scores, lambda p: p.temperature != 1.0, lambda s, r: temperature_scale(s, table.temperature[r]))
        scores = apply(scores, lambda p: p.top_k > 0, lambda s, r: top_k_filter(s, table.top_k[r], largest_k))
        scores = apply(scores, lambda p: p.top_p < 1.0, lambda s, r: top_p_filter(s, table.top_p[r]))
        return apply(scores, lambda p: p.typical_p < 1.0, lambda s, r: typical_filter(s, table.typical_p[r]))

    def _choose(self, scores: Tensor, running: Sequence[RunningRequest], rows: Tensor) -> Tensor:
        """Greedy rows take the best score, ties to the lowest id; the others draw."""
        sampled = [i for i, r in enumerate(running) if r.request.parameters.do_sample]
        if len(sampled) == len(running):
            return gumbel_argmax(scores, self._table.seed[rows], self._table.generated[rows])
        tokens = scores.argmax(dim=-1)
        if sampled:
            index = torch.tensor(sampled, device=scores.device)
            r = rows[index]
            tokens[index] = gumbel_argmax(scores[index], self._table.seed[r], self._table.generated[r])
        return tokens

    def _top_tokens(self, scores: Tensor, running: Sequence[RunningRequest], rows: Tensor) -> dict[int, Tokens]:
        """Top-n lists by position in the batch, best first, equal ones by id; only for rows that ask for them."""
        wanted = [i for i, r in enumerate(running) if r.request.top_n_tokens > 0]
        if not wanted:
            return {}
        index = torch.tensor(wanted, device=scores.device)
        picked = scores[index]
        largest_n = max(running[i].request.top_n_tokens for i in wanted)
        hits = top_n_mask(picked, self._table.top_n[rows[index]], largest_n).nonzero()
        logprobs = picked[hits[:, 0], hits[:, 1]] - picked.logsumexp(dim=-1)[hits[:, 0]]
        entries: dict[int, list[tuple[float, int]]] = {i: [] for i in wanted}
        for (position, token), logprob in zip(hits.tolist(), logprobs.tolist(), strict=True):
            entries[wanted[position]].append((-logprob, token))
        return {
            i: Tokens(tuple(token for _, token in ranked), tuple(-negative for negative, _ in ranked))
            for i, ranked in ((i, sorted(found)) for i, found in entries.items())
        }
