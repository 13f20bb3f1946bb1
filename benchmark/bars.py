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

PORT = 3210
URL = f"http://127.0.0.1:{PORT}"


@dataclass(frozen=True)
class Case:
    """One line of the table: a load, and the figure that its bar is about."""

    concurrency: int
    requests: int
    input_length: int
    output_length: int
    figure: tuple[str, str]
    bar: float
    peer: float
    """vLLM 0.26.0 on such a machine."""
    warmup: int = 2


CASES = {
    "one": Case(1, 8, 512, 128, ("tpot", "p50"), 4.4, 4.84),
    "long": Case(64, 64, 2048, 256, ("itl", "p50"), 9.3, 9.72, 64),
    "burst": Case(256, 256, 512, 128, ("output_tokens_per_s", ""), 7100, 6425, 256),
    "throughput": Case(256, 512, 1024, 1024, ("output_tokens_per_s", ""), 9700, 9278, 0),
    "ttft512": Case(1, 20, 512, 4, ("ttft", "p50"), 15.0, 19.6),
    "ttft8k": Case(1, 10, 8192, 4, ("ttft", "p50"), 222.0, 228.6),
}


@contextlib.contextmanager
def served(folder: Path, flags: list[str], log: Path) -> Iterator[float]:
    """A server of `folder` with random weights; gives the seconds from its start to its first token."""
    command = [
        "text-generation-launcher",
        *("--model-id", str(folder), "--port", str(PORT)),
        *("--max-concurrent-requests", "1024", "--max-batch-size", "256", "--max-total-tokens", "16384"),
        *("--max-input-tokens", "8192", "--max-batch-prefill-tokens", "8192"),
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


def run(case: Case, folder: Path, api: str) -> dict[str, Any]:
    """The point of the report that the load gave."""
    with tempfile.NamedTemporaryFile(suffix=".json") as report:
        command = [
            *("text-generation-benchmark", "server", "--url", URL, "--api", api, "--no-tui"),
            *("--tokenizer-path", str(folder), "--output-json", report.name),
            *("--concurrency", str(case.concurrency), "--requests", str(case.requests)),
            *("--input-length", str(case.input_length), "--output-length", str(case.output_length)),
            *("--warmup", str(case.warmup), "--seed", str(int(time.time()))),
        ]
        finished = subprocess.run(command, capture_output=True, text=True, check=False)
        if finished.returncode:
            print(finished.stdout[-1500:], finished.stderr[-1500:])
        return json.loads(Path(report.name).read_text() or "{}")


def mean_ms(before: dict[str, float], after: dict[str, float], name: str) -> float:
    """Mean of a histogram between two readings."""
    total, count = (after.get(key, 0.0) - before.get(key, 0.0) for key in (name.format("sum"), name.format("count")))
    return round(1000 * total / max(count, 1.0), 3)


def verdict(name: str, report: dict[str, Any]) -> str:
    """One line: the figure beside its bar and the peer's, then the other figures."""
    case = CASES[name]
    if not report.get("points"):
        return f"{name}: no result"
    point = report["points"][0]
    group, part = case.figure
    value = point["latency_ms"][group][part] if part else point["rates"][group]
    others = {key: f"{d['p50']:.2f}/{d['p99']:.2f}" for key, d in point["latency_ms"].items()}
    rates = {key: round(rate, 1) for key, rate in point["rates"].items()}
    return (
        f"{name}: {group} {part} {value:.2f} (bar {case.bar}, vLLM {case.peer}); p50/p99 {others}; {rates}; "
        f"device ms {report['device_ms']}; failed {point['failed']}; {'; '.join(point['notes'])}"
    )


def metrics() -> dict[str, float]:
    """Figures of the engine that the server itself reports."""
    with urllib.request.urlopen(f"{URL}/metrics", timeout=10) as reply:
        lines = reply.read().decode().splitlines()
    wanted = ("compilations", "idle", "tgi_batch_forward_duration_sum", "tgi_batch_forward_duration_count")
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
        for name in filter(None, arguments.cases.split(",")):
            before = metrics()
            report = run(CASES[name], arguments.folder, arguments.api)
            # Mean device milliseconds of a prefill and of a decode step, to tell them from the way there and back.
            report["device_ms"] = {
                method: mean_ms(before, metrics(), f'tgi_batch_forward_duration_{{}}{{{{method="{method}"}}}}')
                for method in ("prefill", "decode")
            }
            result["cases"][name] = report
            print(verdict(name, report), flush=True)
        result["metrics"] = metrics()
        print(json.dumps(result["metrics"]))
    if arguments.output_json:
        arguments.output_json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
