"""Work beside threads that compute steps: calls that leave the interpreter's lock, as those that read, hash and compare
many bytes do, in several threads, and pauses in what holds it.
"""

import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import TypeVar

_MOST_THREADS = 8
_PAUSE_S = 2e-5
"""Until another thread has woken up: one that merely leaves the lock has it again before."""
Item = TypeVar("Item")
Result = TypeVar("Result")


def in_threads(function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    """Returns the results of all items, in their order. Raises what one of the calls raises."""
    threads = min(_MOST_THREADS, os.cpu_count() or 1, len(items))
    if threads < 2:
        return [function(item) for item in items]
    # Each thread takes the next item that nobody has. A call of the pool for each takes as long as hashing 50 kB.
    places = iter(range(len(items)))
    with ThreadPoolExecutor(threads) as pool:
        shares = list(pool.map(lambda _: [(place, function(items[place])) for place in places], range(threads)))
    results = dict(chain.from_iterable(shares))
    return [results[place] for place in range(len(items))]


def give_way() -> None:
    """Lets a thread that waits for the interpreter's lock go on: without forced switches, which come after 5 ms."""
    time.sleep(_PAUSE_S)
