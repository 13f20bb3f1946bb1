"""Check that several shards give the greedy tokens of one.

    python3 benchmark/ranks.py FOLDER --shards 1,2,4 --output-json results.json [flags of the launcher]

Starts a server for each number of shards, one after the other, sends every one the same prompts at once, and counts the
answers that equal those of the first server. FOLDER is a model, or one of `benchmark/models/make.py` with
`--load-format dummy`: random weights depend on their names alone, so all servers have the same. In 16 bits random
weights leave the best two tokens so close that rounding decides between them; `--dtype float32` tells a wrong rank from
a rounded one.
"""

import argparse
import json
import os
import sys
import tempfile
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import compact
from bars import URL, served

TIMEOUT_S = 120.0


def greedy_ids(prompt: str, tokens: int) -> list[int]:
    """The ids of one greedy answer."""
    parameters = {"max_new_tokens": tokens, "details": True, "ignore_eos": True}
    body = json.dumps({"inputs": prompt, "parameters": parameters}).encode()
    request = urllib.request.Request(f"{URL}/generate", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as reply:
        return [token["id"] for token in json.load(reply)["details"]["tokens"]]


def agreement(ids: list[list[int]], expected: list[list[int]]) -> dict[str, int]:
    """How many answers are equal from end to end, and how many of their tokens come before the first difference."""
    common = [
        next((index for index, (a, b) in enumerate(zip(one, other, strict=True)) if a != b), len(one))
        for one, other in zip(ids, expected, strict=True)
    ]
    whole = sum(length == len(one) for length, one in zip(common, ids, strict=True))
    return {"answers": len(ids), "equal": whole, "tokens": sum(map(len, ids)), "equal_tokens": sum(common)}


def main() -> None:
    """Runs what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--output-json", type=Path)
    parser.add_argument("--shards", default="1,2,4", help="numbers of shards with commas between them")
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=64)
    arguments, flags = parser.parse_known_args()
    report: dict[str, Any] = {"command": " ".join(sys.argv), "shards": {}}
    prompts = [
        "Once upon a time there was " + "ab cd ef " * (3 * number) + str(number) for number in range(arguments.prompts)
    ]
    expected: list[list[int]] | None = None
    for shards in arguments.shards.split(","):
        log = Path(os.environ.get("OUT", tempfile.gettempdir())) / f"ranks-{shards}.log"
        server = served(arguments.folder, [*flags, "--num-shard", shards], log)
        with server as seconds, ThreadPoolExecutor(arguments.prompts) as pool:
            ids = list(pool.map(lambda prompt: greedy_ids(prompt, arguments.tokens), prompts))
        expected = expected or ids
        report["shards"][shards] = {"start_to_first_token_s": round(seconds, 2), **agreement(ids, expected)}
        print(shards, json.dumps(report["shards"][shards]), flush=True)
    if arguments.output_json:
        arguments.output_json.write_text(compact.dumps(report))


if __name__ == "__main__":
    main()
