"""Times a chat before it is queued: rendering the template, and tokenising the prompt.

    .venv/bin/python benchmark/chat.py [FOLDER] [--tokens 4096]

FOLDER is a model folder with tokenizer and chat template; the demo model by default. The turns are stories of the
demo model's grammar, other ones in each run. Prints JSON.
"""

import argparse
import os
import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import compact

from text_generation_router import ChatTemplate, Tokenizer

DEMO = Path(__file__).parent.parent / "models" / "demo"
RUNS = 50

sys.path.insert(0, str(DEMO))
from grammars import stories  # noqa: E402


def conversation(generator: random.Random, count: Callable[[str], int], tokens: int) -> list[dict[str, str]]:
    """Turns of a story each until they have so many tokens."""
    messages: list[dict[str, str]] = []
    total = 0
    while total < tokens:
        content = stories.story(generator, stories.cast(generator))
        messages.append({"role": "user" if len(messages) % 2 == 0 else "assistant", "content": content})
        total += count(content)
    return messages if len(messages) % 2 else messages[:-1]


def main() -> None:
    """Runs what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=DEMO)
    parser.add_argument("--tokens", type=int, default=4096)
    arguments = parser.parse_args()
    template = ChatTemplate.load(str(arguments.folder))
    if template is None:
        sys.exit(f"{arguments.folder} has no chat template")
    tokenizer = Tokenizer.from_file(str(arguments.folder / "tokenizer.json"))
    generator = random.Random(1)
    rendering, encoding, lengths = [], [], []
    for _ in range(RUNS):
        messages = conversation(generator, lambda text: len(tokenizer.encode(text)), arguments.tokens)
        started = time.perf_counter()
        prompt = template.render(messages)
        rendered = time.perf_counter()
        ids = tokenizer.encode(prompt, add_special_tokens=False)
        encoding.append(time.perf_counter() - rendered)
        rendering.append(rendered - started)
        lengths.append(len(ids))
    both = sorted(a + b for a, b in zip(rendering, encoding, strict=True))
    report = {
        "command": " ".join(["python benchmark/chat.py", *sys.argv[1:]]),
        "cores": len(os.sched_getaffinity(0)),
        "prompt_tokens": round(statistics.mean(lengths)),
        "render_ms_p50": round(statistics.median(rendering) * 1e3, 3),
        "encode_ms_p50": round(statistics.median(encoding) * 1e3, 3),
        "both_ms_p50": round(statistics.median(both) * 1e3, 3),
        "both_ms_p90": round(both[int(0.9 * RUNS)] * 1e3, 3),
    }
    print(compact.dumps(report), end="")


if __name__ == "__main__":
    main()
