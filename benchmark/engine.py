"""Times the engine without router and sockets: prefill chunks, decodes, mixed steps, and idle time.

    PYTHONPATH=server:kernels python3 benchmark/engine.py FOLDER --output-json result.json [--ranks 2] [--profile]

With several ranks each is a process that gets the same plans; what the first measures is reported.
FOLDER holds a config.json; weights are random. Plans are sent two deep, as the router does. What a step costs here and
not through HTTP is the router's and the socket's share. On a machine without a GPU it runs as well, on a folder of a
tiny model: that proves the script.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, get_args

import compact
import numpy as np
import torch
import torch.multiprocessing as mp

from text_generation_server.config.copies import DequantisedCopies
from text_generation_server.config.implementation import ModelImpl, read_model_config
from text_generation_server.config.kv_cache import KV_CACHE_DTYPES, KvCacheDtype, quantised_kv_cache
from text_generation_server.config.parallel import ParallelConfig
from text_generation_server.config.server import WatermarkConfig
from text_generation_server.distributed.group import init_group
from text_generation_server.engine.engine import Engine
from text_generation_server.engine.loading import choose_device
from text_generation_server.engine.masks import no_masks
from text_generation_server.engine.options import EngineOptions
from text_generation_server.engine.requests import (
    Chunk,
    MaskForm,
    MaskSource,
    MaskWrite,
    NextTokenChooserParameters,
    PendingStep,
    Request,
    ServingLimits,
    SlotRange,
    StepMasks,
    StepPlan,
    StepReply,
    WarmupLimits,
    WarmupResult,
)
from text_generation_server.models.registry import load_model

GREEDY = NextTokenChooserParameters()
TOP_P = NextTokenChooserParameters(do_sample=True, top_p=0.9, seed=1)
EVERYTHING = NextTokenChooserParameters(
    do_sample=True, top_p=0.9, top_k=100, typical_p=0.95, repetition_penalty=1.1, frequency_penalty=0.1, seed=1
)
PREFILL_TOKENS = 8192
DEPTH = 2
MASKS = 36
"""Different masks of the constrained cases: as many as some thousand tokens of JSON need."""


@dataclass
class Load:
    """Requests of one shape at a time on one engine; row i has its slots from i * length on."""

    engine: Engine
    vocab_size: int
    number: int = 0
    under_way: deque[PendingStep] = field(default_factory=deque)
    replies: list[tuple[float, StepReply]] = field(default_factory=list)
    """With the seconds since the reply before."""
    last: float = 0.0

    def send(self, masks: MaskSource = no_masks, **plan: Any) -> None:
        """Launches the next plan, and reads what is more than two deep."""
        self.under_way.append(self.engine.step(StepPlan(self.number, **plan), masks))
        self.number += 1
        while len(self.under_way) >= DEPTH:
            self._read()

    def drain(self) -> None:
        """Reads all that is under way."""
        while self.under_way:
            self._read()

    def _read(self) -> None:
        reply = self.under_way.popleft().result()
        if reply.failures:
            sys.exit(f"a request failed: {reply.failures[0]}")
        now = time.perf_counter()
        self.replies.append((now - self.last, reply))
        self.last = now

    @contextmanager
    def timed(self) -> Iterator[list[tuple[float, StepReply]]]:
        """The replies to what is sent inside, once it is over."""
        self.drain()
        self.replies = []
        self.last = time.perf_counter()
        yield self.replies
        self.drain()

    def request(
        self, row: int, length: int, slots: int, parameters: NextTokenChooserParameters = GREEDY, **more: Any
    ) -> Request:
        """Random ids, and slots that no other row has."""
        ids = np.random.default_rng(row).integers(self.vocab_size, size=length)
        return Request(row, row, ids, parameters, (SlotRange(row * slots, slots),), **more)

    def fill(self, streams: int, length: int, slots: int, parameters: NextTokenChooserParameters = GREEDY) -> None:
        """Computes the prompts of so many requests, which decode from then on."""
        at_once = max(1, PREFILL_TOKENS // length)
        for first in range(0, streams, at_once):
            rows = range(first, min(streams, first + at_once))
            admit = [self.request(row, length, slots, parameters) for row in rows]
            self.send(admit=admit, chunks=[Chunk(row, 0, length) for row in rows])
        self.drain()

    def clear(self) -> None:
        """Drops all requests."""
        self.drain()
        self.engine.clear_cache(None)


def build(
    folder: Path,
    options: EngineOptions,
    limits: WarmupLimits,
    parallel: ParallelConfig,
    overlapped_bytes: int | None = None,
    impl: ModelImpl = "auto",
    kv_cache_dtype: KvCacheDtype = "auto",
) -> tuple[Engine, WarmupResult, dict[str, float]]:
    """An engine with random weights, warmed up, and what that took. `overlapped_bytes`: instead of the group's own."""
    started = time.perf_counter()
    device = choose_device(parallel.rank)
    config = read_model_config(folder, impl)
    group = init_group(parallel, device, 120.0, config.decoder.hidden_size, options.deterministic)
    if overlapped_bytes is not None:
        group.overlapped_bytes = overlapped_bytes
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    with torch.inference_mode():
        kv_cache = quantised_kv_cache(kv_cache_dtype, config)
        model = load_model(folder, config, group, dtype, device, "dummy", kv_cache)
    attention = "triton" if device.type == "cuda" else "torch"
    engine = Engine(model, group, config.eos_token_ids, attention, WatermarkConfig(), options)
    loaded = time.perf_counter()
    result = engine.warmup(limits)
    print(f"slots {result.limits.max_batch_total_tokens}, longest {result.limits.max_total_tokens}")
    return engine, result, {"load_s": loaded - started, "warmup_s": time.perf_counter() - loaded}


