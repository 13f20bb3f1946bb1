"""The engine of one rank: Warmup, Prefill, Decode, FilterBatch and ClearCache in terms of rows, batches and the model.

Single-threaded: every method runs on the engine thread. Ranks stay in lockstep because every branch looks at the call
and at replicated state alone. A call is checked as a whole before it changes anything; one bad request among good ones
becomes a failure of its own.
"""

import gc
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from .. import __version__
from ..config.server import WatermarkConfig
from ..distributed.group import TensorParallelGroup
from ..errors import (
    EngineFailed,
    InvalidRequest,
    NotReady,
    NumericalError,
    OutOfMemory,
    OutOfSlots,
)
from ..kernels import advance_state
from ..models.base import CausalLM
from .batches import BatchTable, RunningRequest
from .clock import StepClock
from .kv_pool import KVPool
from .memory import is_out_of_memory, release_memory
from .replies import (
    failure,
    finish_of,
    generation_of,
    last_token_logits,
    prompt_tokens,
)
from .requests import (
    Batch,
    CachedBatch,
    Grant,
    Request,
    RequestFailure,
    ServingLimits,
    ShardInfo,
    SlotRange,
    StepResult,
    Tokens,
    WarmupLimits,
)
from .rows import RowTable
from .sampling import Sampler
from .sampling_state import SamplingState
from .steps import decode_inputs, prefill_inputs
from .validation import check_request, check_slots
from .warmup import plan_capacity


@dataclass(frozen=True)
class _Serving:
    """What exists from Warmup on."""

    limits: ServingLimits
    max_batch_prefill_tokens: int
    table: RowTable
    pool: KVPool
    sampling: SamplingState
    sampler: Sampler


