"""Plain dataclasses of the shard contract, field for field those of `generate.proto`.

They import neither torch nor gRPC, so that the service can build them and the engine can be tested without a socket.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Protocol


@dataclass(frozen=True, slots=True)
class SlotRange:
    """`length` neighbouring slots of the KV pool from `start` on."""

    start: int
    length: int


@dataclass(frozen=True, slots=True)
class NextTokenChooserParameters:
    """How the next token is chosen. The defaults switch every operator off."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    typical_p: float = 1.0
    do_sample: bool = False
    seed: int = 0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    watermark: bool = False
    presence_penalty: float = 0.0
    penalize_output_only: bool = False
    min_p: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class StoppingCriteriaParameters:
    """When a request ends by itself. Stop strings are the router's business."""

    max_new_tokens: int
    ignore_eos_token: bool = False
    min_new_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Copy:
    """One more sample of a request's prompt, with slots for the positions after the prompt."""

    id: int
    seed: int
    slots: tuple[SlotRange, ...]


@dataclass(frozen=True, slots=True)
class Request:
    """One request of a prefill: its prompt as token ids, and slots for positions 0, 1, ..."""

    id: int
    input_ids: tuple[int, ...]
    parameters: NextTokenChooserParameters
    stopping_parameters: StoppingCriteriaParameters
    slots: tuple[SlotRange, ...]
    prefill_logprobs: bool = False
    top_n_tokens: int = 0
    copies: tuple[Copy, ...] = ()


@dataclass(frozen=True, slots=True)
class Batch:
    """New requests, cached under `id` once their prompts are computed."""

    id: int
    requests: tuple[Request, ...]


@dataclass(frozen=True, slots=True)
class CachedBatch:
    """A batch that the shard holds. `current_tokens` is set in replies and ignored in calls."""

    id: int
    request_ids: tuple[int, ...]
    current_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Grant:
    """More slots for a running request: they follow those it holds."""

    request_id: int
    slots: tuple[SlotRange, ...]


class FinishReason(IntEnum):
    """Why a shard ended a request."""

    LENGTH = 0
    EOS_TOKEN = 1


@dataclass(frozen=True, slots=True)
class Tokens:
    """Token ids and their natural-log probabilities; NaN where none exists."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Finish:
    """Ends a request; `seed` is set when it sampled."""

    reason: FinishReason
    generated_tokens: int
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class Generation:
    """What one step produced for one request."""

    request_id: int
    tokens: Tokens
    prefill_tokens: Tokens | None = None
    top_tokens: tuple[Tokens, ...] = ()
    finish: Finish | None = None


@dataclass(frozen=True, slots=True)
class RequestFailure:
    """One request failed and its row is free again; no other request is harmed."""

    request_id: int
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Timings:
    """Nanoseconds of the parts of one step; `kernel_compilations` counts from the end of Warmup."""

    concat_ns: int = 0
    forward_ns: int = 0
    decode_ns: int = 0
    total_ns: int = 0
    idle_ns: int = 0
    kernel_compilations: int = 0


@dataclass(frozen=True, slots=True)
class StepResult:
    """Reply of Prefill and Decode. `generations` are this rank's; `batch` and `failures` are equal on all ranks."""

    generations: tuple[Generation, ...] = ()
    batch: CachedBatch | None = None
    failures: tuple[RequestFailure, ...] = ()
    timings: Timings = field(default_factory=Timings)


@dataclass(frozen=True, slots=True)
class ShardInfo:
    """What the shard serves."""

    dtype: str
    device_type: str
    world_size: int
    vocab_size: int
    max_position_embeddings: int
    eos_token_ids: tuple[int, ...]
    attention_impl: str
    version: str


@dataclass(frozen=True, slots=True)
class WarmupLimits:
    """Limits that the operator asked for; `None` is derived by the shard."""

    max_batch_prefill_tokens: int
    max_batch_size: int
    max_input_tokens: int | None = None
    max_total_tokens: int | None = None
    max_batch_total_tokens: int | None = None

    def longest_prompt(self, max_total_tokens: int) -> int:
        """Tokens of the longest prompt where a request has at most `max_total_tokens`, one of them generated."""
        return self.max_input_tokens or min(max_total_tokens - 1, self.max_batch_prefill_tokens)


@dataclass(frozen=True, slots=True)
class ServingLimits:
    """Limits that hold from Warmup on. Slots 0 .. max_batch_total_tokens - 1 exist."""

    max_batch_total_tokens: int
    max_input_tokens: int
    max_total_tokens: int
    max_batch_size: int


class ShardEngine(Protocol):
    """What the worker thread calls. Every method runs on that thread and may raise `EngineError`."""

    @property
    def info(self) -> ShardInfo:
        """Facts of the loaded model."""
        ...

    def warmup(self, limits: WarmupLimits) -> ServingLimits:
        """Sizes pool and rows, once."""
        ...

    def prefill(self, batch: Batch) -> StepResult:
        """Computes the prompts of a new batch."""
        ...

    def decode(self, batches: Sequence[CachedBatch], grants: Sequence[Grant]) -> StepResult:
        """One step for the union of `batches`."""
        ...

    def filter_batch(self, batch_id: int, request_ids: Sequence[int]) -> CachedBatch | None:
        """Keeps the listed requests of a batch."""
        ...

    def clear_cache(self, batch_id: int | None) -> None:
        """Drops one batch, or all."""
        ...

    def between_calls(self) -> None:
        """Uses the time until the next call; called after each."""
        ...

    def close(self) -> None:
        """Ends the engine."""
        ...