def summary(replies: Sequence[tuple[float, StepReply]]) -> dict[str, float]:
    """Medians of steps; the first ones still have to wait for what was before."""
    middle = replies[4:] or replies
    timings = [reply.timings for _, reply in middle]
    forward = sum(t.forward_ns for t in timings)
    return {
        "step_ms": median_ms([seconds for seconds, _ in middle]),
        "device_ms": median_ms([t.forward_ns / 1e9 for t in timings]),
        "idle_percent": round(100 * sum(t.idle_ns for t in timings) / max(1, forward), 2),
        "host_us": round(statistics.median(t.host_ns for t in timings) / 1e3, 1),
        "compilations": timings[-1].kernel_compilations,
    }


def median_ms(values: Sequence[float]) -> float:
    """Of seconds."""
    return round(statistics.median(values) * 1e3, 3) if values else float("nan")


def decode_case(load: Load, streams: int, length: int, steps: int, parameters: NextTokenChooserParameters) -> Any:
    """Steps without chunks."""
    load.fill(streams, length, length + steps + 1, parameters)
    with load.timed() as replies:
        for _ in range(steps):
            load.send(decode=range(streams))
    load.clear()
    sampling = "top-p 0.9" if parameters.do_sample else "greedy"
    return {"streams": streams, "input": length, "sampling": sampling, **summary(replies)}