class Engine:
    """One rank's model, KV pool, rows and cached batches."""

    def __init__(
        self,
        model: CausalLM,
        group: TensorParallelGroup,
        eos_token_ids: Sequence[int],
        attention_impl: str,
        watermark: WatermarkConfig,
        memory_fraction: float = 1.0,
    ) -> None:
        self._model = model
        self._group = group
        self._eos_token_ids = frozenset(eos_token_ids)
        self._attention_impl = attention_impl
        self._watermark = watermark
        self._memory_fraction = memory_fraction
        self._batches = BatchTable()
        self._serving: _Serving | None = None

    @property
    def info(self) -> ShardInfo:
        """What is served; the same before and after Warmup."""
        return ShardInfo(
            dtype=str(self._model.dtype).removeprefix("torch."),
            device_type=self._model.device.type,
            world_size=self._group.world_size,
            vocab_size=self._model.vocab_size,
            max_position_embeddings=self._model.config.max_context_length,
            eos_token_ids=tuple(sorted(self._eos_token_ids)),
            attention_impl=self._attention_impl,
            version=__version__,
        )

    @property
    def num_free_rows(self) -> int:
        """Rows that no request owns; 0 before Warmup."""
        return self._serving.table.num_free if self._serving else 0

    @torch.inference_mode()
    def warmup(self, limits: WarmupLimits) -> ServingLimits:
        """Sizes the KV pool and the row tables. Raises `NotReady` when called twice, `InvalidRequest` for limits that
        contradict each other or the model, and `OutOfMemory` when they do not fit.
        """
        if self._serving is not None:
            raise NotReady("Warmup was already called; restart the shard to change its limits")
        capacity = plan_capacity(self._model, self._group, limits, self._memory_fraction)
        sampling = SamplingState(
            capacity.table.num_rows, self._model.vocab_size, self._model.device, sorted(self._eos_token_ids)
        )
        self._serving = _Serving(
            capacity.limits,
            limits.max_batch_prefill_tokens,
            capacity.table,
            capacity.pool,
            sampling,
            Sampler(sampling, self._watermark),
        )
        # What lives now lives for good: keep the collector from walking it in the middle of a step.
        gc.collect()
        gc.freeze()
        return capacity.limits

    @torch.inference_mode()
    def prefill(self, batch: Batch) -> StepResult:
        """Computes the prompts of a new batch and samples one token each."""
        clock = StepClock(self._model.device)
        serving = self._ready()
        self._check_new_batch(batch)
        running, failures = self._admit(batch.requests, serving)
        if not running:
            return StepResult(failures=tuple(failures), timings=clock.timings())
        with self._releasing(running):
            rows = serving.table.index(running)
            input_ids, state = prefill_inputs(running, rows, serving.table, serving.pool)
            serving.sampling.admit([r.row for r in running], [r.request for r in running])
            clock.forward_begins()
            logits = self._model.forward(input_ids, state)
            clock.forward_ends()
            prompts = prompt_tokens(logits, running, self._group.rank, self._group.world_size)
            logits = last_token_logits(logits, running)
            return self._finish_step(batch.id, running, rows, logits, prompts, failures, clock)

    @torch.inference_mode()
    def decode(self, batches: Sequence[CachedBatch], grants: Sequence[Grant]) -> StepResult:
        """One step for the union of `batches`, which become one under the id of the first. Grants come first."""
        clock = StepClock(self._model.device)
        serving = self._ready()
        running, dropped, granted = self._check_decode(batches, grants)
        serving.table.release(dropped)
        self._batches.remove(batch.id for batch in batches)
        running, failures = self._apply_grants(running, granted, serving)
        if not running:
            return StepResult(failures=tuple(failures), timings=clock.timings())
        with self._releasing(running):
            rows = serving.table.index(running)
            input_ids, state = decode_inputs(running, rows, serving.table, serving.pool)
            clock.forward_begins()
            logits = self._model.forward(input_ids, state)
            clock.forward_ends()
            return self._finish_step(batches[0].id, running, rows, logits, {}, failures, clock)

    def filter_batch(self, batch_id: int, request_ids: Sequence[int]) -> CachedBatch | None:
        """Keeps the listed requests of a cached batch and frees the rows of the others."""
        serving = self._ready()
        kept, dropped = self._batches.select(CachedBatch(batch_id, tuple(request_ids)))
        serving.table.release(dropped)
        return self._batches.store(batch_id, kept)

    def clear_cache(self, batch_id: int | None) -> None:
        """Drops one batch, or all. An id that is not cached is no error: its requests are gone, as asked."""
        dropped = self._batches.remove(self._batches.ids() if batch_id is None else [batch_id])
        if self._serving is not None:
            self._serving.table.release(dropped)

    def close(self) -> None:
        """Leaves the group."""
        self._group.close()

    def _ready(self) -> _Serving:
        if self._serving is None:
            raise NotReady("call Warmup before any other call")
        return self._serving

    def _check_new_batch(self, batch: Batch) -> None:
        if not batch.requests:
            raise InvalidRequest(f"batch {batch.id} must hold at least one request")
        if batch.id in self._batches:
            raise InvalidRequest(f"batch {batch.id} is already in the cache; choose another id")
        seen = self._batches.request_ids()
        for request in batch.requests:
            if request.id in seen:
                raise InvalidRequest(f"request {request.id} is already running; choose another id")
            seen.add(request.id)

    def _admit(
        self, requests: Sequence[Request], serving: _Serving
    ) -> tuple[list[RunningRequest], list[RequestFailure]]:
        """Gives each good request a row; a bad one, or one that finds no row, fails alone."""
        good, failures = [], []
        for request in requests:
            try:
                check_request(request, serving.limits, self._model.vocab_size)
                if len(good) == serving.table.num_free:
                    raise InvalidRequest(f"all rows are taken; --max-batch-size is {serving.limits.max_batch_size}")
                good.append(request)
            except InvalidRequest as error:
                failures.append(failure(request.id, error))
        num_tokens = sum(len(request.input_ids) for request in good)
        if num_tokens > serving.max_batch_prefill_tokens:
            raise InvalidRequest(
                f"the prompts of the batch hold {num_tokens} tokens, more than --max-batch-prefill-tokens "
                f"{serving.max_batch_prefill_tokens}"
            )
        running = [
            RunningRequest(request, serving.table.take(), length=len(request.input_ids), num_slots=0)
            for request in good
        ]
        return running, failures

    def _check_decode(
        self, batches: Sequence[CachedBatch], grants: Sequence[Grant]
    ) -> tuple[list[RunningRequest], list[RunningRequest], dict[int, list[SlotRange]]]:
        """Requests to step, requests to drop, and slots granted by request. Changes nothing."""
        if not batches:
            raise InvalidRequest("must provide at least one batch")
        if len({batch.id for batch in batches}) != len(batches):
            raise InvalidRequest("`batches` lists a batch twice")
        kept: list[RunningRequest] = []
        dropped: list[RunningRequest] = []
        for batch in batches:
            wanted, unwanted = self._batches.select(batch)
            kept += wanted
            dropped += unwanted
        granted: dict[int, list[SlotRange]] = {r.id: [] for r in kept}
        for grant in grants:
            if grant.request_id not in granted:
                raise InvalidRequest(f"`grants` names request {grant.request_id}, which `batches` does not list")
            granted[grant.request_id] += grant.slots
        return kept, dropped, granted

    def _apply_grants(
        self, running: Sequence[RunningRequest], granted: dict[int, list[SlotRange]], serving: _Serving
    ) -> tuple[list[RunningRequest], list[RequestFailure]]:
        """Appends granted slots. Who has a bad grant, or no slot for this step, fails and loses the row."""
        ready, failed, failures = [], [], []
        for r in running:
            try:
                slots = granted[r.id]
                if slots:
                    check_slots(slots, serving.limits.max_batch_total_tokens)
                    serving.table.grant(r, slots)
                if r.length > r.num_slots:
                    raise OutOfSlots(f"position {r.length - 1} has no slot: only {r.num_slots} were granted")
                ready.append(r)
            except (InvalidRequest, OutOfSlots) as error:
                failed.append(r)
                failures.append(failure(r.id, error))
        serving.table.release(failed)
        return ready, failures

    def _finish_step(
        self,
        batch_id: int,
        running: Sequence[RunningRequest],
        rows: Tensor,
        logits: Tensor,
        prompts: dict[int, Tokens],
        failures: list[RequestFailure],
        clock: StepClock,
    ) -> StepResult:
        """Samples, moves the rows on, frees those that ended and caches the rest under `batch_id`."""
        serving = self._ready()
        table, sampling = serving.table, serving.sampling
        sampled = serving.sampler(logits, rows, table.last_token, table.generated)
        choices = sampled.choices()
        advance_state(
            sampled.tokens, rows, table.last_token, table.length, table.generated, sampling.ints, sampling.counts
        )
        kept, ended, generations = [], [], []
        for r, choice in zip(running, choices, strict=True):
            r.length += 1
            r.generated += 1
            if not choice.valid:
                ended.append(r)
                failures.append(failure(r.id, NumericalError("the model's logits hold NaN or infinite values")))
                continue
            finish = finish_of(r, choice.token, self._eos_token_ids)
            (ended if finish else kept).append(r)
            if r.id % self._group.world_size == self._group.rank:
                generations.append(generation_of(r, choice, prompts.get(r.id), finish))
        serving.table.release(ended)
        cached = self._batches.store(batch_id, kept)
        return StepResult(tuple(generations), cached, tuple(failures), clock.timings())

    @contextmanager
    def _releasing(self, running: Sequence[RunningRequest]) -> Generator[None, None, None]:
        """Frees the rows of a step that failed. Nothing else of the engine's state has changed by then: the rows'
        tensors and slots belong to these requests alone. So on one rank, running out of memory ends only the call;
        with more ranks the others still wait in a collective, and the group is lost.
        """
        try:
            yield
        except Exception as error:
            self._ready().table.release(running)
            if not is_out_of_memory(error):
                raise
            if self._group.world_size > 1:
                raise EngineFailed("out of memory on one rank of several; the ranks no longer agree") from error
            release_memory(self._model.device)
            raise OutOfMemory(
                "the device is out of memory for this batch; lower --max-batch-prefill-tokens, --max-batch-size or "
                "--cuda-memory-fraction"
            ) from error
