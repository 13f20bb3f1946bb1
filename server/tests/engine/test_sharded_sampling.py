"""Ranks that share the vocabulary choose what one rank chooses, bit for bit, when the logits are the same."""

from collections.abc import Callable, Sequence

import pytest
import torch
from support.sampling import FILTERS, asking, choices_of, filters_of, mixture
from support.thread_ranks import thread_groups, together
from torch import Tensor

from text_generation_kernels import Flags, SampledTokens
from text_generation_server.config.server import WatermarkConfig
from text_generation_server.distributed import TensorParallelGroup
from text_generation_server.engine.mask_pool import MaskPool
from text_generation_server.engine.requests import MaskForm, MaskWrite, Request
from text_generation_server.engine.sampling import Sampler
from text_generation_server.engine.sampling_state import SamplingState
from text_generation_server.engine.scoring import ScoredTokens, Scorer
from text_generation_server.layers.weights import VocabularyShard

CPU = torch.device("cpu")
WORLDS = [2, 3, 8]
PLAIN = {"temperature": 0.7, "repetition_penalty": 1.3, "frequency_penalty": 0.2, "presence_penalty": 0.4}


def part_of(logits: Tensor, part: VocabularyShard) -> Tensor:
    """Returns the columns that a rank computes; those past the vocabulary hold values that must not matter."""
    columns = torch.full((len(logits), part.width), 1e9)
    columns[:, : part.number] = logits[:, part.start : part.start + part.number]
    return columns


def sample(logits: Tensor, requests: Sequence[Request], group: TensorParallelGroup, masked: int = 0) -> SampledTokens:
    """What one rank of the group chooses. The first `masked` rows may choose every third id alone."""
    vocab = logits.shape[1]
    part = VocabularyShard.of(vocab, group.rank, group.world_size)
    state, masks = SamplingState(len(requests), vocab, CPU, [1, vocab - 1]), MaskPool(2, vocab, CPU)
    masks.write([MaskWrite(1, MaskForm.ONLY, torch.arange(0, vocab, 3).numpy())])
    rows = list(range(len(requests)))
    state.admit(rows, requests)
    state.use_masks(rows[:masked], [1] * masked)
    sampler = Sampler(state, masks, WatermarkConfig(), part, group)
    last, generated = torch.full((len(rows),), 2), torch.ones(len(rows), dtype=torch.int64)
    return sampler(part_of(logits, part), torch.tensor(rows), last, generated, state.need_whole_rows(rows))


def everywhere(world_size: int, work: Callable[[TensorParallelGroup], SampledTokens]) -> list[SampledTokens]:
    return together([lambda group=group: work(group) for group in thread_groups(world_size)])


def logits_for(requests: Sequence[Request], vocab: int) -> Tensor:
    return 3 * torch.randn(len(requests), vocab, generator=torch.Generator().manual_seed(vocab))


def assert_same_bits(found: SampledTokens, expected: SampledTokens) -> None:
    assert torch.equal(found.tokens, expected.tokens)
    assert torch.equal(found.valid, expected.valid)
    assert torch.equal(found.logprobs.view(torch.int32), expected.logprobs.view(torch.int32))
    assert choices_of(found) == choices_of(expected)


@pytest.mark.parametrize("world_size", WORLDS)
@pytest.mark.parametrize("vocab", [31, 32, 33, 509, 5003])
def test_rows_without_filters_share_splits_of_the_vocabulary(vocab: int, world_size: int) -> None:
    sampling = [asking([3, 3], do_sample=True, seed=seed, **PLAIN) for seed in range(8)]
    processed = [asking(logit_bias=((0, 2.0), (vocab - 1, 9.0))), asking(min_new_tokens=3), asking(watermark=True)]
    requests = [*processed, asking(), *sampling, asking(do_sample=True, seed=2**64 - 1, temperature=1e-3)]
    logits = logits_for(requests, vocab)
    expected = sample(logits, requests, TensorParallelGroup(0, 1, CPU), masked=5)
    for found in everywhere(world_size, lambda group: sample(logits, requests, group, masked=5)):
        assert_same_bits(found, expected)


