"""Breakdown of a step's time on every rank: matmuls, attention, all-reduces, the wait for other ranks, idle gaps.

    PYTHONPATH=server:kernels python3 benchmark/timeline.py FOLDER --ranks 2 --output-json result.json

FOLDER holds a config.json; weights are random. Each case runs equal steps two deep under torch's profiler, as
`engine.py` does; a prompt of more tokens than a step has is computed in several. A kernel counts from the end of the
previous kernel, because programmatic dependent launch lets it start earlier.

What an all-reduce takes longer on a rank than on the fastest rank counts as waiting: ranks do the same all-reduces in
the same order, and the last rank to come does not wait. Copies to other ranks run beside kernels and do not count. On a
machine without a GPU nothing is recorded, which only proves that the script runs.
"""

import argparse
import json
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import compact
import torch
import torch.multiprocessing as mp
from engine import PREFILL_TOKENS, Load, build, numbers

from text_generation_server.config.parallel import ParallelConfig
from text_generation_server.engine.options import EngineOptions
from text_generation_server.engine.requests import Chunk, WarmupLimits

PROMPT = 2048
"""Tokens of a prompt where a case does not say it."""
CLASSES = {
    "all-reduces": ("one_shot", "row_shot", "two_shot", "AllReduce", "add_norm_peer"),
    "attention": ("attention", "merge_kernel", "qkv_postprocess"),
    "GEMMs": (
        "skinny_linear",
        "small_hopper",
        "large_hopper",
        "nvjet",
        "gemm",
        "gemv",
        "xmma",
        "cutlass",
        "splitK",
    ),
    "norms and activations": ("rms_norm", "layer_norm", "act_and_mul", "activate", "quantise"),
}
"""Classes of kernels, by substrings of their names."""
BESIDE = ("PtoP", "announce")
TAIL, REST, WAITING, GAPS = "logits and sampling", "others", "waiting for other ranks", "gaps"


@dataclass(frozen=True)
class Kernel:
    """One that ran, in microseconds; `own` is the part in which no earlier one ran."""

    name: str
    gap: float
    own: float

    @property
    def kind(self) -> str:
        """By its name."""
        return next((kind for kind, parts in CLASSES.items() if any(part in self.name for part in parts)), REST)


def kernels_of(events: Iterable[tuple[str, float, float]]) -> list[Kernel]:
    """`events`: name, start and end."""
    ordered = sorted(events, key=lambda event: event[1])
    reached, found = (ordered[0][1] if ordered else 0.0), []
    for name, start, end in ordered:
        begin = max(start, reached)
        found.append(Kernel(name, begin - reached, max(0.0, end - begin)))
        reached = max(reached, end)
    return found


def tails(kernels: Sequence[Kernel], steps: int) -> list[range]:
    """Returns, for each step, the kernels from its last all-reduce to the sampling of tokens."""
    reduces = [index for index, kernel in enumerate(kernels) if kernel.kind == "all-reduces"]
    each = len(reduces) // steps
    found: list[range] = []
    for last in reduces[each - 1 :: each] if each else []:
        following = next((index for index in reduces if index > last), len(kernels))
        ends = [index for index in range(last, following) if "advance_state" in kernels[index].name]
        found.append(range(last + 1, max(ends, default=last) + 1))
    return found


def kinds(kernels: Sequence[Kernel], steps: int) -> list[str]:
    """Returns the class of each kernel, with one class for all tails."""
    found = [kernel.kind for kernel in kernels]
    for index in (index for tail in tails(kernels, steps) for index in tail):
        found[index] = TAIL
    return found


