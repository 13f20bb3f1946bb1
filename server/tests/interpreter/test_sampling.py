"""The Triton kernels of sampling in Triton's interpreter against their torch implementations: run with
TRITON_INTERPRET=1."""

import math

import numpy as np
import pytest
import torch
from support.sampling import (
    EVERYTHING,
    FILTERS,
    Run,
    asking,
    assert_alike,
    choices_of,
    filters_of,
    mixture,
    runs,
    triton_operators,
)

from text_generation_kernels import SamplingBatch, SamplingRules, SplitStatistics
from text_generation_kernels.sampling import _narrow
from text_generation_kernels.sampling._search import CANDIDATES, TILE
from text_generation_kernels.sampling.advance_state import advance_state_torch, advance_state_triton
from text_generation_kernels.sampling.columns import EXCLUDED, split_size
from text_generation_kernels.sampling.logits_process import logits_process_torch, logits_process_triton
from text_generation_kernels.sampling.philox import vocabulary_bits
from text_generation_server.engine.mask_pool import MaskPool
from text_generation_server.engine.requests import MaskForm, MaskWrite
from text_generation_server.engine.sampling_state import SamplingState

VOCAB = 1025
"""Of splits of 128 ids, but for the last, which has one."""
LARGE = 33_000
"""Of splits of 4,096 ids, as of the models that are served, which kernels read in several blocks."""
SPLIT = split_size(VOCAB)


