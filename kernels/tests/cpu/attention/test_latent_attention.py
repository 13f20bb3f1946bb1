"""The torch implementations of latent attention beside their formulas, and what the operators refuse."""

import pytest
import torch
from kernel_support.latent import Contexts, Expansion, Postprocess

import text_generation_kernels as kernels
from text_generation_kernels.attention.latent_decode_attention import latent_decode_attention_triton
from text_generation_kernels.attention.latent_prefill_attention import latent_prefill_attention_triton


def test_decode_reads_one_vector_for_all_heads() -> None:
    contexts = Contexts.of([1, 1, 1, 1], [1, 40, 0, 7], 5, 12, 4, torch.float32)
    out = contexts.out
    kernels.latent_decode_attention(*contexts.decode_arguments(out))
    torch.testing.assert_close(out.double(), contexts.expected(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_shares_of_contexts_are_merged_to_the_whole(ranks: int) -> None:
    """Some ranks have nothing of a short context."""
    contexts = Contexts.of([1, 1, 1, 1], [1, 40, 0, 7], 5, 12, 4, torch.float32)
    out = contexts.in_shares(ranks, kernels.own_slots, kernels.latent_decode_attention, kernels.merge_shares)
    torch.testing.assert_close(out.double(), contexts.expected(), atol=1e-5, rtol=1e-5)


def test_tokens_of_a_request_share_the_slots_of_a_rank() -> None:
    table = torch.tensor([[9, 8, 7, 6, 5, 4], [3, 2, 1, 0, 10, 11]], dtype=torch.int32)
    rows, kv_lens = torch.tensor([1, 1, 0, 0]), torch.tensor([3, 4, 6, 0], dtype=torch.int32)
    own, own_lens = torch.full((2, 6), -1, dtype=torch.int32), torch.empty(4, dtype=torch.int32)
    kernels.own_slots(kernels.Decodes(table, rows, kv_lens, 6), torch.tensor([0, 0, 1, 1]), 1, 2, own, own_lens)
    assert own_lens.tolist() == [2, 2, 3, 0]
    assert (own[0, :2].tolist(), own[1, :3].tolist()) == ([1, 0], [4, 3, 2])


def test_prefill_sees_no_later_position() -> None:
    contexts = Contexts.of([3, 0, 9], [20, 5, 9], 5, 12, 4, torch.float32)
    out = contexts.out
    kernels.latent_prefill_attention(*contexts.prefill_arguments(out))
    torch.testing.assert_close(out.double(), contexts.expected(), atol=1e-5, rtol=1e-5)


def test_the_latent_vector_is_normalised_and_its_key_rotated() -> None:
    made = Postprocess.of(3, 12, 4, 6, torch.float32)
    kernels.latent_postprocess(*made.arguments)
    made.check()


def test_keys_and_values_of_whole_contexts() -> None:
    made = Expansion.of(3, 12, 4, 6, 10, torch.float32)
    kernels.latent_expand(*made.arguments)
    made.check()


def test_nothing_is_written_for_tokens_of_a_request_of_length_0() -> None:
    contexts = Contexts.of([5, 3], [9, 3], 4, 12, 4, torch.float32)
    contexts.pool.b_kv_len[1] = 0
    out = contexts.out
    kernels.latent_prefill_attention(*contexts.prefill_arguments(out))
    assert out.isnan().all(dim=2)[:, 0].tolist() == [False] * 5 + [True] * 3


def test_what_the_kernels_do_not_read_is_refused() -> None:
    contexts = Contexts.of([1], [4], 2, 12, 4, torch.float32)
    for out in (torch.empty(1, 2, 16), torch.empty(1, 3, 12)):
        with pytest.raises(ValueError, match=r"latent_decode_attention: shapes of q, cache, out do not fit"):
            latent_decode_attention_triton(*contexts.decode_arguments(out))
    with pytest.raises(ValueError, match=r"latent_prefill_attention: the last dimension"):
        latent_prefill_attention_triton(*contexts.prefill_arguments(torch.empty(1, 12, 2).transpose(1, 2)))
