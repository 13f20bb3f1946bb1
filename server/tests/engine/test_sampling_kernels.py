"""The sampling operators against transformers' processors, published vectors and arithmetic by hand."""

import math

import pytest
import torch
from support.sampling import Run, asking, choices_of, filtered, mixture, processed
from torch import Tensor
from transformers import (
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)

from text_generation_kernels import EXCLUDED
from text_generation_kernels.sampling.advance_state import advance_state_torch
from text_generation_kernels.sampling.gumbel import gumbel_noise
from text_generation_kernels.sampling.philox import philox_4x32, vocabulary_bits
from text_generation_kernels.sampling.watermark import green_list
from text_generation_server.distributed import TensorParallelGroup
from text_generation_server.engine.scoring import Scorer
from text_generation_server.layers.weights import VocabularyShard

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
    bits = vocabulary_bits(torch.tensor([key - 2**64]), torch.tensor([5]), domain=1, number=11)
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


def test_sampling_draws_from_softmax() -> None:
    """Chi-square over 20,000 fixed seeds; 24.3 is the 0.1 % point for 7 degrees of freedom."""
    logits = torch.tensor([2.0, 1.0, 0.0, -1.0, 0.5, 0.5, -2.0, 1.5])
    draws = 20_000
    run = Run(logits.repeat(draws, 1), [asking(do_sample=True, seed=seed) for seed in range(draws)], generated=9).all()
    observed = torch.bincount(run.sampled.tokens, minlength=8).double()
    expected = logits.double().softmax(-1) * draws
    assert ((observed - expected) ** 2 / expected).sum().item() < 24.3


def test_sampling_never_takes_an_excluded_id() -> None:
    logits = torch.full((500, 9), -math.inf)
    logits[:, 4] = -1e30
    run = Run(logits, [asking(do_sample=True, seed=seed) for seed in range(500)]).all()
    assert (run.sampled.tokens == 4).all()
    assert (run.sampled.logprobs == 0).all()


def test_repetition_penalty_equals_transformers_and_sees_no_padding(scores: Tensor) -> None:
    generator = torch.Generator().manual_seed(1)
    lengths, factors = [1, 5, 40, 17, 2, 39], [1.2, 0.8, 2.0, 1.0, 1.5, 3.0]
    prompts = [torch.randint(0, VOCAB, (length,), generator=generator).tolist() for length in lengths]
    ours = processed(scores, [asking(p, repetition_penalty=f) for p, f in zip(prompts, factors, strict=True)])
    for row, (prompt, factor) in enumerate(zip(prompts, factors, strict=True)):
        theirs = RepetitionPenaltyLogitsProcessor(factor)(torch.tensor([prompt]), scores[row : row + 1].clone())
        torch.testing.assert_close(ours[row : row + 1], theirs)


def test_frequency_and_presence_penalties_count_prompt_and_output_or_output_alone() -> None:
    both = {"frequency_penalty": 0.5, "presence_penalty": 0.25}
    requests = [
        asking([1, 2, 2, 2], **both),
        asking([1, 2, 2, 2], penalize_output_only=True, **both),
        asking([1, 2], presence_penalty=-1.0),
        asking([1, 1], repetition_penalty=2.0, penalize_output_only=True),
    ]
    run = Run(torch.full((4, 4), 4.0), requests)
    lengths = torch.tensor([4, 4, 2, 2])
    tokens = torch.tensor([3, 2, 1, 0])
    batch = run.batch
    advance_state_torch(tokens, batch.rows, batch.last_token, lengths, batch.generated, run.state.columns)
    assert run.process().processed.tolist() == [
        [4.0, 3.25, 2.25, 3.25],
        [4.0, 4.0, 3.25, 4.0],
        [4.0, 5.0, 5.0, 4.0],
        [2.0, 2.0, 4.0, 4.0],
    ]


def test_a_row_is_counted_afresh_for_its_next_owner() -> None:
    run = Run(torch.zeros(1, 4), [asking([1, 2], frequency_penalty=1.0)])
    run.state.admit([0], [asking([3], frequency_penalty=1.0)])
    assert run.process().processed.tolist() == [[0.0, 0.0, 0.0, -1.0]]