def shares(kernels: Sequence[Kernel], steps: int, fastest: Sequence[float]) -> dict[str, float]:
    """Sums milliseconds of one step by class. `fastest` has the microseconds of each all-reduce on the fastest rank."""
    total: Counter[str] = Counter()
    reduces = iter(fastest)
    for kernel, kind in zip(kernels, kinds(kernels, steps), strict=True):
        own = min(kernel.own, next(reduces, kernel.own)) if kind == "all-reduces" else kernel.own
        total[kind] += own
        total[WAITING] += kernel.own - own
        total[GAPS] += kernel.gap
    whole = sum(total.values())
    return {"step_ms": round(whole / steps / 1e3, 3)} | {
        kind: round(us / steps / 1e3, 3) for kind, us in sorted(total.items(), key=lambda item: -item[1])
    }


def by_name(kernels: Sequence[Kernel], steps: int) -> list[dict[str, Any]]:
    """The kernels that take most of a step."""
    total, calls = Counter[str](), Counter[str]()
    for kernel in kernels:
        total[kernel.name] += kernel.own
        calls[kernel.name] += 1
    return [
        {"kernel": name[:80], "calls": round(calls[name] / steps, 1), "us": round(us / steps, 1)}
        for name, us in total.most_common(14)
    ]


def recorded(run: Callable[[int], None], load: Load, steps: int, ranks: int) -> list[Kernel]:
    """The kernels of so many steps; those of the host's copies as well. `run` launches a step by its number.

    Of several ranks one step more is recorded before them and left out: they begin to record at different times.
    """
    before = min(1, ranks - 1)
    for step in range(steps):
        run(step)
    load.drain()
    if not torch.cuda.is_available():
        return []
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        for step in range(before + steps):
            run(steps + step)
        load.drain()
        torch.cuda.synchronize()
    on_device = torch.autograd.DeviceType.CUDA
    events = [event for event in profiler.events() or [] if event.device_type == on_device]
    events = [event for event in events if not any(name in event.name for name in BESIDE)]
    kernels = kernels_of((event.name, event.time_range.start, event.time_range.end) for event in events)
    return kernels[tails(kernels, before + steps)[0].stop :] if before else kernels


