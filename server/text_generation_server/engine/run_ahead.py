"""Which steps are on the device, and which to put there next, so that the device does not wait for the host.

The next step is queued before the results of the one before are waited for: the tokens it continues from are on the
device already. So while a reply is built, travels to the router and comes back as the next call, the device works.
Where the host computes, a step is over when it is queued; there the next one is queued when the reply is out.
Known from SGLang's and LightLLM's overlapped scheduling; here in the terms of unary Prefill and Decode calls.

- A step holds rows of requests that were alive when it was queued. Who ends by length is known ahead and left out;
  who ends by EOS, or is dropped, costs one row of one step, whose result is nobody's.
- Rows and slots of such a request may be given away at once: everything is queued on one stream, so the new owner's
  writes come after the stale ones.
- Whether to run ahead follows from the calls alone, never from time, so all ranks do the same.

Pure bookkeeping: no tensors, no device. Owned by the engine thread.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

from .batches import RunningRequest
from .options import RunAhead

DEPTH = 2
"""Steps on a device beside the host while a call waits: the one it will report and one more."""


class Step(Protocol):
    """A decode step that was queued."""

    @property
    def running(self) -> Sequence[RunningRequest]:
        """Requests it computes a token of."""
        ...

    def deliver(self) -> None:
        """Waits for the results and adds them to `arrived` of the requests that were not released meanwhile."""
        ...


S = TypeVar("S", bound=Step)


class StepQueue(Generic[S]):
    """The decode steps in flight, oldest first. `launch` queues a step for some requests."""

    def __init__(self, launch: Callable[[Sequence[RunningRequest]], S], run_ahead: RunAhead) -> None:
        self._launch_step = launch
        self._run_ahead = run_ahead
        self._steps: deque[S] = deque()

    def decode(self, running: Sequence[RunningRequest]) -> S | None:
        """Steps until at least one of `running` has results, keeping the device busy. Returns the last step reported.

        `running` is not empty, and each of them `may_step` or `is_waited_for`. None if all results had arrived with
        a step that was reported for others.
        """
        reported = None
        while not any(r.arrived for r in running):
            self._forget_stale()
            if not self._steps:
                self._launch(running)
            self.before_waiting(running)
            reported = self._steps.popleft()
            reported.deliver()
        return reported

    def before_waiting(self, running: Sequence[RunningRequest]) -> None:
        """Queues one step more than is waited for, if it is the time and not yet so. Call it after a prefill too."""
        if self._run_ahead is RunAhead.BEFORE_WAITING and len(self._steps) < DEPTH:
            self._launch(running)

    def between_calls(self, running: Sequence[RunningRequest]) -> None:
        """Queues the step that the next call will report, if it is the time and not yet so."""
        if self._run_ahead is RunAhead.BETWEEN_CALLS and not self._steps:
            self._launch(running)

    def _launch(self, running: Sequence[RunningRequest]) -> None:
        ready = [r for r in running if r.may_step]
        if ready:
            self._steps.append(self._launch_step(ready))
            for r in ready:
                r.launched += 1

    def _forget_stale(self) -> None:
        while self._steps and all(r.released for r in self._steps[0].running):
            self._steps.popleft()