def test_advancing_moves_owned_rows_and_leaves_padding() -> None:
    run = Run(torch.zeros(3, 9), [asking([1]), asking([2], presence_penalty=1.0), asking([3])])
    last, length, generated = torch.tensor([1, 2, 3]), torch.tensor([1, 4, 0]), torch.tensor([0, 3, 0])
    rows, tokens = torch.tensor([1, 2, 0, 2]), torch.tensor([7, 5, 8, 6])
    advance_state_torch(tokens, rows, last, length, generated, run.state.columns)
    assert last.tolist() == [8, 7, 3]
    assert length.tolist() == [2, 5, 0]
    assert generated.tolist() == [1, 4, 0]
    assert run.state.columns.counts.nonzero().tolist() == [[1, 2], [1, 7]]


def test_logit_bias_is_added_to_the_tokens_it_names() -> None:
    requests = [asking(logit_bias=((5, -100.0), (0, 2.5))), asking(), asking(logit_bias=((8, 1.0),))]
    expected = torch.zeros(3, 9)
    expected[0, 5], expected[0, 0], expected[2, 8] = -100.0, 2.5, 1.0
    assert torch.equal(processed(torch.zeros(3, 9), requests), expected)


def test_no_end_of_sequence_before_the_minimum() -> None:
    logits = torch.zeros(2, 9)
    logits[:, [3, 7]] = 5.0
    requests = [asking(min_new_tokens=2), asking()]
    for generated, tokens in ((0, [0, 3]), (1, [0, 3]), (2, [3, 3])):
        run = Run(logits.clone(), requests, generated=generated, eos_token_ids=(7, 3, 3)).all()
        assert run.sampled.tokens.tolist() == tokens


def test_only_ids_of_the_mask_are_chosen(scores: Tensor) -> None:
    allowed = {1: range(31, 34), 3: [VOCAB - 1], 4: [0, 64, 200]}
    requests = [asking(), asking(), asking(top_n=2), asking(do_sample=True, seed=5), asking(top_n=5), asking()]
    run = Run(scores.clone(), requests, allowed=allowed).all()
    for position, row in enumerate(scores):
        ids = list(allowed.get(position, range(VOCAB)))
        logprobs = row[ids].log_softmax(0)
        choice = choices_of(run.sampled)[position]
        assert choice.token == ids[int(logprobs.argmax())]
        assert choice.logprob == pytest.approx(float(logprobs.max()), abs=1e-5)
    top = choices_of(run.sampled)[4].top_tokens
    assert top is not None
    assert set(top.ids) == {0, 64, 200}


def test_a_mask_is_the_same_as_logits_of_minus_infinity() -> None:
    """Beside every other parameter, alone and all together."""
    requests = mixture()
    logits = 3 * torch.randn(len(requests), VOCAB, generator=torch.Generator().manual_seed(4))
    allowed = {position: range(position % 3, VOCAB, 2) for position in range(len(requests))}
    excluded = torch.ones_like(logits, dtype=torch.bool)
    for position, ids in allowed.items():
        excluded[position, ids] = False
    masked = Run(logits.clone(), requests, generated=1, eos_token_ids=(0, 7), allowed=allowed).all()
    expected = Run(logits.masked_fill(excluded, -torch.inf), requests, generated=1, eos_token_ids=(0, 7)).all()
    assert choices_of(masked.sampled) == choices_of(expected.sampled)
    assert all(choice.valid for choice in choices_of(masked.sampled))


def test_a_mask_that_allows_nothing_is_an_error_of_that_row_alone(scores: Tensor) -> None:
    run = Run(scores.clone(), [asking()] * len(scores), allowed={2: []}).all()
    assert run.sampled.valid.tolist() == [1, 1, EXCLUDED, 1, 1, 1]


