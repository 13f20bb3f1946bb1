"""Which plans fit the rows, by the host's bookkeeping alone."""

import pytest
from support.engine_driver import make_request

from text_generation_server.engine.requests import Chunk, ServingLimits, StepPlan
from text_generation_server.engine.running import CheckedPlan, PlanChecker

LIMITS = ServingLimits(max_batch_total_tokens=512, max_input_tokens=63, max_total_tokens=64, max_batch_size=4)
VOCAB = 64


def admit(checker: PlanChecker, cached_length: int) -> CheckedPlan:
    """A request of three tokens, and the chunk of those that are not cached."""
    request = make_request(1, cached_length=cached_length)
    return checker.apply(StepPlan(0, admit=[request], chunks=[Chunk(1, cached_length, 3 - cached_length)]))


def test_where_layers_keep_a_state_no_position_is_cached() -> None:
    plan = admit(PlanChecker(LIMITS, 64, VOCAB, recurrent=True), cached_length=2)
    (failure,) = plan.failures
    assert (failure.request_id, failure.reason) == (1, "invalid_request")
    assert "`cached_length` must be 0, not 2: layers of this model keep a state" in failure.message
    assert (plan.admitted, plan.chunks) == ([], [])


@pytest.mark.parametrize(("recurrent", "cached_length"), [(True, 0), (False, 0), (False, 2)])
def test_other_requests_are_admitted(recurrent: bool, cached_length: int) -> None:
    plan = admit(PlanChecker(LIMITS, 64, VOCAB, recurrent), cached_length)
    assert (plan.failures, plan.num_tokens) == ([], 3 - cached_length)
