"""Replies of steps: the replies thread waits for a launched step and turns it into the reply.

A step holds the state of its launch, of which the engine thread changes nothing afterwards.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from text_generation_kernels import EXCLUDED, SampledTokens, compilations

from ..errors import NoTokenAllowed, NumericalError
from .adapter_copies import PendingCopies
from .clock import StepTime
from .media_faults import MediaFaults
from .media_pool import EncodedItem
from .requests import PromptScores, RequestFailure, StepReply, Timings, TopTokens
from .running import Computed, RunningRequest, failure
from .scoring import ScoredTokens
from .transfer import Readback

_NOT_FINITE = NumericalError("the model's logits hold NaN or infinite values")
_NO_TOKEN_ALLOWED = NoTokenAllowed(
    "no token is left: the mask allows none but tokens that end the text, too early for the least number of tokens "
    "(`min_new_tokens`, `min_tokens`): ask for fewer, or let the grammar write others"
)


@dataclass(frozen=True, eq=False)
class LaunchedStep:
    """A step on the device. `details` says whether this rank reports log-probabilities."""

    number: int
    owners: Sequence[RunningRequest]
    failures: Sequence[RequestFailure]
    chunks: Sequence[Computed]
    host_ns: int
    compiled_before: int
    details: bool
    constrained: Collection[int] = ()
    """Rows that sampled under a mask."""
    time: StepTime | None = None
    """None: the plan computes nothing."""
    record: Readback | None = None
    """The `SampledTokens`; None where no row gets a token."""
    scores: Readback | None = None
    """The `ScoredTokens`; None where no prompt is scored."""
    outcome: Readback | None = None
    """The `Chosen.outcome`; None: each row gets one token."""
    undrafted: bool = False
    """See `StepReply`."""
    width: int = 1
    """Entries of the record that belong to each row."""
    classes: Readback | None = None
    """The `Chosen.classes`; None: the model generates text."""
    expert_pairs: Readback | None = None
    """The `CausalLM.expert_pairs` of the step; None: this rank does not count them."""
    encoded: Sequence[EncodedItem] = ()
    faults: MediaFaults | None = None
    """None: no media is served."""
    adapters: PendingCopies | None = None
    """None: requests have no adapters."""

    def result(self) -> StepReply:
        """Waits for the step. The replies thread calls it once for each step, in their order."""
        if self.time is not None:
            self.time.end.wait()
        failures = list(self.failures)
        if self.faults is not None:
            failures += self.faults.follow(self.encoded, self.chunks)
        sampled = None if self.record is None else SampledTokens.of(self.record.wait())
        kept = [] if sampled is None else self._sound(sampled.valid[:: self.width].tolist(), failures)
        ids, logprobs = ([], []) if sampled is None else (sampled.tokens.tolist(), sampled.logprobs.tolist())
        counts, drafts, right, hinted = self._outcome(kept)
        rows = [self.owners[i].request.row for i in kept]
        places = kept if not counts else _places(kept, counts, self.width)
        whole = not counts and len(kept) == len(self.owners)
        return StepReply(
            self.number,
            rows=rows,
            ids=ids if whole else [ids[i] for i in places],
            logprobs=[] if not self.details else logprobs if whole else [logprobs[i] for i in places],
            top_tokens=_top_tokens(sampled, places) if sampled and self.details else [],
            class_logits=self._class_logits(kept),
            prompt_scores=self._prompt_scores() if self.scores and self.details else [],
            failures=failures,
            timings=self._timings(),
            adapters_ready=() if self.adapters is None else self.adapters.take_ready(self.number, self.time is None),
            counts=counts,
            drafts=drafts,
            right=right,
            expert_loads=[] if self.expert_pairs is None else self.expert_pairs.wait().tolist(),
            undrafted=self.undrafted,
            hinted=[row for row, is_hinted in zip(rows, hinted, strict=bool(hinted)) if is_hinted],
        )

    def _outcome(self, kept: Sequence[int]) -> tuple[list[int], list[int], list[int], list[int]]:
        """Returns how many tokens the kept rows have got, nothing where all have one; how many drafts their windows
        had, how many were right, and whether they were those of a hint.
        """
        if self.outcome is None or not kept:
            return [], [], [], []
        outcome = self.outcome.wait().tolist()
        counts, drafts, right, hinted = (list(column) for column in zip(*(outcome[i] for i in kept), strict=True))
        one_each = self.width == 1 and all(count == 1 for count in counts)
        return [] if one_each else counts, drafts, right, hinted

    def _sound(self, valid: list[int], failures: list[RequestFailure]) -> list[int]:
        """Returns the indices of the valid tokens. A request without a valid token fails, once."""
        kept: list[int] = []
        for index, (sound, owner) in enumerate(zip(valid, self.owners, strict=True)):
            if owner.failed:
                continue
            if sound > 0:
                kept.append(index)
            else:
                owner.failed = True
                masked = sound == EXCLUDED and owner.request.row in self.constrained
                failures.append(failure(owner.request, _NO_TOKEN_ALLOWED if masked else _NOT_FINITE))
        return kept

    def _class_logits(self, kept: Sequence[int]) -> list[float]:
        """Returns the logits of the kept rows, one row after the other."""
        if self.classes is None or not self.details or not kept:
            return []
        return self.classes.wait()[list(kept)].flatten().tolist()

    def _prompt_scores(self) -> list[PromptScores]:
        if self.scores is None:
            return []
        scored = ScoredTokens(self.scores.wait())
        logprobs = scored.logprobs.tolist()
        found: list[PromptScores] = []
        start = 0
        for each in self.chunks:
            end = start + each.num_scores
            if end > start and not each.owner.failed:
                tops = scored.tops(start, end, each.owner.request.top_n_tokens)
                found.append(PromptScores(each.chunk.row, each.chunk.first, logprobs[start:end], tops))
            start = end
        return found

    def _timings(self) -> Timings:
        if self.time is None:
            return Timings(self.host_ns)
        compiled = compilations() - self.compiled_before
        time = self.time
        return Timings(self.host_ns, time.forward_ns, time.idle_ns, compiled, time.mask_wait_ns, time.encode_ns)


def _places(kept: Sequence[int], counts: Sequence[int], width: int) -> list[int]:
    """Returns the entries of the record that the kept rows have got."""
    return [i * width + j for i, count in zip(kept, counts, strict=True) for j in range(count)]


def _top_tokens(sampled: SampledTokens, kept: Sequence[int]) -> list[TopTokens]:
    """Returns the alternatives of the rows that asked for them."""
    numbers = sampled.num_top.tolist()
    return [
        TopTokens(index, sampled.top_ids[place, :number].tolist(), sampled.top_logprobs[place, :number].tolist())
        for index, place in enumerate(kept)
        if (number := numbers[place])
    ]
