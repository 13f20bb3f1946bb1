"""Copies of adapters to the device, beside the steps: on a stream of their own, for which the host never waits in a
step. The replies thread tells which are done.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from .adapter_plans import Resident, Residents

Put = Callable[[Resident, int], None]
"""Queues the copy of an adapter to its pages and its number."""


@dataclass(frozen=True, eq=False)
class _Copy:
    plan: int
    number: int
    resident: Resident
    done: torch.cuda.Event | None
    """None: it is."""


class PendingCopies:
    """Copies of which no reply has said that they are done."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._copies: list[_Copy] = []

    def note(self, plan: int, number: int, resident: Resident, done: torch.cuda.Event | None) -> None:
        """Notes a copy that plan `plan` has queued."""
        with self._lock:
            self._copies.append(_Copy(plan, number, resident, done))

    def keep(self, residents: Residents) -> None:
        """Drops copies whose number or pages others have taken."""
        with self._lock:
            self._copies = [each for each in self._copies if residents.get(each.number) is each.resident]

    def take_ready(self, plan: int, wait: bool) -> list[int]:
        """Returns the numbers whose copies are done, of those queued by plans up to `plan`, each once. `wait`: all of
        those are waited for. The replies thread calls it.
        """
        with self._lock:
            queued = [each for each in self._copies if each.plan <= plan]
        for each in queued if wait else ():
            if each.done is not None:
                each.done.synchronize()
        done = [each for each in queued if each.done is None or each.done.query()]
        with self._lock:
            # Another copy may have taken its number meanwhile.
            told = [each for each in done if each in self._copies]
            self._copies = [each for each in self._copies if each not in told]
        for each in told:
            each.resident.ready = True
        return [each.number for each in told]


class AdapterCopies:
    """Queues copies. Only the engine thread uses it; each step keeps the `pending` copies that it was launched with."""

    def __init__(self, put: Put, device: torch.device) -> None:
        self._put = put
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self.pending = PendingCopies()

    def before(self) -> torch.cuda.Event | None:
        """Returns the point after all steps that were launched; None where nothing is queued, as on a CPU."""
        if self._stream is None:
            return None
        event = torch.cuda.Event()
        event.record()
        return event

    def launch(self, plan: int, numbers: Sequence[int], residents: Residents, before: torch.cuda.Event | None) -> None:
        """Queues the copies of these numbers after the point `before`, because earlier steps may read their pages."""
        self.pending.keep(residents)
        for number in numbers:
            resident, done = residents[number], None
            if self._stream is None or before is None:
                self._put(resident, number)
            else:
                self._stream.wait_event(before)
                with torch.cuda.stream(self._stream):
                    self._put(resident, number)
                    done = torch.cuda.Event()
                    done.record()
            self.pending.note(plan, number, resident, done)

    def clear(self) -> None:
        """Forgets all copies; those that are queued are done before later ones."""
        self.pending = PendingCopies()
