"""The engine of one rank: Warmup, steps, FilterBatch and ClearCache in terms of rows and the model.

Every method runs on the engine thread. Ranks stay in lockstep because every branch depends on the call and on
replicated state alone. A plan is checked as a whole before it changes anything; one bad request among good ones fails
alone.
"""

import gc
from collections.abc import Sequence
from dataclasses import replace

import torch

from text_generation_kernels import compilations

from .. import __version__
from ..config.server import WatermarkConfig
from ..distributed.group import TensorParallelGroup
from ..errors import EngineFailed, InvalidRequest, NotReady, OutOfMemory
from ..models.base import CausalLM
from ..models.encoder import keeps_bits
from .adapter_requests import AdapterLoaded, AdapterSource
from .adapter_store import AdapterStore
from .masks import no_masks
from .media_requests import MediaInfo, MediaPut
from .memory import Memory, is_out_of_memory, memory_of
from .options import EngineOptions
from .replies import LaunchedStep
from .requests import MaskSource, PendingStep, ShardInfo, StepPlan, StepReply, WarmupLimits, WarmupResult
from .runner import StepRunner
from .warmup import warm_up
from .widths import MAX_WINDOW_TOKENS, window_widths

_PEER_LIMIT_S = 10.0
"""How long kernels of a step wait for another rank. Ranks get a plan, and its masks, at the same time."""


class _SharedStep(PendingStep):
    """A step of several ranks. It has no result when a rank is lost."""

    def __init__(self, step: LaunchedStep, group: TensorParallelGroup) -> None:
        self._step = step
        self._group = group

    def result(self) -> StepReply:
        """See `PendingStep`. Raises `EngineFailed` when a rank is lost."""
        reply = self._step.result()
        self._group.check()
        return reply


