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
_SHARES = 8
"""Of a thread: who is done first takes more of them."""
_PAUSE_S = 2e-5
"""Until another thread has woken up: one that merely leaves the lock has it again before."""
Item = TypeVar("Item")
Result = TypeVar("Result")


def in_threads(function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    """Returns the results of all items, in their order. Raises what one of the calls raises."""
    threads = min(_MOST_THREADS, os.cpu_count() or 1, len(items))
    if threads < 2:
        return [function(item) for item in items]
    # Neighbours go to one thread: where their memory is new, it is one page, which the system clears for each asker.
    size = -(-len(items) // (threads * _SHARES))
    shares = [items[first : first + size] for first in range(0, len(items), size)]
    with ThreadPoolExecutor(threads) as pool:
        return list(chain.from_iterable(pool.map(lambda share: [function(item) for item in share], shares)))


def give_way() -> None:
    """Lets a thread that waits for the interpreter's lock go on: without forced switches, which come after 5 ms."""
    time.sleep(_PAUSE_S)
