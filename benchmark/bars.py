"""Runs the throughput and latency bars of a model through HTTP: starts the launcher, drives it, prints a table.

    python3 benchmark/bars.py FOLDER --output-json results.json [--cases one,long,...]

FOLDER is one of `benchmark/models/make.py`; weights are random by default. `text-generation-launcher` and
`text-generation-benchmark` must be on the path; flags that this program does not know go to the launcher. Start-up is
from the launcher's first instruction to the first token.
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import compact

PORT = 3210
URL = f"http://127.0.0.1:{PORT}"


@dataclass(frozen=True)
class Bar:
    """One figure of a case. `part` is a percentile of a latency, or empty for a rate or the duration."""

    group: str
    part: str
    bar: float
    peer: float
    """vLLM 0.26.0, measured on such a machine."""

    def value(self, point: dict[str, Any]) -> float:
        """Of a point of the benchmark's report, in milliseconds, in a second, or in seconds."""
        if self.group == "duration_s":
            return point["duration_s"]
        return point["latency_ms"][self.group][self.part] if self.part else point["rates"][self.group]


@dataclass(frozen=True)
class Case:
    """One load, and the figures that its bars are about. `again`: the same prompts as the case before it.

    A bar of NaN is none of its own: it is the figure that another case is compared with.
    """

    requests: int
    input_length: int
    output_length: int
    bars: tuple[Bar, ...]
    load: tuple[str, ...]
    warmup: int = 2
    again: bool = False
    schema: bool = False
    """The answers are held to a JSON schema; without it they are free text."""


def closed(concurrency: int) -> tuple[str, ...]:
    """So many clients, each with one request at a time."""
    return ("--concurrency", str(concurrency))


RATE = "output_tokens_per_s"
NONE = float("nan")

STRINGS = {
    "type": "array",
    "minItems": 1,
    "items": {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]},
}
"""With random weights the first string goes on to the limit of tokens, and each of its tokens has a mask."""
RESPONSE_FORMAT = {"type": "json_schema", "json_schema": {"name": "strings", "schema": STRINGS}}


def constrained(concurrency: int, schema: bool) -> Case:
    """As many clients as requests, 128 tokens in and 256 out, with or without a JSON schema."""
    requests = max(8, concurrency)
    return Case(requests, 128, 256, (Bar("tpot", "p50", NONE, NONE),), closed(concurrency), schema=schema)


CASES = {
    "one": Case(8, 512, 128, (Bar("tpot", "p50", 4.1, 4.90),), closed(1)),
    "ttft512": Case(20, 512, 4, (Bar("ttft", "p50", 14.0, 21.1),), closed(1)),
    "ttft8k": Case(10, 8192, 4, (Bar("ttft", "p50", 210.0, 216.0),), closed(1)),
    "prefixes": Case(
        512,
        128,
        128,
        (Bar(RATE, "", 6500, 5539),),
        (*closed(64), "--prefix-groups", "16", "--prefix-length", "2048"),
    ),
    "long10k": Case(20, 10_000, 50, (Bar("duration_s", "", 5.2, 6.10),), closed(10), 0),
    "long10k_again": Case(20, 10_000, 50, (Bar("duration_s", "", 0.8, 1.06),), closed(10), 0, again=True),
    "long": Case(128, 2048, 256, (Bar("itl", "p99", 30, 199), Bar("duration_s", "", 9.8, 10.9)), closed(64), 0),
    "burst": Case(256, 512, 128, (Bar(RATE, "", 7600, 6599), Bar("itl", "p99", 40, 212)), closed(256), 0),
    "throughput": Case(256, 1024, 1024, (Bar(RATE, "", 10600, 9620), Bar("itl", "p99", 40, 192)), closed(256), 0),
    "poisson": Case(
        360,
        1024,
        256,
        (Bar("ttft", "p50", 32, 45), Bar("ttft", "p99", 80, 131), Bar("itl", "p99", 16, 25.9)),
        ("--request-rate", "12", "--arrival", "poisson"),
    ),
    **{
        f"{'schema' if schema else 'free'}{concurrency}": constrained(concurrency, schema)
        for concurrency in (1, 64, 256)
        for schema in (False, True)
    },
}


@contextlib.contextmanager
def served(folder: Path, flags: list[str], log: Path, max_total_tokens: int = 16384) -> Iterator[float]:
    """A server of `folder`; gives the seconds from its start to its first token."""
    command = [
        "text-generation-launcher",
        *("--model-id", str(folder), "--port", str(PORT)),
        *("--max-concurrent-requests", "1024", "--max-batch-size", "256"),
        *("--max-total-tokens", str(max_total_tokens)),
        *flags,
    ]
    print(" ".join(command), flush=True)
    started = time.monotonic()
    with log.open("w") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        try:
            while not answers():
                if process.poll() is not None or time.monotonic() - started > 300:
                    sys.exit(f"the server did not start: {log.read_text()[-3000:]}")
                time.sleep(0.05)
            yield time.monotonic() - started
        finally:
            process.terminate()
            process.wait(60)


