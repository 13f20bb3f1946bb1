"""Plain dataclasses of the shard contract, field for field those of `generate.proto`.

They import neither torch nor gRPC, so that the service can build them and the engine can be tested without a socket.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from .adapter_requests import AdapterCopy, AdapterLoaded, AdapterSource
from .media_requests import Encode, MediaCost, MediaInfo, MediaPut, MediaSpan

TokenIds = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class SlotRange:
    """`length` adjacent slots of the KV pool from `start` on."""

    start: int
    length: int


@dataclass(frozen=True, slots=True)
class NextTokenChooserParameters:
    """How the next token is sampled. The defaults switch every operator off."""

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
    min_new_tokens: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """A request in its current state: new, with a cached prefix, or where it was interrupted."""

    id: int
    row: int
    input_ids: TokenIds
    """The prompt, then the tokens generated so far."""
    parameters: NextTokenChooserParameters
    slots: tuple[SlotRange, ...]
    """The slots of positions 0, 1, ...; grants append more."""
    num_generated: int = 0
    cached_length: int = 0
    """Positions, from 0 on, whose K and V are in their slots already."""
    top_n_tokens: int = 0
    prefill_logprobs: bool = False
    media: tuple[MediaSpan, ...] = ()
    """Ascending and apart. They name the same positions whenever the request is admitted."""
    adapter: int = 0
    """The number of its adapter; 0: the base alone."""
    max_new_tokens: int = 0
    """How many tokens it may generate in all; 0: it does not say. Windows compute no position behind the last."""

    @property
    def num_prompt(self) -> int:
        """The tokens of the prompt alone."""
        return len(self.input_ids) - self.num_generated


@dataclass(frozen=True, slots=True)
class Chunk:
    """Positions `first` .. `first + count - 1` of the `input_ids` of the request in `row`."""

    row: int
    first: int
    count: int


@dataclass(frozen=True, slots=True)
class Grant:
    """More slots for the request in `row`, after those that it holds."""

    row: int
    slots: tuple[SlotRange, ...]


@dataclass(frozen=True, slots=True)
class Hint:
    """What the text of the request in `row` may be from position `at` on."""

    row: int
    at: int
    ids: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One step: the engine drops rows, then admits requests, then grants slots, then forgets and encodes items of
    media, then computes tokens.
    """

    number: int
    drop: Sequence[int] = ()
    admit: Sequence[Request] = ()
    grants: Sequence[Grant] = ()
    chunks: Sequence[Chunk] = ()
    decode: Sequence[int] = ()
    constrained: Sequence[int] = ()
    limit_ms: int = 0
    """How long the step may take before Health fails. 0: the shard's own limit."""
    encode: Sequence[Encode] = ()
    """In this order."""
    forget: Sequence[int] = ()
    """Items whose pixels and half-encoded layers are dropped. Unknown numbers are no error."""
    adapter_copies: Sequence[AdapterCopy] = ()
    widths: Sequence[int] = ()
    """The most tokens that each of `decode` gets; empty: one."""
    hints: Sequence[Hint] = ()
    """Each takes the place of the row's earlier one. None is an error."""


class MaskForm(Enum):
    """How a `MaskWrite` says which tokens are allowed."""

    BITS = "bits"
    ONLY = "only"
    EXCEPT = "except"


@dataclass(frozen=True, slots=True, eq=False)
class MaskWrite:
    """The content of a mask slot from a step on. `form` is None where the message names none."""

    slot: int
    form: MaskForm | None
    content: NDArray[Any]
    """For `BITS` uint8: bit i of byte i / 8, lowest first, is token i. Else int64: the only ids that are allowed, or
    the only ids that are not."""


@dataclass(frozen=True, slots=True, eq=False)
class StepMasks:
    """Masks for one step: the engine executes the writes, then gives each of `rows` its mask slots of `slots`."""

    number: int
    writes: Sequence[MaskWrite] = ()
    rows: Sequence[int] = ()
    slots: Sequence[int] = ()
    """Those of the first row, then those of the second, and so on."""
    counts: Sequence[int] = ()
    """How many of `slots` each of `rows` has, for its next token and those behind it; it gets at most so many. Empty:
    one each.
    """
    late: bool = False
    """Whether they came after their step had asked for them."""

    @property
    def counts_of_rows(self) -> dict[int, int]:
        """`counts` by row; none where each is 1."""
        return dict(zip(self.rows, self.counts, strict=bool(self.counts)))


