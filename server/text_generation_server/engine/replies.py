"""What a step says of its requests: generations, prompt log-probabilities, failures. Host data, built on demand."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ..errors import EngineError
from ..kernels.logprobs import token_logprobs
from .batches import RunningRequest
from .requests import Finish, FinishReason, Generation, RequestFailure, Tokens
from .sampling import Choice


def failure(request_id: int, error: EngineError) -> RequestFailure:
    """The failure of one request for a reason that would otherwise end the call."""
    return RequestFailure(request_id, error.reason, str(error))


def last_token_logits(logits: Tensor, running: Sequence[RunningRequest]) -> Tensor:
    """Of prefill logits [N, vocab], one or all rows a prompt (see `prefill_inputs`), the last row of each prompt."""
    if not any(r.request.prefill_logprobs for r in running):
        return logits
    ends, end = [], 0
    for r in running:
        end += _num_logits(r)
        ends.append(end - 1)
    return logits[torch.tensor(ends, device=logits.device)]


def prompt_tokens(logits: Tensor, running: Sequence[RunningRequest], rank: int, world_size: int) -> dict[int, Tokens]:
    """Prompts with log-probabilities, by id, of the requests that ask for them and that this rank reports.

    The first token has none (NaN); the others come from the raw logits of the token before.
    """
    prompts: dict[int, Tokens] = {}
    start = 0
    for r in running:
        end = start + _num_logits(r)
        if r.request.prefill_logprobs and r.id % world_size == rank:
            ids = r.request.input_ids
            targets = torch.tensor(ids[1:], dtype=torch.int64, device=logits.device)
            logprobs = token_logprobs(logits[start : end - 1], targets).tolist()
            prompts[r.id] = Tokens(ids, (math.nan, *logprobs))
        start = end
    return prompts


def _num_logits(running: RunningRequest) -> int:
    return len(running.request.input_ids) if running.request.prefill_logprobs else 1


def finish_of(running: RunningRequest, token: int, eos_token_ids: frozenset[int]) -> Finish | None:
    """Whether `token`, already counted in `running`, ends the request. EOS wins over the length limit."""
    stopping, parameters = running.request.stopping_parameters, running.request.parameters
    if token in eos_token_ids and not stopping.ignore_eos_token:
        reason = FinishReason.EOS_TOKEN
    elif running.generated >= stopping.max_new_tokens:
        reason = FinishReason.LENGTH
    else:
        return None
    return Finish(reason, running.generated, parameters.seed if parameters.do_sample else None)


def generation_of(running: RunningRequest, choice: Choice, prompt: Tokens | None, finish: Finish | None) -> Generation:
    """What this step says of one request."""
    return Generation(
        request_id=running.id,
        tokens=Tokens((choice.token,), (choice.logprob,)),
        prefill_tokens=prompt,
        top_tokens=() if choice.top_tokens is None else (choice.top_tokens,),
        finish=finish,
    )
