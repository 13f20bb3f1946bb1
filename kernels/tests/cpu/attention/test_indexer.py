"""The torch implementations of an indexer beside their formulas, and what the operators refuse."""

import pytest
import torch
from kernel_support.indexer import Choice, Contexts, Postprocess

import text_generation_kernels as kernels
from text_generation_kernels.attention.index_postprocess import index_postprocess_triton
from text_generation_kernels.attention.index_scores import index_scores_triton
from text_generation_kernels.attention.top_slots import top_slots_triton


@pytest.mark.parametrize("queries", [False, True])
def test_keys_are_normalised_and_the_first_elements_rotated(queries: bool) -> None:
    made = Postprocess.of(3, 12, 4, torch.float32, queries=queries)
    kernels.index_postprocess(*made.arguments)
    made.check()


def test_scores_are_sums_over_heads_where_there_is_a_choice() -> None:
    contexts = Contexts.of([1, 40, 0, 7, 8, 9], 5, 12, torch.float32)
    scores = contexts.scores
    kernels.index_scores(*contexts.arguments(scores, 8))
    contexts.check(scores, 8)


def test_scores_of_blocks_are_those_of_their_best_position() -> None:
    contexts = Contexts.of([1, 40, 0, 7, 8, 9, 12], 5, 12, torch.float32)
    scores = contexts.block_scores(4)
    kernels.block_scores(*contexts.block_arguments(scores, 4, 2, 1))
    contexts.check_blocks(scores, 4, 2, 1)


def test_the_highest_scores_are_chosen_and_of_equal_ones_the_lowest_positions() -> None:
    choice = Choice.of([1, 40, 0, 7, 8, 9, 33, 100, 64], 8)
    slots = choice.slots
    kernels.top_slots(*choice.arguments(slots))
    choice.check(slots)


def test_whatever_scores_are_as_many_slots_as_are_wanted_come_of_the_context() -> None:
    choice = Choice.of([40], 8)
    choice.scores[0, ::2] = float("nan")
    slots = choice.slots
    kernels.top_slots(*choice.arguments(slots))
    assert len(set(slots[0].tolist()) & set(choice.pool.slots(0).tolist())) == 8


def test_what_the_kernels_do_not_read_is_refused() -> None:
    contexts = Contexts.of([4], 2, 12, torch.float32)
    with pytest.raises(ValueError, match="index_scores: shapes do not fit"):
        index_scores_triton(*contexts.arguments(torch.empty(2, 9), 2))
    with pytest.raises(ValueError, match="index_scores: the last dimension"):
        index_scores_triton(*contexts.arguments(torch.empty(1, 9, 2)[..., 0], 2))
    choice = Choice.of([4], 2)
    with pytest.raises(ValueError, match="top_slots: shapes do not fit"):
        top_slots_triton(*choice.arguments(torch.empty(2, 2, dtype=torch.int32)))
    with pytest.raises(ValueError, match="top_slots: scores must be float32"):
        top_slots_triton(choice.scores.double(), choice.pool.decodes(), choice.slots)
    made = Postprocess.of(3, 12, 4, torch.float32)
    keys, *others = made.arguments
    with pytest.raises(ValueError, match="index_postprocess: shapes do not fit"):
        index_postprocess_triton(keys[:, :8], *others)
