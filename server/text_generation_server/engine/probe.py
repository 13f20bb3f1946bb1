"""Runs the steps that need the most memory, before the pool exists, so that the pool can take exactly what is left."""

import gc
import os
from collections.abc import Sequence

import torch

from ..config.server import WatermarkConfig
from ..kernels import compile_only, padded_batch
from ..models.base import CausalLM
from .batches import RunningRequest
from .graphs import decode_buckets, prefill_buckets
from .kv_pool import allocate_pool, bytes_per_slot
from .memory import available_host_memory, release_memory
from .options import EngineOptions
from .requests import (
    NextTokenChooserParameters,
    Request,
    ServingLimits,
    SlotRange,
    StoppingCriteriaParameters,
    WarmupLimits,
)
from .rows import RowTable
from .runner import StepRunner
from .sampling import Sampler
from .sampling_state import SamplingState

CPU_POOL_FRACTION = 0.5
"""Part of the host's available memory that the pools of all ranks together take by themselves."""
CUDA_RESERVE_FRACTION = 0.01
"""Part of a device kept for fragmentation and for buffers of libraries that the probe cannot see."""
_LONG_PROMPT = 2048
"""Tokens; the same kernels serve all prompts from this length on."""
_EVERYTHING = NextTokenChooserParameters(
    temperature=0.9,
    top_k=10,
    top_p=0.9,
    typical_p=0.9,
    min_p=0.01,
    do_sample=True,
    repetition_penalty=1.2,
    frequency_penalty=0.1,
    presence_penalty=0.1,
    logit_bias=((0, 1.0),),
    watermark=True,
)