def test_a_row_that_is_given_away_has_no_mask(scores: Tensor) -> None:
    run = Run(scores.clone(), [asking()] * len(scores), allowed={0: [7]})
    run.state.admit([0], [asking()])
    assert run.all().sampled.tokens[0] == scores[0].argmax()


def test_temperature_has_the_probabilities_of_transformers_and_cannot_overflow(scores: Tensor) -> None:
    for value in (0.1, 0.7, 5.0):
        run = Run(scores, [asking(temperature=value)] * 6).all()
        theirs = TemperatureLogitsWarper(value)(None, scores).log_softmax(-1)  # type: ignore[arg-type]
        torch.testing.assert_close(run.sampled.logprobs, theirs.amax(-1), rtol=1e-4, atol=1e-4)
    for value in (1e-38, 1e-44):
        tiny = Run(scores, [asking(temperature=value, do_sample=True)] * 6).all()
        assert torch.equal(tiny.sampled.tokens, scores.argmax(-1))
        assert tiny.sampled.logprobs.tolist() == [0.0] * 6


def test_top_k_equals_transformers_with_ties_and_beyond_the_vocabulary(scores: Tensor) -> None:
    scores = scores.round()
    top_k = [1, 3, 50, VOCAB, VOCAB + 9, 2]
    kept = filtered(scores, [asking(top_k=k) for k in top_k])
    for row, k in enumerate(top_k):
        theirs = TopKLogitsWarper(k)(None, scores[row : row + 1])  # type: ignore[arg-type]
        assert torch.equal(kept[row : row + 1], theirs.isfinite())


@pytest.mark.parametrize("p", [1e-6, 0.1, 0.5, 0.9, 0.999])
def test_top_p_equals_transformers(scores: Tensor, p: float) -> None:
    kept = filtered(scores, [asking(top_p=p)] * 6)
    assert torch.equal(kept, TopPLogitsWarper(p)(None, scores).isfinite())  # type: ignore[arg-type]


@pytest.mark.parametrize("p", [1e-6, 0.1, 0.5, 0.9, 0.999])
def test_top_p_keeps_as_many_ties_as_transformers_and_those_of_the_highest_ids(scores: Tensor, p: float) -> None:
    scores = scores.round()
    kept = filtered(scores, [asking(top_p=p)] * 6)
    theirs = TopPLogitsWarper(p)(None, scores).isfinite()  # type: ignore[arg-type]
    for row in range(6):
        assert torch.equal(scores[row][kept[row]].sort().values, scores[row][theirs[row]].sort().values)
        last = scores[row][kept[row]].min()
        tied = kept[row][scores[row] == last]
        assert torch.equal(tied, tied.sort().values)


@pytest.mark.parametrize("mass", [0.01, 0.2, 0.9, 0.99])
def test_typical_p_equals_transformers_also_behind_other_filters(scores: Tensor, mass: float) -> None:
    top_k = TopKLogitsWarper(5)(None, scores)  # type: ignore[arg-type]
    for given, k in ((scores, 0), (top_k, 5)):
        kept = filtered(scores, [asking(top_k=k, typical_p=mass)] * 6)
        assert torch.equal(kept, TypicalLogitsWarper(mass)(None, given).isfinite())  # type: ignore[arg-type]
        assert kept.any(-1).all()


@pytest.mark.parametrize("min_p", [0.001, 0.1, 0.5, 1.0])
def test_min_p_equals_transformers_also_behind_other_filters(scores: Tensor, min_p: float) -> None:
    typical = TypicalLogitsWarper(0.3)(None, scores)  # type: ignore[arg-type]
    for given, typical_p in ((scores, 1.0), (typical, 0.3)):
        kept = filtered(scores, [asking(min_p=min_p, typical_p=typical_p)] * 6)
        assert torch.equal(kept, MinPLogitsWarper(min_p)(None, given).isfinite())  # type: ignore[arg-type]


