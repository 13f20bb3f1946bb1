"""Times the engine of one rank without router and sockets: prefill, decode steps, idle time between them, kernels.

    PYTHONPATH=server python3 benchmark/engine.py FOLDER --output-json result.json [--profile]

FOLDER holds a config.json; weights are random. What a step costs here and not through HTTP is the router's and the
socket's share. On a machine without a GPU it runs as well, on a folder of a tiny model: that proves the script.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from text_generation_server.config.model import ModelConfig
from text_generation_server.config.parallel import ParallelConfig
from text_generation_server.config.server import WatermarkConfig
from text_generation_server.distributed.group import init_group
from text_generation_server.engine.engine import Engine
from text_generation_server.engine.loading import choose_device
from text_generation_server.engine.options import EngineOptions, RunAhead
from text_generation_server.engine.requests import (
    Batch,
    CachedBatch,
    NextTokenChooserParameters,
    Request,
    ServingLimits,
    SlotRange,
    StepResult,
    StoppingCriteriaParameters,
    WarmupLimits,
)
from text_generation_server.models.registry import load_model

GREEDY = NextTokenChooserParameters()
TOP_P = NextTokenChooserParameters(do_sample=True, top_p=0.9, seed=1)
PREFILL_TOKENS = 8192


@dataclass
class Load:
    """Streams of one shape on one engine."""

    engine: Engine
    vocab_size: int
    next_id: int = 0

    def start(self, streams: int, input_length: int, new_tokens: int, parameters: NextTokenChooserParameters) -> Any:
        """Prefills all streams; returns the cached batches and the results of the prefills."""
        generator = torch.Generator().manual_seed(input_length)
        at_once = max(1, PREFILL_TOKENS // input_length)
        batches: list[CachedBatch] = []
        results: list[tuple[float, StepResult]] = []
        length = input_length + new_tokens
        for first in range(0, streams, at_once):
            requests = []
            for index in range(first, min(streams, first + at_once)):
                self.next_id += 1
                ids = torch.randint(self.vocab_size, (input_length,), generator=generator).tolist()
                stopping = StoppingCriteriaParameters(new_tokens, ignore_eos_token=True)
                slots = (SlotRange(index * length, length),)
                requests.append(Request(self.next_id, tuple(ids), parameters, stopping, slots))
            started = time.perf_counter()
            result = self.engine.prefill(Batch(self.next_id, tuple(requests)))
            results.append((time.perf_counter() - started, result))
            if result.failures or result.batch is None:
                sys.exit(f"prefill failed: {result.failures[:1]}")
            batches.append(result.batch)
        return batches, results

    def decode(self, batches: Sequence[CachedBatch], steps: int) -> list[tuple[float, StepResult]]:
        """At most so many steps, as the router calls them."""
        results = []
        for _ in range(steps):
            started = time.perf_counter()
            result = self.engine.decode(batches, [])
            results.append((time.perf_counter() - started, result))
            if result.batch is None:
                break
            batches = [result.batch]
        return results


def build(folder: Path, options: EngineOptions, limits: WarmupLimits) -> tuple[Engine, ServingLimits, dict[str, float]]:
    """An engine with random weights, warmed up, and what that took."""
    started = time.perf_counter()
    device = choose_device(0)
    config = ModelConfig.from_folder(folder)
    group = init_group(ParallelConfig(0, 1, "127.0.0.1", 29500), device, 120.0)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    with torch.inference_mode():
        model = load_model(folder, config, group, dtype, device, "dummy")
    engine = Engine(model, group, config.eos_token_ids, "triton", WatermarkConfig(), options)
    loaded = time.perf_counter()
    served = engine.warmup(limits)
    print(f"slots {served.max_batch_total_tokens}, longest {served.max_total_tokens}")
    return engine, served, {"load_s": loaded - started, "warmup_s": time.perf_counter() - loaded}


def median_ms(values: Sequence[float]) -> float:
    """Of seconds."""
    return round(statistics.median(values) * 1e3, 3) if values else float("nan")


def decode_case(load: Load, streams: int, length: int, steps: int, parameters: NextTokenChooserParameters) -> Any:
    """Medians over the middle of a decode; an engine that was just filled has prefills in its first steps."""
    batches, prefills = load.start(streams, length, steps, parameters)
    results = load.decode(batches, steps + 2)[4:-2]
    timings = [result.timings for _, result in results]
    forward = sum(t.forward_ns for t in timings)
    return {
        "streams": streams,
        "input": length,
        "sampling": "greedy" if not parameters.do_sample else "top-p 0.9",
        "step_ms": median_ms([seconds for seconds, _ in results]),
        "device_ms": median_ms([t.forward_ns / 1e9 for t in timings]),
        "idle_percent": round(100 * sum(t.idle_ns for t in timings) / max(1, forward), 2),
        "host_reply_ms": median_ms([t.decode_ns / 1e9 for t in timings]),
        "prefill_ms": median_ms([seconds for seconds, _ in prefills]),
        "prefill_device_ms": median_ms([r.timings.forward_ns / 1e9 for _, r in prefills]),
        "compilations": timings[-1].kernel_compilations if timings else 0,
    }


def profile(load: Load, streams: int, length: int, steps: int) -> tuple[list[dict[str, Any]], float]:
    """Device time by kernel of one decode step, and the percentage of the trace in which no kernel ran."""
    batches, _ = load.start(streams, length, 40, GREEDY)
    results = load.decode(batches, 10)
    batch = results[-1][1].batch
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        load.decode([batch] if batch else [], steps)
        torch.cuda.synchronize()
    load.engine.clear_cache(None)
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


def at_limits(engine: Engine, served: ServingLimits) -> dict[str, Any]:
    """Fills every row and every slot, with requests that ask for everything, and decodes; then the longest prompt.

    Running out of memory would end it with an error.
    """
    everything = NextTokenChooserParameters(
        do_sample=True, top_p=0.9, top_k=100, typical_p=0.95, repetition_penalty=1.1, frequency_penalty=0.1, seed=1
    )
    rows, steps = served.max_batch_size, 16
    share = min(served.max_total_tokens, served.max_batch_total_tokens // rows)
    length = min(share - steps, served.max_input_tokens)

    def request(number: int, tokens: int, slot: int, new: int) -> Request:
        slots = (SlotRange(slot, tokens + new),)
        stopping = StoppingCriteriaParameters(new, ignore_eos_token=True)
        return Request(number, (1,) * tokens, everything, stopping, slots, prefill_logprobs=True, top_n_tokens=5)

    batches: list[CachedBatch] = []
    at_once = max(1, PREFILL_TOKENS // length)
    for first in range(0, rows, at_once):
        members = range(first, min(rows, first + at_once))
        result = engine.prefill(Batch(first, tuple(request(n, length, n * share, steps) for n in members)))
        if result.failures or result.batch is None:
            sys.exit(f"prefill failed: {result.failures[:1]}")
        batches.append(result.batch)
    tokens = 0
    while batches:
        result = engine.decode(batches, [])
        tokens += sum(len(g.tokens.ids) for g in result.generations)
        batches = [] if result.batch is None else [result.batch]
    longest = served.max_input_tokens
    result = engine.prefill(Batch(-1, (request(rows, longest, 0, served.max_total_tokens - longest),)))
    engine.clear_cache(None)
    return {
        "rows": rows,
        "tokens_each": length + steps,
        "slots_used": rows * (length + steps),
        "slots": served.max_batch_total_tokens,
        "decoded": tokens,
        "longest_prompt": longest,
        "failures": len(result.failures),
    }


def main() -> None:
    """Runs what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--output-json", type=Path)
    parser.add_argument("--cases", default="1x512,8x1024,64x2048,256x1024", help="streams x input tokens")
    parser.add_argument("--prefills", default="16,128,512,2048,8192")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--max-total-tokens", type=int, default=16384)
    parser.add_argument("--profile", action="store_true", help="also list the kernels of a step")
    parser.add_argument("--deterministic", action="store_true")
    parser.add_argument("--at-limits", action="store_true", help="fill every row and slot instead of timing")
    parser.add_argument("--no-graphs", action="store_true")
    arguments = parser.parse_args()
    cuda = torch.cuda.is_available()
    graphs = () if arguments.no_graphs or not cuda else None
    options = EngineOptions(
        cuda_graphs=graphs,
        run_ahead=RunAhead.BEFORE_WAITING if cuda else RunAhead.NEVER,
        deterministic=arguments.deterministic,
    )
    cases = [tuple(int(n) for n in case.split("x")) for case in arguments.cases.split(",")]
    limits = WarmupLimits(
        PREFILL_TOKENS, max(streams for streams, _ in cases), max_total_tokens=arguments.max_total_tokens
    )
    engine, served, start = build(arguments.folder, options, limits)
    if arguments.at_limits:
        print("at the limits", json.dumps(at_limits(engine, served)), flush=True)
        return
    load = Load(engine, engine.info.vocab_size)
    result: dict[str, Any] = {"command": " ".join(sys.argv), "start": start, "decode": [], "prefill": []}
    print(json.dumps(start))
    for length in (int(n) for n in arguments.prefills.split(",")):
        rows = [decode_case(load, 1, length, 8, GREEDY) for _ in range(5)]
        row = {
            "input": length,
            "wall_ms": min(r["prefill_ms"] for r in rows),
            "device_ms": min(r["prefill_device_ms"] for r in rows),
        }
        result["prefill"].append(row)
        print("prefill", json.dumps(row), flush=True)
    for streams, length in cases:
        row = decode_case(load, streams, length, arguments.steps, GREEDY)
        result["decode"].append(row)
        print("decode", json.dumps(row), flush=True)
    streams, length = cases[min(2, len(cases) - 1)]
    row = decode_case(load, streams, length, arguments.steps, TOP_P)
    result["decode"].append(row)
    print("decode", json.dumps(row), flush=True)
    if arguments.profile and cuda:
        for streams, length in cases:
            rows, idle = profile(load, streams, length, 10)
            result[f"profile {streams}x{length}"] = {"idle_percent": idle, "kernels": rows}
            print(f"{streams} x {length}: idle {idle} % of the trace; kernels of one step:")
            for entry in rows:
                print(f"  {entry['us']:9.1f} us {entry['calls']:7.1f} {entry['kernel']}")
    if arguments.output_json:
        arguments.output_json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
