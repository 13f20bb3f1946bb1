"""Recovery times: how long streams wait when a shard is killed, and how long a server takes to stop.

    python3 benchmark/recovery.py FOLDER --output-json results.json [--num-shard 2] [flags of the launcher]

FOLDER is one of `benchmark/models/make.py`; weights are random, and the same in each start. Streams run once
undisturbed. Then each shard in turn is killed (SIGKILL) while the same streams run: the longest gap between two tokens
is what their clients feel, and their tokens are compared with the undisturbed ones. Without `--deterministic` they may
differ, because positions that are computed again may differ in their last bits.
"""

import argparse
import json
import os
import signal
import sys
import tempfile
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import compact
from bars import PORT, URL, served

TIMEOUT_S = 120.0


@dataclass
class Stream:
    """The tokens of one stream, and when each came."""

    ids: list[int] = field(default_factory=list)
    times: list[float] = field(default_factory=list)

    @property
    def longest_gap(self) -> float:
        """Seconds between two tokens that followed each other."""
        return max((after - before for before, after in zip(self.times, self.times[1:], strict=False)), default=0.0)

    def read(self, number: int, tokens: int) -> None:
        """Runs the stream to its end."""
        body = {"inputs": "ab cd ef " * 8 + str(number), "parameters": {"max_new_tokens": tokens, "details": True}}
        if number % 2:
            body["parameters"] |= {"do_sample": True, "seed": number, "temperature": 0.9}
        request = urllib.request.Request(
            f"{URL}/generate_stream", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as reply:
            for line in reply:
                if line.startswith(b"data:") and "token" in (event := json.loads(line[5:])):
                    self.times.append(time.monotonic())
                    self.ids.append(event["token"]["id"])


def shard_processes() -> dict[int, int]:
    """Process ids of the running shards by rank: children of the launcher that listens on our port, of which those on
    standby are the younger ones.
    """
    found: dict[int, tuple[int, int]] = {}
    for process in filter(str.isdigit, os.listdir("/proc")):
        try:
            stat = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
            parent, begun = stat[1], int(stat[19])
            launcher = Path(f"/proc/{parent}/cmdline").read_text().split("\0")
            arguments = Path(f"/proc/{process}/cmdline").read_text().split("\0")
            environment = Path(f"/proc/{process}/environ").read_text().split("\0")
        except (OSError, ValueError):
            continue
        if "--uds-path" in arguments and str(PORT) in launcher:
            rank = next((each.removeprefix("RANK=") for each in environment if each.startswith("RANK=")), "0")
            candidate = (begun, int(process))
            found[int(rank)] = min(found.get(int(rank), candidate), candidate)
    return {rank: process for rank, (_, process) in found.items()}


def run(streams: int, tokens: int, kill_rank: int | None) -> list[Stream]:
    """All streams at once; the shard is killed once half of the tokens of the farthest are there."""
    loads = [Stream() for _ in range(streams)]
    # Looked up before: with many processes that takes longer than a short stream.
    victim = None if kill_rank is None else shard_processes()[kill_rank]

    def kill(process: int) -> None:
        while max(len(load.ids) for load in loads) < tokens // 2:
            time.sleep(0.001)
        os.kill(process, signal.SIGKILL)

    killer = None if victim is None else threading.Thread(target=kill, args=(victim,))
    with ThreadPoolExecutor(streams) as pool:
        running = [pool.submit(load.read, number, tokens) for number, load in enumerate(loads)]
        if killer is not None:
            killer.start()
            killer.join(TIMEOUT_S)
        for each in running:
            each.result()
    return loads


def measure(arguments: argparse.Namespace, flags: list[str]) -> dict[str, Any]:
    """The report, printed as it comes."""
    log = Path(os.environ.get("OUT", tempfile.gettempdir())) / "recovery-server.log"
    report: dict[str, Any] = {"command": " ".join(sys.argv), "streams": arguments.streams, "kills": []}
    with served(arguments.folder, flags, log) as seconds:
        report["start_to_first_token_s"] = round(seconds, 2)
        undisturbed = run(arguments.streams, arguments.tokens, None)
        report["longest_gap_undisturbed_s"] = round(max(load.longest_gap for load in undisturbed), 3)
        for rank in range(arguments.num_shard):
            loads = run(arguments.streams, arguments.tokens, rank)
            equal = sum(load.ids == before.ids for load, before in zip(loads, undisturbed, strict=True))
            whole = sum(len(load.ids) == arguments.tokens for load in loads)
            gap = round(max(load.longest_gap for load in loads), 2)
            report["kills"].append({"rank": rank, "longest_gap_s": gap, "whole": whole, "same_tokens": equal})
            print(json.dumps(report["kills"][-1]), flush=True)
        stopped = time.monotonic()
    report["sigterm_to_end_s"] = round(time.monotonic() - stopped, 2)
    print(json.dumps(report), flush=True)
    return report


def main() -> None:
    """Runs what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--output-json", type=Path)
    parser.add_argument("--num-shard", type=int, default=1)
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=400)
    arguments, flags = parser.parse_known_args()
    flags += ["--load-format", "dummy", "--num-shard", str(arguments.num_shard)]
    # As many losses as that end the server, by default three.
    flags += ["--max-shard-losses", str(arguments.num_shard + 1)]
    report = measure(arguments, flags)
    if arguments.output_json:
        arguments.output_json.write_text(compact.dumps(report))


if __name__ == "__main__":
    main()