def test_each_filter_sees_the_renormalised_survivors_of_the_one_before(scores: Tensor) -> None:
    kept = filtered(scores, [asking(temperature=0.7, top_k=40, top_p=0.9, typical_p=0.8, min_p=0.01)] * 6)
    expected = TemperatureLogitsWarper(0.7)(None, scores)  # type: ignore[arg-type]
    for warper in (TopKLogitsWarper(40), TopPLogitsWarper(0.9), TypicalLogitsWarper(0.8), MinPLogitsWarper(0.01)):
        expected = warper(None, expected)  # type: ignore[arg-type]
    assert torch.equal(kept, expected.isfinite())


def test_logprobs_are_those_of_the_survivors(scores: Tensor) -> None:
    run = Run(scores, [asking(do_sample=True, seed=i, top_k=7, top_n=3) for i in range(6)]).all()
    logprobs = TopKLogitsWarper(7)(None, scores).log_softmax(-1)  # type: ignore[arg-type]
    torch.testing.assert_close(run.sampled.logprobs, logprobs.gather(1, run.sampled.tokens[:, None])[:, 0])
    torch.testing.assert_close(run.sampled.top_logprobs[:, :3], logprobs.topk(3).values)


def test_top_tokens_take_the_ties_of_the_nth_and_no_excluded_id() -> None:
    scores = torch.tensor([[-1.0, -3.0, -4.0, -2.0, -3.0], [-math.inf, 1.0, -math.inf, 0.0, -math.inf]])
    choices = choices_of(Run(scores, [asking(top_n=3), asking(top_n=4)]).all().sampled)
    assert [choice.top_tokens.ids for choice in choices if choice.top_tokens] == [(0, 3, 1, 4), (1, 3)]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_unsound_scores_are_told_and_harm_no_neighbour(bad: float) -> None:
    logits = torch.zeros(3, 9)
    logits[1, 4] = bad
    logits[2] = -math.inf
    everything = {"do_sample": True, "top_k": 3, "top_p": 0.5, "typical_p": 0.5, "min_p": 0.1}
    for parameters in ({}, everything):
        choices = choices_of(Run(logits.clone(), [asking(top_n=2, **parameters)] * 3).all().sampled)
        assert [choice.valid for choice in choices] == [True, False, False]
        assert all(0 <= choice.token < 9 for choice in choices)
        assert choices[1].top_tokens is None


def test_scores_of_prompts_in_parts_equal_log_softmax(scores: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = torch.tensor([0, 5, 256, 3, 9, 100])
    expected = scores.log_softmax(-1)[torch.arange(6), tokens]
    group = TensorParallelGroup(0, 1, scores.device)
    scorer = Scorer(lambda hidden, _: hidden.clone(), VocabularyShard.of(VOCAB, 0, 1), group)
    for _ in range(2):
        scored = scorer(scores, tokens, num_top=3)
        torch.testing.assert_close(scored.logprobs, expected)
        monkeypatch.setattr("text_generation_kernels.sampling.logprobs._CHUNK_ELEMENTS", 2 * VOCAB)
        monkeypatch.setattr("text_generation_server.engine.scoring._AT_ONCE", 4)
    best = scores.log_softmax(-1).topk(2)
    tops = scored.tops(1, 6, 2)
    assert [top.index for top in tops] == list(range(5))
    assert [top.ids for top in tops] == best.indices[1:].tolist()
    assert [top.logprobs for top in tops] == [pytest.approx(values) for values in best.values[1:].tolist()]


def test_watermark_marks_a_part_of_the_vocabulary_that_the_previous_token_chooses() -> None:
    previous = torch.tensor([7, 8, 7])
    green = green_list(previous, 0.25, 40_000)
    assert green.float().mean().item() == pytest.approx(0.25, abs=0.01)
    assert torch.equal(green[0], green[2])
    assert not torch.equal(green[0], green[1])
    assert not green_list(previous, 0.0, 100).any()
    assert green_list(previous, 1.0, 100).all()
    marked = processed(
        torch.zeros(3, 9000), [asking([1, 7], watermark=True), asking([1, 8]), asking([8], watermark=True)]
    )
    assert torch.equal(marked[[0, 2]], 2.0 * green_list(torch.tensor([7, 8]), 0.5, 9000))
    assert not marked[1].any()