@pytest.mark.parametrize("world_size", WORLDS)
@pytest.mark.parametrize("vocab", [31, 32, 509])
def test_rows_with_filters_or_alternatives_are_shared_as_rows(vocab: int, world_size: int) -> None:
    requests = [*mixture(), *filters_of(FILTERS), asking(top_n=4)]
    logits = logits_for(requests, vocab)
    expected = sample(logits, requests, TensorParallelGroup(0, 1, CPU))
    for found in everywhere(world_size, lambda group: sample(logits, requests, group)):
        assert_same_bits(found, expected)


def test_a_row_has_the_same_bits_beside_rows_with_filters_and_without() -> None:
    plain = [asking(do_sample=True, seed=seed) for seed in range(5)]
    logits = logits_for([*plain, asking()], 509)
    first = everywhere(4, lambda group: sample(logits[:5], plain, group))[0]
    second = everywhere(4, lambda group: sample(logits, [*plain, asking(top_k=3)], group))[0]
    assert choices_of(first) == choices_of(second)[:5]


def test_unsound_rows_are_told_on_every_rank() -> None:
    requests = [asking(do_sample=True)] * 4
    logits = logits_for(requests, 509)
    logits[1, 400], logits[2], logits[3, 7] = torch.nan, -torch.inf, torch.inf
    for found in everywhere(4, lambda group: sample(logits, requests, group)):
        assert found.valid.tolist() == [1, 0, -1, 0]
        assert found.tokens.tolist()[1:] == [0, 0, 0]


@pytest.mark.parametrize("world_size", WORLDS)
@pytest.mark.parametrize("vocab", [31, 32, 131])
def test_prompts_are_scored_from_parts(vocab: int, world_size: int) -> None:
    logits = 3 * torch.randn(40, vocab, generator=torch.Generator().manual_seed(1))
    targets = torch.arange(40) * 3 % vocab

    def score(group: TensorParallelGroup) -> ScoredTokens:
        part = VocabularyShard.of(vocab, group.rank, group.world_size)
        return Scorer(lambda hidden, _: part_of(hidden, part), part, group)(logits, targets, num_top=5)

    expected = logits.log_softmax(-1)
    for scored in together([lambda group=group: score(group) for group in thread_groups(world_size)]):
        torch.testing.assert_close(scored.logprobs, expected[torch.arange(40), targets])
        for place, top in enumerate(scored.tops(0, 40, 5)):
            assert list(top.ids) == expected[place].topk(5).indices.tolist()
            torch.testing.assert_close(torch.tensor(top.logprobs), expected[place].topk(5).values)


@pytest.mark.parametrize("vocab", [1, 31, 33, 509, 32_000, 50_257, 128_256, 151_936])
@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 8, 16])
def test_parts_cover_the_vocabulary_in_whole_splits(vocab: int, world_size: int) -> None:
    parts = [VocabularyShard.of(vocab, rank, world_size) for rank in range(world_size)]
    assert [part.is_whole for part in parts] == [world_size == 1] * world_size
    assert sum(part.number for part in parts) == vocab
    ends = [part.start + part.number for part in parts if part.number]
    assert [part.start for part in parts if part.number] == [0, *ends[:-1]]
    assert len({part.width for part in parts}) == 1


def test_which_rows_need_all_of_their_tokens() -> None:
    requests = mixture()
    state = SamplingState(len(requests), 64, CPU, [])
    state.admit(range(len(requests)), requests)
    for row, request in enumerate(requests):
        asks = bool(state.columns.ints[row, 0] & int(Flags.FILTERS | Flags.TOP))
        assert state.need_whole_rows([row]) == asks, request