class Probe:
    """Measures what serving will need; builds the runners for it. Lives during Warmup."""

    def __init__(
        self,
        model: CausalLM,
        asked: WarmupLimits,
        eos_token_ids: Sequence[int],
        watermark: WatermarkConfig,
        options: EngineOptions,
    ) -> None:
        self._model = model
        self._asked = asked
        self._eos_token_ids = eos_token_ids
        self._watermark = watermark
        self._options = options
        self._longest = asked.max_total_tokens or model.config.max_context_length
        self._is_cuda = model.device.type == "cuda"

    @property
    def decodes(self) -> list[int]:
        """Batch sizes of decode that get a graph."""
        if not self._is_cuda:
            return []
        if self._options.cuda_graphs is None:
            return decode_buckets(self._asked.max_batch_size)
        return [size for size in self._options.cuda_graphs if size <= self._asked.max_batch_size]

    @property
    def prefills(self) -> list[int]:
        """Numbers of tokens whose prefill gets a graph."""
        return prefill_buckets(self._asked.max_batch_prefill_tokens) if self.decodes else []

    def build_runner(self, num_rows: int, max_total_tokens: int, num_slots: int) -> StepRunner:
        """Rows, pool and sampler of the given sizes around the model."""
        model = self._model
        table = RowTable(num_rows, max_total_tokens, num_slots, model.device)
        sampling = SamplingState(num_rows + 1, model.vocab_size, model.device, self._eos_token_ids)
        sampler = Sampler(sampling, self._watermark)
        pool = allocate_pool(model, num_slots)
        return StepRunner(model, table, pool, sampling, sampler, self._options.deterministic)

    def fitting_slots(self, world_size: int) -> int:
        """Slots that fit on this rank beside everything else, or that it takes by itself if nothing is asked."""
        asked, per_slot = self._asked, bytes_per_slot(self._model)
        per_row = RowTable.bytes_per_row(self._longest) + SamplingState.bytes_per_row(self._model.vocab_size)
        row_bytes = (asked.max_batch_size + 1) * per_row
        # One slot more belongs to the pool: that of the padding.
        reserved = row_bytes + per_slot
        if self._is_cuda:
            return max(0, self._cuda_room() - reserved) // per_slot
        available = available_host_memory() // world_size
        if asked.max_batch_total_tokens is not None:
            return max(0, available - reserved) // per_slot
        fitting = max(0, int(available * CPU_POOL_FRACTION) - reserved) // per_slot
        return min(fitting, asked.max_batch_size * self._longest)

    def compile_ahead(self) -> None:
        """Compiles the kernels that serving needs, side by side, before any of them runs: one after the other they take
        some 20 s. Those that are in Triton's cache on disk are loaded from there.
        """
        if not self._is_cuda:
            return
        asked, longest = self._asked, self._longest
        # Before memory is measured, limits are what was asked for, or the model's own.
        slots = asked.max_batch_total_tokens or max(longest, asked.max_batch_prefill_tokens)
        limits = ServingLimits(slots, asked.longest_prompt(longest), longest, asked.max_batch_size)
        runner = self.build_runner(asked.max_batch_size, longest, asked.max_batch_prefill_tokens)
        with compile_only(os.cpu_count() or 1):
            self.run_every_kernel(runner, limits)

    def run_every_kernel(self, runner: StepRunner, limits: ServingLimits) -> None:
        """Runs decode steps and prefills of few and of many requests, short and long, so that every kernel that serving
        needs is compiled and loaded by then, with graphs or without. Call it before graphs are captured.

        Attention is compiled for ranges of the number of requests and chooses tiles by the longest prompt; other
        kernels are compiled for numbers rounded up to a power of two.
        """
        if not self._is_cuda:
            return
        most = min(limits.max_batch_size, self._asked.max_batch_prefill_tokens, limits.max_batch_total_tokens)
        tokens = min(self._asked.max_batch_prefill_tokens, limits.max_batch_total_tokens)
        padding = torch.full((most,), runner.table.num_rows, dtype=torch.int64, device=self._model.device)
        for size in (1, *((1 << power) + 1 for power in range(most.bit_length()) if 1 << power < most)):
            runner.decode_rows(padding[:size], limits.max_total_tokens)
        requests = 1
        while requests <= most:
            longest = min(limits.max_input_tokens, tokens // requests)
            longest = min(longest, _LONG_PROMPT)
            for length in (*(8**power for power in range(longest.bit_length()) if 8**power < longest), longest):
                _prefill(runner, [length] * requests, scored=False)
            # The smallest number that the kernels tell apart from these.
            requests = padded_batch(requests) + 1
        torch.cuda.synchronize(self._model.device)

    def _cuda_room(self) -> int:
        """Bytes left for pool and rows once the largest steps have run, measured by running them."""
        device = self._model.device
        release_memory(device)
        held = torch.cuda.memory_allocated(device)
        activations, graph_bytes = self._run_largest_steps()
        gc.collect()  # the runner refers to itself
        release_memory(device)
        free, total = torch.cuda.mem_get_info(device)
        # What others hold on the device: other processes, the CUDA context, buffers of NCCL and cuBLAS.
        foreign = total - free - torch.cuda.memory_reserved(device)
        room = int(total * (self._options.memory_fraction - CUDA_RESERVE_FRACTION))
        return room - foreign - held - activations - graph_bytes

    def _run_largest_steps(self) -> tuple[int, int]:
        """A full prefill with log-probabilities of every prompt token, and decode steps of the largest batch.

        Returns the bytes that they need beside weights, rows and pool, and those that graphs will take.
        """
        asked, device = self._asked, self._model.device
        lengths = _split(asked.max_batch_prefill_tokens, asked.longest_prompt(self._longest))[: asked.max_batch_size]
        runner = self.build_runner(asked.max_batch_size, self._longest, sum(lengths))
        torch.cuda.reset_peak_memory_stats(device)
        held = torch.cuda.memory_allocated(device)
        _prefill(runner, lengths)
        padding = torch.full((asked.max_batch_size,), runner.table.num_rows, dtype=torch.int64, device=device)
        runner.decode_rows(padding, self._longest)
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - held, self._graph_bytes(runner)

    def _graph_bytes(self, runner: StepRunner) -> int:
        """The largest graphs bring the memory that all share; a further one costs what the second of its kind adds."""
        decodes, prefills = self.decodes, self.prefills
        if not decodes:
            return 0
        none, largest, decode, prefill = (
            self._used_by_graphs(runner, decodes[len(decodes) - d :], prefills[len(prefills) - p :])
            for d, p in ((0, 0), (1, 1), (2, 1), (1, 2))
        )
        further = (len(decodes) - 1) * max(0, decode - largest) + (len(prefills) - 1) * max(0, prefill - largest)
        return max(0, largest - none) + further

    def _used_by_graphs(self, runner: StepRunner, decodes: Sequence[int], prefills: Sequence[int]) -> int:
        """Bytes of the device in use, by this process and others, once graphs of these sizes are captured."""
        runner.capture(decodes, prefills)
        release_memory(self._model.device)
        free, total = torch.cuda.mem_get_info(self._model.device)
        return total - free


def _prefill(runner: StepRunner, lengths: list[int], scored: bool = True) -> None:
    """Prefills dummy requests that ask for everything, and gives their rows back.

    `scored`: also for log-probabilities of the prompt.
    """
    running, start = [], 0
    for index, length in enumerate(lengths):
        running.append(RunningRequest(_dummy(index, length, start, scored), runner.table.take()))
        start += length
    runner.prefill(running).deliver()
    runner.table.release(running)


def _split(total: int, largest: int) -> list[int]:
    """`total` as a sum of parts of at most `largest`."""
    full, rest = divmod(total, largest)
    return [largest] * full + ([rest] if rest else [])


def _dummy(index: int, length: int, first_slot: int, scored: bool) -> Request:
    return Request(
        id=index,
        input_ids=(0,) * length,
        parameters=_EVERYTHING,
        stopping_parameters=StoppingCriteriaParameters(max_new_tokens=1),
        slots=(SlotRange(first_slot, length),),
        prefill_logprobs=scored,
        top_n_tokens=5,
    )
