"""Shards are lost again and again under load: every answer must be the one of an undisturbed server.

    python soak.py losses --rounds 100 --num-shard 2
    python soak.py load --minutes 60 --num-shard 1

`losses` runs as many streams as are asked for at once, kills a shard (SIGKILL) at a random step, each rank in turn,
and does that again and again. Its rounds can be divided among processes that run side by side, each with a server of
its own, and added up afterwards:

    python soak.py losses --rounds 25 --first 0 --report 0.json & python soak.py losses --rounds 25 --first 25 ...
    python soak.py sum *.json

`load` sends requests at random times, at a part of what the server can do, lets some clients go away in the middle of
their answers, and kills a shard every ten minutes; it watches memory, descriptors and threads of every process.
Both find the installed commands by PATH, take the demo model unless another folder is named, and print JSON at the
end; the exit code is 1 where a token was wrong or missing. They take long and are no part of the suite.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from harness import DEMO, alive, serving
from soak_load import load
from soak_losses import added, losses, summary

# As many losses as come: what is asked is whether a token gets lost.
FLAGS = ["--deterministic", "--max-shard-losses", "1000000", "--standby-shards", "true"]


def command_line() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="what", required=True)
    both = argparse.ArgumentParser(add_help=False)
    both.add_argument("--model", type=Path, default=DEMO, help="folder")
    both.add_argument("--num-shard", type=int, default=1)
    both.add_argument("--streams", type=int, default=64, help="streams at once, or different requests of the load")
    both.add_argument("--tokens", type=int, default=48)
    both.add_argument("--seed", type=int, default=0)
    both.add_argument("--minutes", type=float, default=0.0, help="of the load; most of the rounds, 0: no limit")
    both.add_argument("--report", type=Path, help="file for the JSON; `losses` writes it after each round too")
    rounds = commands.add_parser("losses", parents=[both])
    rounds.add_argument("--rounds", type=int, default=100)
    rounds.add_argument("--first", type=int, default=0, help="number of the first round")
    soak = commands.add_parser("load", parents=[both])
    soak.add_argument("--load", type=float, default=0.7, help="part of the capacity that is sent")
    soak.add_argument("--cancelled", type=float, default=0.1, help="part of the requests that clients give up")
    soak.add_argument("--kill-every", type=float, default=600.0, help="seconds")
    soak.add_argument("--clients", type=int, default=16, help="at once, to measure the capacity")
    soak.add_argument("--measured-seconds", type=float, default=30.0)
    commands.add_parser("sum").add_argument("reports", type=Path, nargs="+", help="of `losses`")
    return parser


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """The report of a server from its start to its end."""
    flags = [*FLAGS, "--num-shard", str(arguments.num_shard), "--max-concurrent-requests", "512"]
    what = losses if arguments.what == "losses" else load
    with tempfile.TemporaryDirectory() as folder, serving(arguments.model, Path(folder), *flags) as server:
        report = {"command": " ".join(sys.argv), **asyncio.run(what(server, arguments))}
        report["launcher_alive"] = alive(server.process.pid)
        report["starts_again"] = server.output().count("restarting all shards")
        report["exit_code"] = server.stop()
    if arguments.report:
        arguments.report.write_text(json.dumps(report, indent=1))
    return report


def main() -> None:
    """Runs what the command line asks for."""
    arguments = command_line().parse_args()
    if arguments.what == "sum":
        sums = added(arguments.reports)
        print(json.dumps(sums, indent=1))
        sys.exit(any(each["not_equal"] for each in sums))
    report = run(arguments)
    if arguments.what == "losses":
        report |= summary(report["rounds"])
    print(json.dumps(report, indent=1))
    counts = report.get("counts", {})
    wrong = report.get("not_equal") or any(kind.startswith(("wrong", "failed")) for kind in counts)
    sys.exit(1 if wrong or report["exit_code"] else 0)


if __name__ == "__main__":
    main()