def answers() -> bool:
    """Whether a token comes back."""
    body = json.dumps({"inputs": "a", "parameters": {"max_new_tokens": 1}}).encode()
    request = urllib.request.Request(f"{URL}/generate", body, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as reply:
            return "generated_text" in json.load(reply)
    except (urllib.error.URLError, ConnectionError):
        return False


def run(case: Case, folder: Path, api: str, seed: int) -> dict[str, Any]:
    """The report of the load, whose prompts follow from `seed`."""
    with tempfile.NamedTemporaryFile(suffix=".json") as report:
        command = [
            *("text-generation-benchmark", "server", "--url", URL, "--api", api, "--no-tui"),
            *("--tokenizer-path", str(folder), "--output-json", report.name),
            *(*case.load, "--requests", str(case.requests)),
            *("--input-length", str(case.input_length), "--output-length", str(case.output_length)),
            *("--warmup", str(case.warmup), "--seed", str(seed)),
            *(("--extra-body", json.dumps({"response_format": RESPONSE_FORMAT})) if case.schema else ()),
        ]
        finished = subprocess.run(command, capture_output=True, text=True, check=False)
        if finished.returncode:
            print(finished.stdout[-1500:], finished.stderr[-1500:])
        return json.loads(Path(report.name).read_text() or "{}")


def mean_ms(before: dict[str, float], after: dict[str, float], name: str) -> float:
    """Mean of a histogram between two readings."""
    total, count = (after.get(key, 0.0) - before.get(key, 0.0) for key in (name.format("sum"), name.format("count")))
    return round(1000 * total / max(count, 1.0), 3)


def waits(before: dict[str, float], after: dict[str, float]) -> dict[str, float]:
    """Constrained steps between two readings, and those whose masks came after the forward pass, with their time."""

    def grown(name: str) -> float:
        return after.get(name, 0.0) - before.get(name, 0.0)

    steps, late = grown("tgi_grammar_steps"), grown("tgi_grammar_mask_wait_duration_count")
    return {
        "steps": steps,
        "waited": late,
        "waited_percent": round(100 * late / max(steps, 1.0), 3),
        "waited_ms": round(1000 * grown("tgi_grammar_mask_wait_duration_sum"), 3),
    }


def verdict(name: str, report: dict[str, Any]) -> str:
    """One line: the figure beside its bar and the peer's, then the other figures."""
    if not report.get("points"):
        return f"{name}: no result"
    point = report["points"][0]
    figures = [
        f"{bar.group} {bar.part} {bar.value(point):.2f} (bar {bar.bar}, vLLM {bar.peer})" for bar in CASES[name].bars
    ]
    others = {key: f"{d['p50']:.2f}/{d['p99']:.2f}" for key, d in point["latency_ms"].items()}
    rates = {key: round(rate, 1) for key, rate in point["rates"].items()}
    masks = f"steps with masks {report['masks']}; " if "masks" in report else ""
    return (
        f"{name}: {', '.join(figures)}; {point['duration_s']:.2f} s; p50/p99 {others}; {rates}; "
        f"device ms {report['device_ms']}; {masks}failed {point['failed']}; {'; '.join(point['notes'])}"
    )


ENGINE = (
    "compilations",
    "idle",
    "prefix_cache",
    "paused",
    "grammar",
    "tgi_batch_forward_duration_sum",
    "tgi_batch_forward_duration_count",
)
"""Parts of the names of its metrics."""


def metrics(wanted: tuple[str, ...] = ENGINE) -> dict[str, float]:
    """Figures that the server itself reports, whose names have one of these parts."""
    with urllib.request.urlopen(f"{URL}/metrics", timeout=10) as reply:
        lines = reply.read().decode().splitlines()
    return {
        line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1])
        for line in lines
        if not line.startswith("#") and "bucket" not in line and any(part in line for part in wanted)
    }


def main() -> None:
    """Runs what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--output-json", type=Path)
    parser.add_argument("--cases", default=",".join(CASES), help="names with commas between them; empty: start only")
    parser.add_argument("--api", default="openai", choices=["openai", "tgi"])
    parser.add_argument("--load-format", default="dummy", choices=["dummy", "safetensors"])
    parser.add_argument("--num-shard", type=int, default=1)
    arguments, flags = parser.parse_known_args()
    flags += ["--load-format", arguments.load_format, "--num-shard", str(arguments.num_shard)]
    log = Path(os.environ.get("OUT", tempfile.gettempdir())) / "server.log"
    result: dict[str, Any] = {"command": " ".join(sys.argv), "cases": {}}
    with served(arguments.folder, flags, log) as seconds:
        result["start_to_first_token_s"] = round(seconds, 2)
        print(f"start to first token: {seconds:.1f} s", flush=True)
        seed = int(time.time())
        for name in filter(None, arguments.cases.split(",")):
            before = metrics()
            seed += not CASES[name].again
            report = run(CASES[name], arguments.folder, arguments.api, seed)
            # Mean device milliseconds of a prefill and of a decode step, to tell them from the way there and back.
            after = metrics()
            report["device_ms"] = {
                method: mean_ms(before, after, f'tgi_batch_forward_duration_{{}}{{{{method="{method}"}}}}')
                for method in ("prefill", "decode")
            }
            if CASES[name].schema:
                report["masks"] = waits(before, after)
            result["cases"][name] = report
            print(verdict(name, report), flush=True)
        result["metrics"] = metrics()
        print(json.dumps(result["metrics"]))
    if arguments.output_json:
        arguments.output_json.write_text(compact.dumps(result))


if __name__ == "__main__":
    main()