@dataclass(frozen=True)
class Case:
    """Steps of so many decodes after `length` tokens, and of `tokens` tokens of prompts of `prompt` tokens each."""

    streams: int
    length: int
    tokens: int
    prompt: int = PROMPT

    @property
    def prompts(self) -> list[int]:
        """Tokens of each prompt that a step computes."""
        return [min(self.prompt, self.tokens - first) for first in range(0, self.tokens, self.prompt)]

    @property
    def parts(self) -> int:
        """Steps that compute one prompt."""
        return max(1, self.prompt // self.tokens) if self.tokens else 1

    def steps(self, least: int) -> int:
        """At least so many, that compute whole prompts."""
        return -(-least // self.parts) * self.parts


def kernels_of_case(load: Load, case: Case, steps: int, ranks: int) -> list[Kernel]:
    """As `recorded`, of so many steps of `case`."""
    streams, prompts, parts = case.streams, case.prompts, case.parts
    slots = max(case.length + 2 * steps + 2, case.prompt + 1)
    if streams:
        load.fill(streams, case.length, slots)
    places = [[streams + len(prompts) * turn + index for index in range(len(prompts))] for turn in range(2)]
    held: list[int] = []

    def run(step: int) -> None:
        part, rows = step % parts, places[step // parts % 2]
        each = list(zip(rows, prompts, strict=True))
        chunks = [Chunk(row, part * count, count) for row, count in each]
        if part == 0:
            admit = [load.request(row, parts * count, slots) for row, count in each]
            load.send(drop=list(held), admit=admit, chunks=chunks, decode=range(streams))
            held[:] = rows
        else:
            load.send(chunks=chunks, decode=range(streams))

    kernels = recorded(run, load, steps, ranks)
    load.clear()
    return kernels


def work(rank: int, arguments: argparse.Namespace, meeting: str) -> None:
    """One rank: runs all cases, and leaves its kernels for the first one. Ends the process where there are several."""
    if rank > 0:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - until the process ends
    parallel = ParallelConfig(rank, arguments.ranks, Path(meeting) / "rendezvous", not arguments.nccl)
    cases = [Case(*each) for each in numbers(arguments.cases)]
    rows = max(case.streams + 2 * len(case.prompts) for case in cases)
    prefill = max(PREFILL_TOKENS, max(case.tokens for case in cases))
    graphs = None if torch.cuda.is_available() else ()
    overlap = None if arguments.overlap is None else arguments.overlap << 10
    limits = WarmupLimits(prefill, rows, max_total_tokens=arguments.max_total_tokens, prefill_chunking=True)
    engine, warmed, start = build(arguments.folder, EngineOptions(cuda_graphs=graphs), limits, parallel, overlap)
    load = Load(engine, engine.info.vocab_size)
    cost = warmed.cost
    times = dict(zip(cost.tokens, (round(ms, 3) for ms in cost.times_ms), strict=True))
    start |= {"times_ms": times, "pair_ns": cost.pair_ns, "context_ns": cost.context_ns}
    print(json.dumps(start), flush=True)
    result: dict[str, Any] = {"command": " ".join(sys.argv), "ranks": arguments.ranks, "start": start, "cases": []}
    if torch.cuda.is_available():
        result["device"] = torch.cuda.get_device_name()
    for index, case in enumerate(cases):
        steps = case.steps(arguments.steps)
        kernels = kernels_of_case(load, case, steps, arguments.ranks)
        mine = [kernel.own for kernel in kernels if kernel.kind == "all-reduces"]
        own = Path(meeting) / f"{index}-{rank}.json"
        own.write_text(json.dumps(mine))
        engine_barrier(load)
        everyone = [json.loads((Path(meeting) / f"{index}-{r}.json").read_text()) for r in range(arguments.ranks)]
        alike = len({len(each) for each in everyone}) == 1
        fastest = [min(each) for each in zip(*everyone, strict=True)] if alike else mine
        own.with_suffix(".shares").write_text(json.dumps(shares(kernels, steps, fastest)))
        engine_barrier(load)
        by_rank = [json.loads((Path(meeting) / f"{index}-{r}.shares").read_text()) for r in range(arguments.ranks)]
        row = {"decodes": case.streams, "context": case.length, "prompt_tokens": case.tokens, "prompt": case.prompt}
        row |= {"ranks": by_rank}
        print(json.dumps(row), flush=True)
        names = by_name(kernels, steps)
        for entry in names:
            print(f"  {entry['us']:9.1f} us {entry['calls']:7.1f} {entry['kernel']}", flush=True)
        result["cases"].append(row | {"kernels": names})
    if arguments.output_json and rank == 0:
        arguments.output_json.write_text(compact.dumps(result))
    if arguments.ranks > 1:
        sys.stdout.flush()
        os._exit(0)


def engine_barrier(load: Load) -> None:
    """Waits for all ranks: a step of one decode, which has reduces, and its reply."""
    slots = PROMPT + 1
    load.fill(1, 2, slots)
    load.send(decode=[0])
    load.clear()


def main() -> None:
    """Runs what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--output-json", type=Path)
    cases = "1x512x0,64x2048x0,0x0x512,64x2048x1472,64x2048x1984,64x2048x4032"
    parser.add_argument("--cases", default=cases, help="decodes x their tokens x tokens of prompts [x of each prompt]")
    parser.add_argument("--steps", type=int, default=6, help="that are recorded")
    parser.add_argument("--max-total-tokens", type=int, default=4096)
    parser.add_argument("--ranks", type=int, default=1, help="processes, one a device")
    parser.add_argument("--overlap", type=int, help="messages of so many KiB and more run beside GEMMs")
    parser.add_argument("--nccl", action="store_true", help="all-reduce through NCCL alone")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as meeting:
        if arguments.ranks == 1:
            work(0, arguments, meeting)
        else:
            mp.spawn(work, (arguments, meeting), nprocs=arguments.ranks)


if __name__ == "__main__":
    main()
