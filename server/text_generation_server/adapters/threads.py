"""Work on parts of a file in several threads: calls that leave the interpreter's lock, as those that read, hash and
compare many bytes do.
"""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

_MOST_THREADS = 8
Item = TypeVar("Item")
Result = TypeVar("Result")


def in_threads(function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    """Returns the results of all items, in their order. Raises what one of the calls raises."""
    threads = min(_MOST_THREADS, os.cpu_count() or 1, len(items))
    if threads < 2:
        return [function(item) for item in items]
    # One call of the pool for each thread: it takes as long as hashing 50 kB.
    with ThreadPoolExecutor(threads) as pool:
        shares = list(pool.map(lambda first: [function(item) for item in items[first::threads]], range(threads)))
    return [shares[place % threads][place // threads] for place in range(len(items))]
