"""What a step says of its requests: generations and failures. Host data."""

from dataclasses import dataclass, field

from ..errors import EngineError, NumericalError
from .batches import RunningRequest
from .requests import Finish, FinishReason, Generation, RequestFailure, Tokens


def failure(request_id: int, error: EngineError) -> RequestFailure:
    """The failure of one request for a reason that would otherwise end the call."""
    return RequestFailure(request_id, error.reason, str(error))


@dataclass
class StepReport:
    """Sorts out what arrived for requests: who goes on, who ended, who failed."""

    eos_token_ids: frozenset[int]
    kept: list[RunningRequest] = field(default_factory=list)
    ended: list[RunningRequest] = field(default_factory=list)
    generations: list[tuple[RunningRequest, Generation]] = field(default_factory=list)
    failures: list[RequestFailure] = field(default_factory=list)

    def add(self, running: RunningRequest, prompt: Tokens | None = None) -> None:
        """Takes what arrived for one request, up to its end. What comes after is dropped."""
        ids: list[int] = []
        logprobs: list[float] = []
        tops: list[Tokens] = []
        finish = None
        for choice in running.arrived:
            if not choice.valid:
                error = NumericalError("the model's logits hold NaN or infinite values")
                self.failures.append(failure(running.id, error))
                self.ended.append(running)
                return
            running.generated += 1
            ids.append(choice.token)
            logprobs.append(choice.logprob)
            if choice.top_tokens is not None:
                tops.append(choice.top_tokens)
            finish = _finish(running, choice.token, self.eos_token_ids)
            if finish is not None:
                break
        running.arrived.clear()
        (self.kept if finish is None else self.ended).append(running)
        if ids:
            tokens = Tokens(tuple(ids), tuple(logprobs))
            self.generations.append((running, Generation(running.id, tokens, prompt, tuple(tops), finish)))


def _finish(running: RunningRequest, token: int, eos_token_ids: frozenset[int]) -> Finish | None:
    """Whether `token`, already counted in `running`, ends the request. EOS wins over the length limit."""
    stopping, parameters = running.request.stopping_parameters, running.request.parameters
    if token in eos_token_ids and not stopping.ignore_eos_token:
        reason = FinishReason.EOS_TOKEN
    elif running.generated >= stopping.max_new_tokens:
        reason = FinishReason.LENGTH
    else:
        return None
    return Finish(reason, running.generated, parameters.seed if parameters.do_sample else None)