MaskSource = Callable[[int], StepMasks]
"""Waits for the masks of the plan with this number."""


@dataclass(frozen=True, slots=True)
class TopTokens:
    """The most likely tokens at one place, best first, with natural logarithms of their probabilities."""

    index: int
    ids: Sequence[int]
    logprobs: Sequence[float]


@dataclass(frozen=True, slots=True)
class PromptScores:
    """Log-probabilities of the prompt tokens at positions first + 1, first + 2, ..."""

    row: int
    first: int
    logprobs: Sequence[float]
    top_tokens: Sequence[TopTokens] = ()


@dataclass(frozen=True, slots=True)
class RequestFailure:
    """One request failed; no other request is harmed."""

    request_id: int
    row: int
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Timings:
    """Nanoseconds of the parts of one step; `kernel_compilations` counts from the end of Warmup."""

    host_ns: int = 0
    forward_ns: int = 0
    idle_ns: int = 0
    kernel_compilations: int = 0
    mask_wait_ns: int = 0
    encode_ns: int = 0


@dataclass(frozen=True, slots=True)
class StepReply:
    """What a step computed. `rows`, `ids`, `counts` and `failures` are equal on all ranks; only rank 0 reports the
    rest.
    """

    number: int
    rows: Sequence[int] = ()
    ids: Sequence[int] = ()
    """Those of the first row, then those of the second, and so on."""
    logprobs: Sequence[float] = ()
    top_tokens: Sequence[TopTokens] = ()
    prompt_scores: Sequence[PromptScores] = ()
    failures: Sequence[RequestFailure] = ()
    timings: Timings = field(default_factory=Timings)
    adapters_ready: Sequence[int] = ()
    """Numbers whose copies every later plan may use. Ranks may differ in when they say so."""
    counts: Sequence[int] = ()
    """How many tokens each of `rows` has got; empty: one. A row that had ended before the step has got none."""
    drafts: Sequence[int] = ()
    """How many drafts the window of each of `rows` had; empty: there is no speculation."""
    right: Sequence[int] = ()
    """How many drafts of each of `rows` were right, of those of its window and the one behind them."""
    hinted: Sequence[int] = ()
    """Of `rows`: those whose drafts were ids of a hint."""
    undrafted: bool = False
    """Whether those of `rows` that are not `hinted` had no drafts because the step before made none."""
    class_logits: Sequence[float] = ()
    """Of a classifier: those of all classes for the first row, then for the second, and so on."""
    expert_loads: Sequence[Sequence[int]] = ()
    """Where ranks have whole experts each: of some layers, how many times one of the step's tokens has one of the
    experts of each rank.
    """


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
    kv_cache_dtype: str = ""
    """The name of the type of the KV cache."""
    recurrent: bool = False
    """Whether layers keep a state of each row, so that requests are computed from their first position on."""
    media: MediaInfo | None = None
    """None: there is no encoder, or the text is served alone."""
    widths: Sequence[int] = ()
    """What plans may name in `widths` beside 1, ascending, and widths between; empty: there is no speculation."""
    max_window_tokens: int = 0
    """Upper bound of the number of decodes times the largest of their widths, where that is above 1."""
    drafter: str = ""
    """What drafts come from, beside hints; empty: there is no speculation."""
    classes: int = 0
    """The classes that a classifier scores; 0: the model generates text."""