@pytest.mark.parametrize(
    ("vocab", "dtype"),
    [(7, torch.float32), (VOCAB, torch.float16)],
)
def test_every_parameter_alone_and_together(vocab: int, dtype: torch.dtype) -> None:
    requests = mixture()
    generator = torch.Generator().manual_seed(vocab)
    logits = (3 * torch.randn(len(requests), vocab, generator=generator)).to(dtype)
    assert_alike(*runs(logits, requests, generated=2, eos_token_ids=(0, 6)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("vocab", [1, 31, 32, 33, 64, LARGE])
def test_boundaries_of_splits(vocab: int, dtype: torch.dtype) -> None:
    logits = torch.randn(3, vocab, generator=torch.Generator().manual_seed(vocab)).to(dtype)
    assert_alike(*runs(logits, [asking(), asking(do_sample=True, seed=3, temperature=0.3), asking(watermark=True)]))


def test_plain_rows_write_no_scores() -> None:
    _, run = runs(torch.randn(2, 9), [asking(), asking(do_sample=True)])
    assert run.batch.scores.isnan().all()


@pytest.mark.parametrize("vocab", [31, 33, 95])
def test_masks(vocab: int) -> None:
    requests = mixture()
    logits = 3 * torch.randn(len(requests), vocab, generator=torch.Generator().manual_seed(vocab))
    allowed = {position: range(position % 2, vocab, 3) for position in range(0, len(requests), 2)}
    allowed |= {2: range(0), 4: range(vocab - 1, vocab)}
    torch_run, triton_run = runs(logits, requests, allowed=allowed)
    assert_alike(torch_run, triton_run)
    assert triton_run.sampled.valid[2] == EXCLUDED
    assert triton_run.sampled.tokens[4] == vocab - 1


@pytest.mark.parametrize("vocab", [33, VOCAB])
def test_places_of_windows_have_masks_of_their_own(vocab: int) -> None:
    """Row 1 has no masks; place 2 of row 0 may have any token."""
    width, widest = 3, 4
    requests = [asking(do_sample=True, seed=3), asking(), asking((5, 7), repetition_penalty=1.7, min_new_tokens=9)]
    number = width * len(requests)
    logits = 3 * torch.randn(number, vocab, generator=torch.Generator().manual_seed(vocab))
    inputs = torch.arange(number) % vocab
    scores = []
    for process in (logits_process_torch, logits_process_triton):
        state = SamplingState(len(requests), vocab, torch.device("cpu"), [2], widest)
        state.admit(range(len(requests)), requests)
        masks = MaskPool(4, vocab, torch.device("cpu"))
        masks.write(
            [MaskWrite(slot, MaskForm.ONLY, np.arange(slot, vocab, slot, dtype=np.int64)) for slot in range(1, 4)]
        )
        state.use_window_masks([2, 0, 1], np.array([[3, 2, 1], [1, 3, 0], [0, 0, 0]]))
        rules = SamplingRules(state.eos_token_ids, masks.bits, state.window_masks, 0.25, 2.0)
        rows = torch.arange(number) // width
        batch = SamplingBatch.of(logits.clone(), rows, torch.zeros(3).long(), torch.ones(3).long(), 0, width, inputs)
        statistics = SplitStatistics.empty(batch, vocab)
        process(batch, state.columns, rules, statistics)
        scores.append(batch.scores)
        excluded = torch.isneginf(batch.scores)
        for place, slot in enumerate((1, 3, 0, 0, 0, 0, 3, 2, 1)):
            expected = torch.zeros(vocab, dtype=torch.bool)
            if slot:
                expected = torch.ones(vocab, dtype=torch.bool)
                expected[slot::slot] = False
            expected[2] |= place >= 2 * width
            assert torch.equal(excluded[place], expected), place
    masked = [place for place in range(number) if place // width != 1]
    assert torch.equal(scores[0][masked], scores[1][masked])


@pytest.mark.parametrize("shape", ["flat", "peaked", "ties", "many excluded", "steep"])
def test_filters_of_any_distribution(shape: str) -> None:
    """More tokens than fit into the registers of the search, so that passes over the row come first."""
    vocab = TILE + CANDIDATES + 77
    noise = torch.randn(1, vocab, generator=torch.Generator().manual_seed(5))
    logits = {
        "flat": noise / 50,
        "peaked": 6 * noise,
        "ties": (2 * noise).round() / 2,
        "many excluded": torch.where(noise > 1, noise, -math.inf),
        "steep": noise.exp().exp().clamp(max=1e30),
    }[shape]
    requests = filters_of(FILTERS[:: 2 if shape in ("peaked", "steep") else 1])
    assert_alike(*runs(logits.repeat(len(requests), 1), requests))


@pytest.mark.parametrize("number", [4, 7])
def test_filters_where_rows_share_a_thread_block(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """As with many rows: here few, on a card without SMs."""
    monkeypatch.setattr(_narrow, "num_sms", lambda _: 0)
    logits = 4 * torch.randn(number, LARGE, generator=torch.Generator().manual_seed(6))
    logits[1] /= 50
    asked = [{"top_p": 0.9}, {"top_p": 0.9}, {}, {"top_k": 9000, "top_p": 0.5}, {"top_k": 50}, {"top_p": 0.1}, {}]
    assert_alike(*runs(logits, filters_of(asked[:number])))


def test_a_vocabulary_of_one_value() -> None:
    logits = torch.zeros(3, TILE + CANDIDATES + 1)
    logits[2, 7] = 1.0
    assert_alike(*runs(logits, filters_of([{"top_p": 0.9}, {"top_k": 50, "typical_p": 0.5}, {"top_p": 0.1}])))


def test_unsound_rows_harm_no_neighbour() -> None:
    logits = torch.randn(5, 50)
    logits[1, 7], logits[2, 49], logits[3] = math.nan, math.inf, -math.inf
    for requests in ([asking(top_n=2)] * 5, [asking(top_n=2, **EVERYTHING)] * 5):
        torch_run, triton_run = runs(logits, requests)
        assert_alike(torch_run, triton_run)
        assert triton_run.sampled.valid.tolist() == [1, 0, 0, EXCLUDED, 1]
        assert triton_run.sampled.tokens[1:4].tolist() == [0, 0, 0]


def test_ties_go_to_the_lowest_id_across_splits() -> None:
    logits = torch.zeros(3, VOCAB)
    logits[1, [SPLIT + 3, 2 * SPLIT]] = 1.0
    logits[2, 0] = -1.0
    _, run = runs(logits, [asking(top_n=20), asking(), asking(top_k=9)])
    assert run.sampled.tokens.tolist() == [0, SPLIT + 3, 1]
    assert choices_of(run.sampled)[0].top_tokens.ids == tuple(range(32))  # type: ignore[union-attr]


def test_a_full_logit_bias_is_added_in_every_split() -> None:
    generator = torch.Generator().manual_seed(2)
    ids = torch.randperm(VOCAB, generator=generator)[:1024].tolist()
    bias = tuple((token, float(i)) for i, token in enumerate(ids))
    assert_alike(*runs(torch.zeros(1, VOCAB), [asking(logit_bias=bias)]))


def test_extreme_temperatures() -> None:
    logits = 100 * torch.randn(6, 64, generator=torch.Generator().manual_seed(0))
    requests = [asking(do_sample=True, temperature=t, top_p=0.9) for t in (1e-44, 1e-38, 1e-3, 1e3, 1e30, 3e38)]
    assert_alike(*runs(logits, requests))


def test_positions_may_share_a_plain_row_and_rows_may_be_strided() -> None:
    logits = torch.randn(4, 120)[:, 10:110]
    expected = logits.argmax(1)
    run = Run(logits, [asking()] * 4, operators=triton_operators())
    run.batch = run.batch._replace(rows=torch.tensor([3, 3, 0, 3]))
    assert torch.equal(run.all().sampled.tokens, expected)


def test_an_empty_batch() -> None:
    Run(torch.empty(0, 10), [], operators=triton_operators()).all()


def test_advance_state() -> None:
    generator = torch.Generator().manual_seed(1)
    requests = [asking([1], presence_penalty=0.1 * (i % 2)) for i in range(100)]
    results = []
    for implementation in (advance_state_torch, advance_state_triton):
        run = Run(torch.zeros(100, 11), requests)
        generator.manual_seed(1)
        rows = torch.randperm(100, generator=generator)[:70]
        tokens = torch.randint(11, (140,), generator=generator)[::2]
        last, length, generated = (torch.randint(50, (100,), generator=generator) for _ in range(3))
        length[rows[:2]] = 0
        rows[1] = rows[0]
        columns = run.state.columns
        for _ in range(2):
            implementation(tokens, rows, last, length, generated, columns)
        results.append((last, length, generated, columns.counts))
    for ours, expected in zip(*results, strict=True):
        assert torch.equal(ours, expected)
    assert results[0][3].max() == 7
    advance_state_triton(tokens[:0], rows[:0], last, length, generated, columns)


def test_watermark_and_noise_use_the_bits_of_philox() -> None:
    """Were one bit of the words different, half of the green list would be."""
    run = Run(torch.zeros(1, 5000), [asking([4321], watermark=True)], operators=triton_operators()).process()
    green = vocabulary_bits(torch.tensor([4321]), torch.tensor([0]), 1, 5000) < 2**31
    assert torch.equal(run.batch.scores, 2.0 * green)
