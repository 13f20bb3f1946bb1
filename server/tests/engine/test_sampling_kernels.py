"""The sampling operators against transformers' processors, published vectors and arithmetic by hand."""

import math

import pytest
import torch
from torch import Tensor
from transformers import (
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)

from text_generation_server.kernels.gumbel import gumbel_argmax, gumbel_noise
from text_generation_server.kernels.logprobs import token_logprobs
from text_generation_server.kernels.penalties import count_tokens, penalties
from text_generation_server.kernels.philox import philox_4x32, vocabulary_bits
from text_generation_server.kernels.temperature import temperature_scale
from text_generation_server.kernels.top_k import top_k_filter
from text_generation_server.kernels.top_n import top_n_mask
from text_generation_server.kernels.top_p import top_p_filter
from text_generation_server.kernels.typical_p import typical_filter
from text_generation_server.kernels.watermark import green_list, watermark

VOCAB = 257


@pytest.fixture
def scores() -> Tensor:
    return torch.randn(6, VOCAB, generator=torch.Generator().manual_seed(3)) * 3


# Known-answer vectors of Random123: counter, key, output.
PHILOX_VECTORS = [
    ([0] * 4, [0] * 2, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
    ([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
    (
        [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
        [0xA4093822, 0x299F31D0],
        [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
    ),
]


@pytest.mark.parametrize(("counter", "key", "expected"), PHILOX_VECTORS)
def test_philox_known_answers(counter: list[int], key: list[int], expected: list[int]) -> None:
    words = philox_4x32(tuple(torch.tensor([c]) for c in counter), (torch.tensor([key[0]]), torch.tensor([key[1]])))
    assert [int(word) for word in words] == expected


def test_vocabulary_bits_name_every_id_by_key_step_and_domain() -> None:
    key = (0x89ABCDEF << 32) | 0x01234567
    bits = vocabulary_bits(torch.tensor([key - 2**64]), torch.tensor([5]), domain=1, vocab_size=11)
    assert bits.shape == (1, 11)
    for v in range(11):
        counter = tuple(torch.tensor([c]) for c in (v // 4, 5, 0, 1))
        words = philox_4x32(counter, (torch.tensor([0x01234567]), torch.tensor([0x89ABCDEF])))
        assert int(bits[0, v]) == int(words[v % 4])


def test_gumbel_noise_is_finite_and_has_the_moments_of_its_distribution() -> None:
    noise = gumbel_noise(torch.arange(8), torch.zeros(8, dtype=torch.int64), 50_000)
    assert noise.isfinite().all()
    assert noise.mean().item() == pytest.approx(0.5772, abs=0.01)
    assert noise.var().item() == pytest.approx(math.pi**2 / 6, rel=0.02)


def test_gumbel_argmax_draws_from_softmax() -> None:
    """Chi-square over 20,000 fixed seeds; 24.3 is the 0.1 % point for 7 degrees of freedom."""
    logits = torch.tensor([2.0, 1.0, 0.0, -1.0, 0.5, 0.5, -2.0, 1.5])
    draws = 20_000
    tokens = gumbel_argmax(logits.expand(draws, -1), torch.arange(draws), torch.full((draws,), 9))
    observed = torch.bincount(tokens, minlength=8).double()
    expected = logits.double().softmax(-1) * draws
    assert ((observed - expected) ** 2 / expected).sum().item() < 24.3


def test_gumbel_argmax_never_takes_an_excluded_id() -> None:
    scores = torch.full((5000, 9), -math.inf)
    scores[:, 4] = -1e30
    assert (gumbel_argmax(scores, torch.arange(5000), torch.zeros(5000, dtype=torch.int64)) == 4).all()


def test_repetition_penalty_equals_transformers(scores: Tensor) -> None:
    generator = torch.Generator().manual_seed(1)
    lengths = torch.tensor([1, 5, 40, 17, 2, 39])
    history = torch.randint(0, VOCAB, (6, 40), generator=generator, dtype=torch.int32)
    repetition = torch.tensor([1.2, 0.8, 2.0, 1.0, 1.5, 3.0])
    counts = count_tokens(history, lengths, VOCAB)
    ours = penalties(scores, counts, repetition, torch.zeros(6))
    for row in range(6):
        processor = RepetitionPenaltyLogitsProcessor(float(repetition[row]))
        ids = history[row : row + 1, : lengths[row]].long()
        torch.testing.assert_close(ours[row : row + 1], processor(ids, scores[row : row + 1].clone()))


def test_what_lies_behind_the_length_of_a_history_counts_for_nothing() -> None:
    history = torch.tensor([[3, 3, 1, 0, 0, 0]], dtype=torch.int32)
    assert count_tokens(history, torch.tensor([3]), 5).tolist() == [[0, 1, 0, 2, 0]]


def test_frequency_penalty_subtracts_once_for_each_occurrence() -> None:
    counts = torch.tensor([[0.0, 1.0, 3.0]])
    ours = penalties(torch.zeros(1, 3), counts, torch.ones(1), torch.tensor([0.5]))
    assert ours.tolist() == [[0.0, -0.5, -1.5]]


def test_temperature_has_the_probabilities_of_transformers_and_cannot_overflow(scores: Tensor) -> None:
    for value in (0.1, 0.7, 5.0):
        ours = temperature_scale(scores, torch.full((6,), value)).log_softmax(-1)
        theirs = TemperatureLogitsWarper(value)(None, scores).log_softmax(-1)  # type: ignore[arg-type]
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
    tiny = temperature_scale(scores, torch.full((6,), 1e-38))
    assert (tiny.argmax(-1) == scores.argmax(-1)).all()
    assert tiny.amax(-1).tolist() == [0.0] * 6


def test_top_k_equals_transformers_with_ties_and_beyond_the_vocabulary(scores: Tensor) -> None:
    scores = scores.round()
    k = torch.tensor([1, 3, 50, VOCAB, VOCAB + 9, 2])
    ours = top_k_filter(scores, k, int(k.max()))
    for row in range(6):
        theirs = TopKLogitsWarper(int(k[row]))(None, scores[row : row + 1])  # type: ignore[arg-type]
        assert torch.equal(ours[row : row + 1], theirs)
    assert (ours[0] > -math.inf).sum() >= 1


@pytest.mark.parametrize("p", [1e-6, 0.1, 0.5, 0.9, 0.999])
def test_top_p_equals_transformers(scores: Tensor, p: float) -> None:
    ours = top_p_filter(scores, torch.full((6,), p))
    assert torch.equal(ours, TopPLogitsWarper(p)(None, scores))  # type: ignore[arg-type]
    assert (ours.argmax(-1) == scores.argmax(-1)).all()


@pytest.mark.parametrize("mass", [0.01, 0.2, 0.9, 0.99])
def test_typical_p_equals_transformers_also_behind_other_filters(scores: Tensor, mass: float) -> None:
    for given in (scores, top_k_filter(scores, torch.full((6,), 5), 5)):
        ours = typical_filter(given, torch.full((6,), mass))
        assert torch.equal(ours, TypicalLogitsWarper(mass)(None, given))  # type: ignore[arg-type]
        assert (ours > -math.inf).any(-1).all()


def test_top_n_takes_the_ties_of_the_nth_and_no_excluded_id() -> None:
    scores = torch.tensor([[-1.0, -3.0, -4.0, -2.0, -3.0], [-math.inf, 1.0, -math.inf, 0.0, -math.inf]])
    mask = top_n_mask(scores, torch.tensor([3, 4]), 4)
    assert mask.tolist() == [[True, True, False, True, True], [False, True, False, True, False]]


def test_token_logprobs_in_chunks_equal_log_softmax(scores: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = torch.tensor([0, 5, 256, 3, 9, 100])
    expected = scores.log_softmax(-1)[torch.arange(6), tokens]
    torch.testing.assert_close(token_logprobs(scores, tokens), expected)
    monkeypatch.setattr("text_generation_server.kernels.logprobs._CHUNK_ELEMENTS", 2 * VOCAB)
    torch.testing.assert_close(token_logprobs(scores, tokens), expected)


def test_watermark_marks_a_part_of_the_vocabulary_that_the_previous_token_chooses() -> None:
    previous = torch.tensor([7, 8, 7])
    green = green_list(previous, 0.25, 40_000)
    assert green.float().mean().item() == pytest.approx(0.25, abs=0.01)
    assert torch.equal(green[0], green[2])
    assert not torch.equal(green[0], green[1])
    marked = watermark(torch.zeros(3, 40_000), previous, 0.25, 2.0)
    assert torch.equal(marked, 2.0 * green)
    assert not green_list(previous, 0.0, 100).any()
    assert green_list(previous, 1.0, 100).all()
