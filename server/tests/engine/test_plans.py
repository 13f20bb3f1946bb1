"""The order of plans: by number, whatever order they come in."""

import pytest

from text_generation_server.engine.plans import PlanOrder
from text_generation_server.errors import InvalidRequest, PlanRefused


def put(order: PlanOrder[str], *numbers: int) -> list[str]:
    for number in numbers:
        order.put(number, f"plan {number}")
    return list(order.due())


def test_plans_are_due_in_the_order_of_their_numbers() -> None:
    order = PlanOrder[str]()
    assert put(order, 1) == []
    assert put(order, 2) == []
    assert put(order, 0) == ["plan 0", "plan 1", "plan 2"]
    assert put(order, 3) == ["plan 3"]


@pytest.mark.parametrize("number", [0, 1, 3, 5])
def test_a_number_out_of_turn_harms_no_other(number: int) -> None:
    order = PlanOrder[str]()
    put(order, 0, 1)
    put(order, 3)
    with pytest.raises(InvalidRequest, match=f"`number` {number} is out of turn: the next plan is 2"):
        order.put(number, "")
    assert put(order, 2, 4) == ["plan 2", "plan 3", "plan 4"]


def test_after_a_failure_all_are_refused_until_a_restart() -> None:
    order = PlanOrder[str]()
    order.put(1, "plan 1")
    order.put(0, "plan 0")
    due = order.due()
    assert next(due) == "plan 0"
    assert order.fail() == ["plan 1"]
    assert list(due) == []
    for number in (1, 2, 0):
        with pytest.raises(PlanRefused, match="because plan 0 failed; call ClearCache"):
            order.put(number, "")
    assert order.restart() == []
    assert put(order, 0) == ["plan 0"]


def test_a_restart_gives_back_what_waits() -> None:
    order = PlanOrder[str]()
    put(order, 0, 2)
    assert order.restart() == ["plan 2"]
    assert put(order, 0, 1) == ["plan 0", "plan 1"]
