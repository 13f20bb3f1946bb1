"""Which steps are queued when: the rules of running ahead, without a device."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from support.engine_driver import make_request

from text_generation_server.engine.batches import Choice, RunningRequest
from text_generation_server.engine.options import RunAhead
from text_generation_server.engine.run_ahead import StepQueue


@dataclass
class FakeStep:
    running: Sequence[RunningRequest]
    delivered: bool = False

    def deliver(self) -> None:
        self.delivered = True
        for r in self.running:
            if not r.released:
                r.arrived.append(Choice(0, 0.0, True, None))


@dataclass
class Device:
    """Records what was queued, as lists of request ids."""

    queued: list[list[int]] = field(default_factory=list)

    def launch(self, running: Sequence[RunningRequest]) -> FakeStep:
        self.queued.append([r.id for r in running])
        return FakeStep(running)


def prefilled(request_id: int, max_new_tokens: int = 8, num_slots: int = 100) -> RunningRequest:
    """A request whose prompt was computed and whose first token was reported."""
    request = make_request(request_id, max_new_tokens=max_new_tokens)
    return RunningRequest(request, row=request_id, num_slots=num_slots, launched=1, generated=1)


def report(running: Sequence[RunningRequest]) -> list[int]:
    """Takes what arrived, as a reply does; returns the ids that had something."""
    reported = [r.id for r in running if r.arrived]
    for r in running:
        r.generated += len(r.arrived)
        r.arrived.clear()
    return reported


def test_one_step_more_is_queued_than_is_waited_for() -> None:
    device = Device()
    ahead = StepQueue(device.launch, RunAhead.BEFORE_WAITING)
    a = prefilled(1)
    for call in range(1, 4):
        step = ahead.decode([a])
        assert step is not None
        assert step.delivered
        assert report([a]) == [1]
        assert len(device.queued) == call + 1


def test_where_the_host_computes_the_next_step_waits_for_the_reply() -> None:
    device = Device()
    ahead = StepQueue(device.launch, RunAhead.BETWEEN_CALLS)
    a, b = prefilled(1), prefilled(2)
    for call in range(1, 4):
        ahead.decode([a])
        assert report([a]) == [1]
        assert len(device.queued) == call
        ahead.between_calls([a])
        ahead.between_calls([a])
        assert len(device.queued) == call + 1
    ahead.before_waiting([a, b])
    assert ahead.decode([a, b]) is not None
    assert report([a, b]) == [1]
    ahead.between_calls([a, b])
    assert device.queued[-1] == [1, 2]


def test_in_step_each_call_queues_one() -> None:
    device = Device()
    ahead = StepQueue(device.launch, RunAhead.NEVER)
    a = prefilled(1)
    for call in range(1, 4):
        ahead.decode([a])
        assert report([a]) == [1]
        assert len(device.queued) == call


def test_who_ends_by_length_is_left_out_ahead() -> None:
    device = Device()
    ahead = StepQueue(device.launch, RunAhead.BEFORE_WAITING)
    a, b = prefilled(1, max_new_tokens=2), prefilled(2)
    ahead.decode([a, b])
    assert device.queued == [[1, 2], [2]]


def test_who_has_no_slot_for_the_next_step_waits_for_a_grant() -> None:
    device = Device()
    ahead = StepQueue(device.launch, RunAhead.BEFORE_WAITING)
    # Prompt of 3: the first step writes position 3, the second position 4.
    a, b = prefilled(1, num_slots=4), prefilled(2)
    ahead.decode([a, b])
    assert device.queued == [[1, 2], [2]]
    report([a, b])
    a.num_slots = 10
    ahead.decode([a, b])
    assert report([a, b]) == [2]
    assert device.queued[-1] == [1, 2]
    ahead.decode([a, b])
    assert report([a, b]) == [1, 2]


def test_after_a_prefill_the_older_batch_reports_first() -> None:
    device = Device()
    ahead = StepQueue(device.launch, RunAhead.BEFORE_WAITING)
    a = prefilled(1)
    ahead.decode([a])
    report([a])
    b = prefilled(2)
    ahead.before_waiting([a, b])
    assert device.queued == [[1], [1], [1, 2]]
    ahead.decode([a, b])
    assert report([a, b]) == [1]
    assert len(device.queued) == 3, "two steps were in flight already"
    ahead.decode([a, b])
    assert report([a, b]) == [1, 2]
    assert len(device.queued) == 4


def test_results_of_a_batch_that_the_call_does_not_name_are_kept_for_it() -> None:
    device = Device()
    ahead = StepQueue(device.launch, RunAhead.BEFORE_WAITING)
    a, b = prefilled(1), prefilled(2)
    ahead.decode([a])
    report([a])
    ahead.decode([b])
    assert report([b]) == [2]
    # The step of `a` was waited for on the way.
    queued = len(device.queued)
    assert ahead.decode([a]) is None
    assert report([a]) == [1]
    assert len(device.queued) == queued


def test_steps_of_released_requests_alone_are_not_waited_for() -> None:
    device = Device()
    ahead = StepQueue(device.launch, RunAhead.BEFORE_WAITING)
    a, b = prefilled(1), prefilled(2)
    ahead.decode([a])
    a.released = True
    step = ahead.decode([b])
    assert step is not None
    assert [r.id for r in step.running] == [2]
    assert not a.arrived[1:]
