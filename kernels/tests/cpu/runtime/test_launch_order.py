"""The check of the order of launches: a kernel reads early nothing that an earlier one may still be writing."""

import pytest
import torch

from text_generation_kernels import LaunchOrderError
from text_generation_kernels.runtime.launch_order import LaunchOrder, Pdl

WEIGHT, X, OUT, NEXT = (torch.zeros(4, 4) for _ in range(4))
CACHE = torch.zeros(8, 4)

NORM = Pdl("norm", ("weight",), ("out",), "before the wait")
GEMM = Pdl("gemm", ("weight",), ("out",), "after the wait")
GATHER = Pdl("gather", (), ("rows",), "at the end")
ROTATE = Pdl("rotate", ("rows",), ("q", "cache:newest"), "before the wait")
ATTEND = Pdl("attend", ("rows", "cache:older"), ("out",), "before the wait")


def test_weights_that_nobody_writes_may_be_read_early() -> None:
    order = LaunchOrder()
    for _ in range(3):
        order.launched(NORM, [("weight", WEIGHT), ("out", X)])
        order.launched(GEMM, [("weight", WEIGHT), ("x", X), ("out", OUT)])


def test_a_wrong_order_names_both_kernels_and_the_operand() -> None:
    order = LaunchOrder()
    order.launched(NORM, [("weight", WEIGHT), ("out", X)])
    with pytest.raises(LaunchOrderError, match=r"gemm reads `weight` before it waits .* norm, .* as `out`.*between"):
        order.launched(GEMM, [("weight", X), ("out", OUT)])


def test_a_view_of_what_is_written_counts() -> None:
    order = LaunchOrder()
    order.launched(NORM, [("out", X[:2])])
    order.launched(NORM, [("weight", X[2:]), ("out", OUT)])
    with pytest.raises(LaunchOrderError, match="`weight`"):
        order.launched(GEMM, [("weight", X[1:, 2:])])


def test_only_a_kernel_that_has_waited_finishes_those_before_it() -> None:
    """The kernel between the two launches dependents before it waits, or after it."""
    order = LaunchOrder()
    order.launched(NORM, [("out", X)])
    order.launched(NORM, [("weight", WEIGHT), ("out", OUT)])
    with pytest.raises(LaunchOrderError, match="norm, launched before"):
        order.launched(GEMM, [("weight", X), ("out", NEXT)])
    order.launched(GEMM, [("weight", WEIGHT), ("x", OUT), ("out", NEXT)])
    order.launched(GEMM, [("weight", X), ("x", NEXT)])


def test_a_kernel_without_early_dependents_has_ended_when_the_next_one_starts() -> None:
    order = LaunchOrder()
    order.launched(GATHER, [("rows", X)])
    order.launched(ROTATE, [("rows", X), ("q", OUT)])


def test_parts_of_a_cache_are_apart_and_the_whole_of_it_is_not() -> None:
    order = LaunchOrder()
    order.launched(ROTATE, [("q", OUT), ("cache", CACHE)])
    order.launched(ATTEND, [("cache", CACHE), ("out", NEXT)])
    order = LaunchOrder()
    order.launched(NORM, [("out", CACHE)])
    with pytest.raises(LaunchOrderError, match="attend reads `cache`"):
        order.launched(ATTEND, [("cache", CACHE)])


def test_kernels_of_torch_finish_those_before_them_and_views_launch_none() -> None:
    order = LaunchOrder()
    with order:
        order.launched(NORM, [("out", X)])
        X.view(16)
        X.new_empty(4)
        with pytest.raises(LaunchOrderError):
            order.launched(GEMM, [("weight", X)])
        order.launched(NORM, [("out", X)])
        OUT.add_(1)
        order.launched(GEMM, [("weight", X)])


def test_alternatives_all_follow_what_was_before() -> None:
    """A dry run launches both, a step one of them. The second one alone finishes what was before."""
    order = LaunchOrder()
    order.launched(NORM, [("out", X)])
    for pdl in order.alternatives((NORM, GEMM)):
        order.launched(pdl, [("weight", WEIGHT), ("out", OUT)])
    with pytest.raises(LaunchOrderError, match="gemm reads `weight`"):
        order.launched(GEMM, [("weight", X)])