@dataclass(frozen=True, slots=True)
class WarmupLimits:
    """Limits that the operator asked for. The shard derives those that are None."""

    max_batch_prefill_tokens: int
    max_batch_size: int
    max_input_tokens: int | None = None
    max_total_tokens: int | None = None
    max_batch_total_tokens: int | None = None
    prefill_chunking: bool = False
    regained: bool = False
    """Whether an earlier start of these shards has served with these limits, so that nothing is measured again."""
    overlapped_halves: bool = False
    """With `regained`: what that start chose; see `WarmupResult`."""
    media_rows: int = 0
    """Rows of the media pool; 0: no media is served."""
    max_media_pixels: int = 0
    """Of all views of the largest item that will come."""
    adapter_pages: int = 0
    """Pages for adapters on the device, and as many numbers; 0: requests have none."""
    adapters_later: bool = False
    """Whether adapters may come that are not loaded by now."""

    def longest_prompt(self, max_total_tokens: int) -> int:
        """Returns the tokens of the longest prompt where a request has at most `max_total_tokens`, one of them
        generated.
        """
        if self.max_input_tokens is not None:
            return self.max_input_tokens
        longest = max_total_tokens - 1
        return longest if self.prefill_chunking else min(longest, self.max_batch_prefill_tokens)


@dataclass(frozen=True, slots=True)
class ServingLimits:
    """Limits from Warmup on. Slots 0 .. max_batch_total_tokens - 1 exist."""

    max_batch_total_tokens: int
    max_input_tokens: int
    max_total_tokens: int
    max_batch_size: int


@dataclass(frozen=True, slots=True)
class WindowCost:
    """The times of steps in which so many `rows`, ascending, decode alone, each in a window of `width` tokens, and what
    each position adds that they attend to.
    """

    width: int
    rows: Sequence[int]
    times_ms: Sequence[float]
    context_ns: float


@dataclass(frozen=True, slots=True)
class StepCost:
    """The time of a step: time(tokens) + pair_ns * pairs + context_ns * context, with `time` linear between points.
    Pairs are those of a token of a chunk and a position that it attends to; context is the positions that decodes
    attend to.
    """

    tokens: Sequence[int] = ()
    times_ms: Sequence[float] = ()
    pair_ns: float = 0.0
    context_ns: float = 0.0
    windows: Sequence[WindowCost] = ()
    """Of each width, 1 among them; empty where there is no speculation, or nothing was measured."""


@dataclass(frozen=True, slots=True)
class WarmupResult:
    """The result of Warmup. `graph_tokens` are the sizes, ascending, of the CUDA graphs of steps with chunks;
    `max_masks` is the number of mask slots; `overlapped_halves` says whether large steps are computed in overlapped
    halves; `media_cost` is empty where nothing was measured.
    """

    limits: ServingLimits
    cost: StepCost
    graph_tokens: Sequence[int]
    max_masks: int
    overlapped_halves: bool = False
    media_cost: MediaCost = field(default_factory=MediaCost)


class PendingStep(Protocol):
    """A step that was launched."""

    def result(self) -> StepReply:
        """Waits for the step and returns its reply. The replies thread calls it once."""
        ...


class ShardEngine(Protocol):
    """The engine that the worker calls. Every method may raise `EngineError`, and all but `load_adapter` run on the
    engine thread.
    """

    @property
    def info(self) -> ShardInfo:
        """Facts about the loaded model."""
        ...

    def warmup(self, limits: WarmupLimits) -> WarmupResult:
        """Sizes pool and rows, once."""
        ...

    def check_ready(self) -> None:
        """Raises `NotReady` before Warmup."""
        ...

    def step(self, plan: StepPlan, masks: MaskSource) -> PendingStep:
        """Launches the next step without waiting for it. For a plan with constrained rows, it launches the forward
        pass, then calls `masks`, then launches sampling.
        """
        ...

    def put_media(self, put: MediaPut) -> None:
        """Brings the pixels of an item to the device. An item that it has is no error."""
        ...

    def load_adapter(self, source: AdapterSource) -> AdapterLoaded:
        """Brings an adapter into host memory. Threads other than the engine thread call it."""
        ...

    def unload_adapter(self, generation: int) -> None:
        """Drops an adapter from host memory. An unknown generation is no error."""
        ...

    def filter_batch(self, request_ids: Sequence[int]) -> list[int]:
        """Keeps the listed requests and drops all others. Returns the kept ones."""
        ...

    def clear_cache(self, request_id: int | None) -> None:
        """Drops one request, or all."""
        ...

    def close(self) -> None:
        """Ends the engine."""
        ...
