"""The engine of one rank: Warmup, Prefill, Decode, FilterBatch and ClearCache in terms of rows, batches and the model.

Single-threaded: every method runs on the engine thread. Ranks stay in lockstep because every branch looks at the call
and at replicated state alone. A call is checked as a whole before it changes anything; one bad request among good ones
becomes a failure of its own.
"""

import gc
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from .. import __version__
from ..config.server import WatermarkConfig
from ..distributed.group import TensorParallelGroup
from ..errors import EngineFailed, NotReady, OutOfMemory
from ..kernels import compilations
from ..models.base import CausalLM
from .admission import Admission
from .batches import BatchTable, RunningRequest
from .memory import is_out_of_memory, release_memory
from .options import EngineOptions
from .replies import StepReport
from .requests import (
    Batch,
    CachedBatch,
    Grant,
    RequestFailure,
    ServingLimits,
    ShardInfo,
    StepResult,
    Timings,
    Tokens,
    WarmupLimits,
)
from .run_ahead import StepQueue
from .runner import QueuedStep, StepRunner
from .warmup import warm_up


@dataclass(frozen=True)
class _Serving:
    """What exists from Warmup on."""

    runner: StepRunner
    admission: Admission
    steps: StepQueue[QueuedStep]
    compilations: int
    """Kernels compiled until then."""


class Engine:
    """One rank's model, KV pool, rows and cached batches."""

    def __init__(
        self,
        model: CausalLM,
        group: TensorParallelGroup,
        eos_token_ids: Sequence[int],
        attention_impl: str,
        watermark: WatermarkConfig,
        options: EngineOptions,
    ) -> None:
        self._model = model
        self._group = group
        self._eos_token_ids = frozenset(eos_token_ids)
        self._attention_impl = attention_impl
        self._watermark = watermark
        self._options = options
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
        return self._serving.runner.table.num_free if self._serving else 0

    @torch.inference_mode()
    def warmup(self, limits: WarmupLimits) -> ServingLimits:
        """Sizes the KV pool and the row tables, captures graphs, compiles kernels. Raises `NotReady` when called twice,
        `InvalidRequest` for limits that contradict each other or the model, and `OutOfMemory` when they do not fit.
        """
        if self._serving is not None:
            raise NotReady("Warmup was already called; restart the shard to change its limits")
        eos = sorted(self._eos_token_ids)
        served, runner = warm_up(self._model, self._group, limits, eos, self._watermark, self._options)
        self._serving = _Serving(
            runner,
            Admission(served, limits.max_batch_prefill_tokens, self._model.vocab_size, runner.table, self._batches),
            StepQueue(runner.decode, self._options.run_ahead),
            compilations(),
        )
        # What lives now lives for good: keep the collector from walking it in the middle of a step.
        gc.collect()
        gc.freeze()
        return served

    @torch.inference_mode()
    def prefill(self, batch: Batch) -> StepResult:
        """Computes the prompts of a new batch and samples one token each."""
        called = time.perf_counter_ns()
        serving = self._ready()
        running, failures = serving.admission.admit(batch)
        if not running:
            return StepResult(failures=tuple(failures))
        moments = called, time.perf_counter_ns()
        with self._releasing(running):
            step = serving.runner.prefill(running)
            # The call after this one is most likely a Decode of everything.
            serving.steps.before_waiting([*self._batches.running(), *running])
            step.deliver()
            return self._reply(batch.id, running, failures, step, moments, step.prompts())

    @torch.inference_mode()
    def decode(self, batches: Sequence[CachedBatch], grants: Sequence[Grant]) -> StepResult:
        """One step for the union of `batches`, which become one under the id of the first. Grants come first.

        A request of a batch that was prefilled after the oldest step in flight was queued has no token in this reply.
        """
        called = time.perf_counter_ns()
        serving = self._ready()
        running, dropped, granted = serving.admission.listed(batches, grants)
        serving.runner.table.release(dropped)
        self._batches.remove(batch.id for batch in batches)
        running, failures = serving.admission.apply_grants(running, granted)
        if not running:
            return StepResult(failures=tuple(failures))
        moments = called, time.perf_counter_ns()
        with self._releasing(running):
            step = serving.steps.decode(running)
            return self._reply(batches[0].id, running, failures, step, moments)

    def filter_batch(self, batch_id: int, request_ids: Sequence[int]) -> CachedBatch | None:
        """Keeps the listed requests of a cached batch and frees the rows of the others."""
        table = self._ready().runner.table
        kept, dropped = self._batches.select(CachedBatch(batch_id, tuple(request_ids)))
        table.release(dropped)
        return self._batches.store(batch_id, kept)

    def clear_cache(self, batch_id: int | None) -> None:
        """Drops one batch, or all. An id that is not cached is no error: its requests are gone, as asked."""
        dropped = self._batches.remove(self._batches.ids() if batch_id is None else [batch_id])
        if self._serving is not None:
            self._serving.runner.table.release(dropped)

    @torch.inference_mode()
    def between_calls(self) -> None:
        """Uses the time until the next call. Call it when the result of each call was handed out."""
        if self._serving is not None:
            self._serving.steps.between_calls(self._batches.running())

    def close(self) -> None:
        """Leaves the group."""
        self._group.close()

    def _ready(self) -> _Serving:
        if self._serving is None:
            raise NotReady("call Warmup before any other call")
        return self._serving

    def _reply(
        self,
        batch_id: int,
        running: Sequence[RunningRequest],
        failures: list[RequestFailure],
        step: QueuedStep | None,
        moments: tuple[int, int],
        prompts: dict[int, Tokens] | None = None,
    ) -> StepResult:
        """Sorts out what arrived, frees the rows of those that ended and caches the rest under `batch_id`.

        `moments`: when the call came, and when it was checked.
        """
        arrived = time.perf_counter_ns()
        serving = self._ready()
        report = StepReport(self._eos_token_ids)
        for r in running:
            report.add(r, (prompts or {}).get(r.id))
        serving.runner.table.release(report.ended)
        cached = self._batches.store(batch_id, report.kept)
        mine = tuple(g for r, g in report.generations if r.id % self._group.world_size == self._group.rank)
        done = time.perf_counter_ns()
        timings = Timings(
            concat_ns=moments[1] - moments[0],
            forward_ns=0 if step is None else step.time.forward_ns,
            decode_ns=done - arrived,
            total_ns=done - moments[0],
            idle_ns=0 if step is None else step.time.idle_ns,
            kernel_compilations=compilations() - serving.compilations,
        )
        return StepResult(mine, cached, (*failures, *report.failures), timings)

    @contextmanager
    def _releasing(self, running: Sequence[RunningRequest]) -> Generator[None, None, None]:
        """Frees the rows of a step that failed. Nothing else of the engine's state has changed by then: the rows'
        tensors and slots belong to these requests alone. So on one rank, running out of memory ends only the call;
        with more ranks the others still wait in a collective, and the group is lost.
        """
        try:
            yield
        except Exception as error:
            self._ready().runner.table.release(running)
            if not is_out_of_memory(error):
                raise
            if self._group.world_size > 1:
                raise EngineFailed("out of memory on one rank of several; the ranks no longer agree") from error
            release_memory(self._model.device)
            raise OutOfMemory(
                "the device is out of memory for this batch; lower --max-batch-prefill-tokens, --max-batch-size or "
                "--cuda-memory-fraction"
            ) from error