def constrained_case(load: Load, streams: int, length: int, steps: int) -> Any:
    """Steps without chunks in which every row chooses under another mask than before, beside the same without masks.

    The masks are there when they are asked for, and stand in the pool already but for the first step.
    """
    free = decode_case(load, streams, length, steps, GREEDY)
    chance = np.random.default_rng(0)
    size = -(-load.vocab_size // 8)
    writes = [
        MaskWrite(slot, MaskForm.BITS, chance.integers(1, 256, size, dtype=np.uint8)) for slot in range(1, MASKS + 1)
    ]
    load.fill(streams, length, length + steps + 1)
    with load.timed() as replies:
        for step in range(steps):
            slots = [1 + (row + step) % MASKS for row in range(streams)]
            masks = partial(step_masks, writes if step == 0 else [], slots)
            load.send(masks, decode=range(streams), constrained=range(streams))
    load.clear()
    constrained = summary(replies)
    percent = round(100 * (constrained["step_ms"] / free["step_ms"] - 1), 2)
    return {"streams": streams, "input": length, "free": free["step_ms"], "percent_more": percent, **constrained}


def step_masks(writes: Sequence[MaskWrite], slots: Sequence[int], number: int) -> StepMasks:
    """For all rows."""
    return StepMasks(number, writes, range(len(slots)), slots)


def chunk_case(load: Load, length: int, repetitions: int) -> Any:
    """One prompt in one chunk, alone on an idle device."""
    found = []
    for _ in range(repetitions):
        with load.timed() as replies:
            load.send(admit=[load.request(0, length, length)], chunks=[Chunk(0, 0, length)])
        found.append((replies[0][0], replies[0][1].timings.forward_ns / 1e9))
        load.clear()
    wall, device = (min(column) for column in zip(*found, strict=True))
    return {"input": length, "wall_ms": round(wall * 1e3, 3), "device_ms": round(device * 1e3, 3)}


def mixed_case(load: Load, streams: int, length: int, chunk: int, steps: int) -> Any:
    """A long prompt in chunks beside decodes of all others."""
    slots = max(length + steps + 1, chunk * steps)
    load.fill(streams, length, slots)
    request = load.request(streams, chunk * steps, slots)
    with load.timed() as replies:
        for step in range(steps):
            admit = [request] if step == 0 else []
            load.send(admit=admit, chunks=[Chunk(streams, step * chunk, chunk)], decode=range(streams))
    load.clear()
    return {"streams": streams, "input": length, "chunk": chunk, **summary(replies)}


def profile(load: Load, streams: int, length: int, steps: int) -> tuple[list[dict[str, Any]], float]:
    """Device time by kernel of one decode step, and the percentage of the trace in which no kernel ran."""
    load.fill(streams, length, length + 40)
    for _ in range(10):
        load.send(decode=range(streams))
    load.drain()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        for _ in range(steps):
            load.send(decode=range(streams))
        load.drain()
        torch.cuda.synchronize()
    load.clear()
    rows = sorted(profiler.key_averages(), key=lambda e: -e.device_time_total)
    kernels = [
        {"kernel": e.key[:90], "calls": e.count / steps, "us": round(e.device_time_total / steps, 1)} for e in rows[:30]
    ]
    on_device = [e for e in profiler.events() or [] if e.device_type == torch.autograd.DeviceType.CUDA]
    return kernels, idle_percent([(e.time_range.start, e.time_range.end) for e in on_device])


def idle_percent(intervals: list[tuple[float, float]]) -> float:
    """The part of the time from the first start to the last end that no interval covers."""
    intervals.sort()
    covered, reached = 0.0, intervals[0][0]
    for start, end in intervals:
        covered += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return round(100 * (1 - covered / (reached - intervals[0][0])), 2)


def at_limits(load: Load, served: ServingLimits) -> dict[str, Any]:
    """Fills every row and every slot, with requests that ask for everything, and decodes; then the longest prompt.

    Running out of memory would end it with an error.
    """
    rows, steps = served.max_batch_size, 16
    share = min(served.max_total_tokens, served.max_batch_total_tokens // rows)
    length = min(share - steps, served.max_input_tokens)
    everything: dict[str, Any] = {"prefill_logprobs": True, "top_n_tokens": 5}
    with load.timed() as replies:
        for row in range(rows):
            admit = [load.request(row, length, share, EVERYTHING, **everything)]
            for first in range(0, length, PREFILL_TOKENS):
                chunk = Chunk(row, first, min(PREFILL_TOKENS, length - first))
                load.send(admit=admit, chunks=[chunk], decode=range(row) if first == 0 and row < steps else [])
                admit = []
        for _ in range(steps // 2):
            load.send(decode=range(rows))
    tokens = sum(len(reply.ids) for _, reply in replies)
    load.clear()
    longest = served.max_input_tokens
    admit = [load.request(0, longest, longest, EVERYTHING, **everything)]
    for first in range(0, longest, PREFILL_TOKENS):
        load.send(admit=admit, chunks=[Chunk(0, first, min(PREFILL_TOKENS, longest - first))])
        admit = []
    load.clear()
    return {"rows": rows, "tokens_each": length, "slots": served.max_batch_total_tokens, "decoded": tokens}


def main() -> None:
    """Runs what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--output-json", type=Path)
    parser.add_argument("--cases", default="1x512,8x1024,64x2048,256x1024", help="streams x input tokens")
    parser.add_argument("--chunks", default="16,128,512,2048,8192", help="prompts in one chunk")
    parser.add_argument("--mixed", default="64x2048x448,64x2048x960", help="streams x input tokens x chunk")
    parser.add_argument("--constrained", default="", help="as --cases, under masks and without: 1x512,64x2048,256x1024")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--max-total-tokens", type=int, default=16384)
    parser.add_argument("--profile", action="store_true", help="also list the kernels of a step")
    parser.add_argument("--deterministic", action="store_true")
    parser.add_argument("--at-limits", action="store_true", help="fill every row and slot instead of timing")
    parser.add_argument("--no-graphs", action="store_true")
    parser.add_argument("--model-impl", choices=get_args(ModelImpl), default="auto")
    parser.add_argument("--kv-cache-dtype", choices=KV_CACHE_DTYPES, default="auto")
    parser.add_argument("--dequantised-copies", choices=get_args(DequantisedCopies), default="auto")
    parser.add_argument("--ranks", type=int, default=1, help="processes, one a device")
    parser.add_argument("--expert-parallel", action="store_true", help="ranks have whole experts")
    parser.add_argument("--context-parallel", action="store_true", help="ranks have some positions of latent attention")
    parser.add_argument("--nccl", action="store_true", help="all-reduce through NCCL alone")
    arguments = parser.parse_args()
    if arguments.ranks == 1:
        run(0, arguments, "")
        return
    with tempfile.TemporaryDirectory() as meeting:
        mp.spawn(run, (arguments, meeting), nprocs=arguments.ranks)


def run(rank: int, arguments: argparse.Namespace, meeting: str) -> None:
    """What one rank does. Ends the process where there are several: NCCL's own end waits for graphs."""
    parallel = ParallelConfig(
        rank,
        arguments.ranks,
        Path(meeting) / "rendezvous",
        peer_memory=not arguments.nccl,
        expert_parallel=arguments.expert_parallel,
        context_parallel=arguments.context_parallel,
    )
    if rank > 0:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - until the process ends
    measure(arguments, parallel)
    if arguments.ranks > 1:
        sys.stdout.flush()
        os._exit(0)


def measure(arguments: argparse.Namespace, parallel: ParallelConfig) -> None:
    """Runs all cases on this rank; the first prints them and writes the file."""
    cuda = torch.cuda.is_available()
    options = EngineOptions(
        cuda_graphs=() if arguments.no_graphs or not cuda else None,
        deterministic=arguments.deterministic,
        dequantised_copies=arguments.dequantised_copies,
    )
    cases, mixed, constrained = (numbers(each) for each in (arguments.cases, arguments.mixed, arguments.constrained))
    limits = WarmupLimits(
        PREFILL_TOKENS,
        max(case[0] for case in cases + mixed + constrained) + 1,
        max_total_tokens=arguments.max_total_tokens,
        prefill_chunking=True,
    )
    engine, warmed, start = build(
        arguments.folder,
        options,
        limits,
        parallel,
        impl=arguments.model_impl,
        kv_cache_dtype=arguments.kv_cache_dtype,
    )
    load = Load(engine, engine.info.vocab_size)
    if arguments.at_limits:
        print("at the limits", json.dumps(at_limits(load, warmed.limits)), flush=True)
        return
    cost = warmed.cost
    start |= {
        "times_ms": dict(zip(cost.tokens, (round(ms, 4) for ms in cost.times_ms), strict=True)),
        "pair_ns": cost.pair_ns,
        "context_ns": cost.context_ns,
    }
    result: dict[str, Any] = {"command": " ".join(sys.argv), "start": start}
    print(json.dumps(start))

    def note(kind: str, row: Any) -> None:
        result.setdefault(kind, []).append(row)
        print(kind, json.dumps(row), flush=True)

    for (length,) in numbers(arguments.chunks):
        note("chunk", chunk_case(load, length, 5))
    for streams, length in cases:
        note("decode", decode_case(load, streams, length, arguments.steps, GREEDY))
    for streams, length in cases[:3][-1:]:
        note("decode", decode_case(load, streams, length, arguments.steps, TOP_P))
    for streams, length in constrained:
        note("constrained", constrained_case(load, streams, length, arguments.steps))
    for streams, length, chunk in mixed:
        note("mixed", mixed_case(load, streams, length, chunk, max(1, (arguments.max_total_tokens - 1) // chunk)))
    if arguments.profile and cuda:
        for streams, length in cases:
            rows, idle = profile(load, streams, length, 10)
            result[f"profile {streams}x{length}"] = {"idle_percent": idle, "kernels": rows}
            print(f"{streams} x {length}: idle {idle} % of the trace; kernels of one step:")
            for entry in rows:
                print(f"  {entry['us']:9.1f} us {entry['calls']:7.1f} {entry['kernel']}")
    if arguments.output_json and parallel.rank == 0:
        arguments.output_json.write_text(compact.dumps(result))


def numbers(cases: str) -> list[tuple[int, ...]]:
    """`1x512,8x1024` as numbers."""
    return [tuple(int(n) for n in case.split("x")) for case in cases.split(",") if case]


if __name__ == "__main__":
    main()