class Engine:
    """One rank's model, KV pool and rows."""

    def __init__(
        self,
        model: CausalLM,
        group: TensorParallelGroup,
        eos_token_ids: Sequence[int],
        attention_impl: str,
        watermark: WatermarkConfig,
        options: EngineOptions,
        kv_cache_dtype: str = "",
        memory: Memory | None = None,
    ) -> None:
        """`kv_cache_dtype` names the type of the KV cache; empty: the model's type. `memory` is by default the memory
        of the model's device.
        """
        self._model = model
        self._memory = memory or memory_of(model.device)
        self._group = group
        self._eos_token_ids = frozenset(eos_token_ids)
        self._attention_impl = attention_impl
        self._watermark = watermark
        self._options = options if model.is_captured else replace(options, cuda_graphs=())
        self._kv_cache_dtype = kv_cache_dtype
        self._adapters = AdapterStore(model.adapters, options.hub)
        self._runner: StepRunner | None = None

    @property
    def info(self) -> ShardInfo:
        """What the shard serves, equal before and after Warmup."""
        dtype = str(self._model.dtype).removeprefix("torch.")
        return ShardInfo(
            dtype=dtype,
            kv_cache_dtype=self._kv_cache_dtype or dtype,
            device_type=self._model.device.type,
            world_size=self._group.world_size,
            vocab_size=self._model.vocab_size,
            max_position_embeddings=self._model.max_context_length,
            eos_token_ids=tuple(sorted(self._eos_token_ids)),
            attention_impl=self._attention_impl,
            version=__version__,
            recurrent=bool(self._model.states),
            media=self._media,
            widths=window_widths(self._options.speculate),
            max_window_tokens=MAX_WINDOW_TOKENS if self._options.speculate else 0,
            drafter=self._drafter,
            classes=self._model.classes,
        )

    @property
    def _drafter(self) -> str:
        """What drafts, in the words of `--speculative-config`; empty where nothing does."""
        drafter = self._model.drafter
        if not self._options.speculate:
            return ""
        return "ngram" if drafter is None else drafter.kind

    @property
    def _media(self) -> MediaInfo | None:
        """The encoder, where it is served."""
        encoder = self._model.encoder
        deterministic = self._options.deterministic
        if encoder is None or (deterministic and not keeps_bits(encoder)):
            return None
        packs = encoder.packs and not deterministic
        spans = encoder.whole_spans, encoder.axes, packs, encoder.own_matrices
        return MediaInfo(encoder.token_id, encoder.layers, *spans)

    @torch.inference_mode()
    def warmup(self, limits: WarmupLimits) -> WarmupResult:
        """Sizes the KV pool and the row tables, compiles kernels, captures CUDA graphs, and measures what steps cost.

        Raises `NotReady` when called twice, `InvalidRequest` for limits that contradict each other or the model, and
        `OutOfMemory` when they do not fit.
        """
        if self._runner is not None:
            raise NotReady("Warmup was already called; restart the shard to change its limits")
        if limits.media_rows and self._media is None:
            raise InvalidRequest("`media_rows` must be 0: this shard serves text alone")
        if limits.media_rows and not limits.max_media_pixels:
            raise InvalidRequest("`max_media_pixels` must be above 0 where there are `media_rows`")
        alone = self._attention_impl == "torch"
        eos_token_ids = sorted(self._eos_token_ids)
        result, self._runner = warm_up(
            self._model,
            self._group,
            self._memory,
            limits,
            eos_token_ids,
            self._watermark,
            self._options,
            alone,
            self._media,
            self._adapters,
        )
        self._runner.clear_adapters()
        self._runner.compiled_before = compilations()
        self._group.check()
        # Until now, one rank may have compiled for longer than another.
        self._group.limit_waits(_PEER_LIMIT_S)
        # Objects that live now live for good: the garbage collector need not walk them in the middle of a step.
        gc.collect()
        gc.freeze()
        return result

    def check_ready(self) -> None:
        """Raises `NotReady` before Warmup."""
        self._ready()

    @torch.inference_mode()
    def step(self, plan: StepPlan, masks: MaskSource = no_masks) -> PendingStep:
        """Launches the next step without waiting for it. On a CPU, launching computes.

        Where the plan has constrained rows, it calls `masks` between the forward pass and sampling; `masks` may wait,
        and its errors are raised. Raises `InvalidRequest` or `OutOfSlots` for a wrong plan, which changes nothing.
        After `OutOfMemory`, and after errors of masks, the rows are undefined until all are cleared.
        """
        runner = self._ready()
        try:
            step = runner.launch(plan, masks)
            return step if self._group.world_size == 1 else _SharedStep(step, self._group)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            # The other ranks wait in a collective.
            if self._group.world_size > 1:
                raise EngineFailed("out of memory on one rank of several; the ranks no longer agree") from error
            self._memory.release()
            raise OutOfMemory(
                "the device is out of memory for this step; lower --max-batch-prefill-tokens, --max-batch-size or "
                "--cuda-memory-fraction"
            ) from error

    @torch.inference_mode()
    def put_media(self, put: MediaPut) -> None:
        """Copies the pixels of an item to the device. An item that it has already is no error.

        Raises `InvalidRequest` for a wrong item, and `OutOfMemory` where too many wait or the device has no room; that
        changes nothing.
        """
        runner = self._ready()
        if runner.media is None or self._model.encoder is None:
            raise InvalidRequest("no media is served: Warmup had `media_rows` 0")
        checker = runner.checker.media
        if not checker.put(put, self._model.encoder.rows(put.views, put.grid)):
            return
        try:
            runner.media.put(put)
        except Exception as error:
            checker.items.forget(put.item)
            if not is_out_of_memory(error):
                raise
            self._memory.release()
            raise OutOfMemory("the device is out of memory for the pixels of this item; lower media_rows") from error

    def load_adapter(self, source: AdapterSource) -> AdapterLoaded:
        """Brings an adapter into host memory. Threads other than the engine thread call it. Raises what
        `AdapterStore.load` does.
        """
        return self._adapters.load(source)

    def unload_adapter(self, generation: int) -> None:
        """Drops an adapter from host memory; its pages stay as they are. An unknown generation is no error."""
        self._adapters.unload(generation)

    def filter_batch(self, request_ids: Sequence[int]) -> list[int]:
        """Keeps the listed requests and drops all others. Returns the kept ones, in the order of the list."""
        rows = self._ready().checker.rows
        wanted = set(request_ids)
        owners = {owner.request.id: row for row, owner in rows.owners.items()}
        rows.drop([row for request_id, row in owners.items() if request_id not in wanted])
        return [request_id for request_id in dict.fromkeys(request_ids) if request_id in owners]

    def clear_cache(self, request_id: int | None) -> None:
        """Drops one request, or all. An id that is not running is no error."""
        if self._runner is None:
            return
        rows = self._runner.checker.rows
        rows.drop([row for row, owner in rows.owners.items() if request_id is None or owner.request.id == request_id])
        if request_id is None:
            self._runner.clear_adapters()
        if request_id is None and self._runner.media is not None:
            self._runner.media.clear()
            self._runner.checker.media.clear()

    def close(self) -> None:
        """Leaves the group."""
        self._group.close()

    def _ready(self) -> StepRunner:
        if self._runner is None:
            raise NotReady("call Warmup before any other call")
        return self._runner
