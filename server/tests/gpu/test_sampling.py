"""The sampling kernels as they serve: through the dispatcher, on the device, in graphs."""

import pytest
import torch
from support.sampling import EVERYTHING, FILTERS, Run, asking, assert_alike, choices_of, filters_of, mixture, runs
from torch import Tensor

from text_generation_kernels import SampledTokens, advance_state
from text_generation_server.config.server import WatermarkConfig
from text_generation_server.distributed import TensorParallelGroup
from text_generation_server.engine.mask_pool import MaskPool
from text_generation_server.engine.requests import Request
from text_generation_server.engine.sampling import Sampler
from text_generation_server.engine.sampling_state import SamplingState
from text_generation_server.layers.weights import VocabularyShard

pytestmark = pytest.mark.gpu
VOCAB = 128_256


def logits_of(batch: int, scale: float = 3.0, dtype: torch.dtype = torch.bfloat16, vocab: int = VOCAB) -> Tensor:
    generator = torch.Generator("cuda").manual_seed(batch)
    return (scale * torch.randn(batch, vocab, device="cuda", generator=generator)).to(dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("vocab", [7, 4097, 32_000, VOCAB])
def test_every_parameter_alone_and_together(vocab: int, dtype: torch.dtype) -> None:
    # Enough mass is left to each side of every bound for the two exponential functions to agree.
    requests = mixture()
    assert_alike(*runs(logits_of(len(requests), vocab=vocab, dtype=dtype), requests, generated=2, eos_token_ids=(0,)))


def test_masks() -> None:
    requests = mixture()
    allowed = {position: range(position, 128_256, 3) for position in range(0, len(requests), 2)}
    assert_alike(*runs(logits_of(len(requests), vocab=128_256), requests, allowed=allowed))


@pytest.mark.parametrize("scale", [0.0, 0.02, 1.0, 6.0])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_filters_keep_what_the_formulas_say(scale: float, dtype: torch.dtype) -> None:
    """In float64: what is kept is better than what is not, reaches the share, and is not more than that takes."""
    logits = logits_of(4, scale, dtype)
    requests = [asking(top_k=50), asking(top_k=50_000), asking(top_p=0.9), asking(typical_p=0.9)]
    run, triton_run = runs(logits, requests)
    kept = triton_run.kept
    assert torch.equal(kept[:2], run.kept[:2])
    probabilities = logits.double().softmax(-1)
    surprise = -probabilities.log()
    entropy = (probabilities * surprise).nansum(-1, keepdim=True)
    for row, badness in ((2, surprise[2]), (3, (surprise - entropy).abs()[3])):
        share = probabilities[row][kept[row]].sum()
        worst = badness[kept[row]].max()
        assert worst <= badness.masked_fill(kept[row], torch.inf).min() + 1e-5
        assert share >= 0.9 - 1e-6
        equal = kept[row] & (badness >= worst - 1e-5)
        # top-p drops ties of the last token, typical-p keeps them.
        surplus = probabilities[row][equal].max() if row == 2 else probabilities[row][equal].sum()
        assert share - surplus <= 0.9 + 1e-6


def alone(state: SamplingState) -> Sampler:
    """A sampler of the only rank."""
    group = TensorParallelGroup(0, 1, state.device)
    masks = MaskPool(2, state.vocab_size, state.device)
    return Sampler(state, masks, WatermarkConfig(), VocabularyShard.of(state.vocab_size, 0, 1), group)


def serve(logits: Tensor, requests: list[Request]) -> SampledTokens:
    run = Run(logits, requests)
    batch = run.batch
    sampled = alone(run.state)(logits, batch.rows, batch.last_token, batch.generated, False)
    return SampledTokens.of(sampled.record.cpu())


class InTurns(TensorParallelGroup):
    """One rank of several that run one after the other: what they bring to a collective is there the next time they
    run.
    """

    def __init__(self, rank: int, brought: list[list[Tensor]]) -> None:
        super().__init__(rank, len(brought), torch.device("cuda"))
        self._brought = brought
        self._place = 0

    def _exchange(self, tensor: Tensor) -> list[Tensor]:
        self._brought[self.rank][self._place :] = [tensor.clone()]
        self._place += 1
        return [each[self._place - 1] if len(each) >= self._place else tensor for each in self._brought]

    def all_gather(self, tensor: Tensor) -> Tensor:
        return torch.stack(self._exchange(tensor))

    def all_to_all(self, tensor: Tensor) -> Tensor:
        return torch.stack([each[self.rank] for each in self._exchange(tensor)])


def serve_shared(logits: Tensor, requests: list[Request], world_size: int) -> list[SampledTokens]:
    """What each rank chooses."""
    brought: list[list[Tensor]] = [[] for _ in range(world_size)]
    parts = [VocabularyShard.of(VOCAB, rank, world_size) for rank in range(world_size)]
    records: list[SampledTokens] = []
    # There are two collectives at most.
    for _ in range(3):
        records = []
        for rank, part in enumerate(parts):
            run = Run(logits, requests)
            columns = logits.new_zeros(len(requests), part.width)
            columns[:, : part.number] = logits[:, part.start : part.start + part.number]
            masks = MaskPool(2, VOCAB, run.state.device)
            sampler = Sampler(run.state, masks, WatermarkConfig(), part, InTurns(rank, brought))
            whole_rows = run.state.need_whole_rows(range(len(requests)))
            batch = run.batch
            sampled = sampler(columns, batch.rows, batch.last_token, batch.generated, whole_rows)
            records.append(SampledTokens.of(sampled.record.cpu()))
    return records


@pytest.mark.parametrize("world_size", [2, 4, 8])
@pytest.mark.parametrize("filtered", [False, True])
def test_ranks_that_share_the_vocabulary_choose_the_same_bits(filtered: bool, world_size: int) -> None:
    processed = [asking([3, 3], repetition_penalty=1.2, presence_penalty=0.5), asking(watermark=True)]
    sampling = [asking(do_sample=True, seed=seed, temperature=0.5 + seed / 8) for seed in range(9)]
    requests = [asking(), *processed, *sampling, *(filters_of(FILTERS) if filtered else [])]
    logits = logits_of(len(requests))
    expected = serve(logits, requests)
    for found in serve_shared(logits, requests, world_size):
        assert torch.equal(found.logprobs, expected.logprobs)
        assert choices_of(found) == choices_of(expected)


def test_a_row_gets_the_same_bits_alone_and_in_a_batch() -> None:
    # So many that rows share programs, which one alone does not.
    requests = [*mixture(), *filters_of(FILTERS), *mixture(), *filters_of(FILTERS)]
    logits = logits_of(len(requests), 2.0)
    together = serve(logits, requests)
    reverse = serve(logits.flip(0), requests[::-1])
    for i, request in enumerate(requests):
        alone = serve(logits[i : i + 1], [request])
        for other, j in ((alone, 0), (reverse, len(requests) - 1 - i)):
            assert torch.equal(other.logprobs[j], together.logprobs[i])
            assert choices_of(other)[j] == choices_of(together)[i]


def test_one_graph_serves_whatever_its_rows_ask_for() -> None:
    """Captured with plain rows, replayed with every kind; padding positions share the last row."""
    requests = mixture()
    batch = len(requests)
    logits = logits_of(batch + 2)
    state = SamplingState(batch + 1, VOCAB, logits.device, [5])
    sampler = alone(state)
    rows = torch.tensor([*range(batch), batch, batch], device="cuda")
    last, length, generated = (torch.ones(batch + 1, dtype=torch.int64, device="cuda") for _ in range(3))
    length[-1] = 0

    def step() -> SampledTokens:
        sampled = sampler(logits, rows, last, generated, False)
        advance_state(sampled.tokens, rows, last, length, generated, state.columns)
        return sampled

    step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        sampled = step()
    results = []
    for run in (graph.replay, step):
        state.admit(range(batch), requests)
        last[:], generated[:], length[:-1] = 1, 0, 1
        tokens = []
        for _ in range(4):
            now = run() or sampled
            tokens.append(now.record.clone())
        results.append([choices_of(SampledTokens.of(record.cpu()))[:batch] for record in tokens])
        assert length.tolist() == [5] * batch + [0]
        assert generated.tolist() == [4] * batch + [0]
    assert results[0] == results[1]


def test_draws_follow_the_softmax_of_the_survivors() -> None:
    """Chi-square over 20,000 seeds; 22.5 is the 0.1 % point for 6 degrees of freedom."""
    draws = 20_000
    logits = torch.full((1, 5000), -50.0, device="cuda")
    logits[0, [7, 8, 1000, 1001, 2000, 4095, 4096, 4999]] = torch.tensor(
        [2.0, 1.0, 0.0, -1.0, 0.5, 0.5, -2.0, 1.5], device="cuda"
    )
    sampled = serve(logits.repeat(draws, 1), [asking(do_sample=True, seed=seed, top_k=7) for seed in range(draws)])
    survivors = logits[0].masked_fill(logits[0] < -1.5, -torch.inf).double().softmax(-1).cpu() * draws
    observed = torch.bincount(sampled.tokens, minlength=5000).double()
    assert (observed[survivors == 0] == 0).all()
    chosen = survivors > 0
    assert ((observed - survivors)[chosen] ** 2 / survivors[chosen]).sum().item() < 22.5


def test_unsound_rows_harm_no_neighbour() -> None:
    logits = logits_of(4)
    logits[1, 77_777], logits[2] = torch.nan, -torch.inf
    for parameters in ({}, EVERYTHING):
        choices = choices_of(serve(logits, [asking(top_n=2, **parameters)] * 4))
        assert [choice.valid for choice in choices] == [True, False, False, True]
        assert [choice.token for choice in choices[1:3]] == [0, 0]
