"""Runs the sampling operators one after the other on a small batch, so that each can be looked at alone."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from text_generation_kernels import SampledTokens, SamplingBatch, SamplingRules, SplitStatistics
from text_generation_kernels.sampling.choose import choose_torch, choose_triton
from text_generation_kernels.sampling.columns import Flags, Floats, Ints, distance, num_splits, survives
from text_generation_kernels.sampling.draw import draw_torch, draw_triton
from text_generation_kernels.sampling.logits_process import logits_process_torch, logits_process_triton
from text_generation_kernels.sampling.survivors import survivors_torch, survivors_triton
from text_generation_kernels.sampling.top_tokens import top_tokens_torch, top_tokens_triton
from text_generation_server.engine.mask_pool import MaskPool
from text_generation_server.engine.requests import MaskForm, MaskWrite, NextTokenChooserParameters, Request
from text_generation_server.engine.sampling_state import SamplingState

GAMMA, DELTA = 0.5, 2.0


@dataclass(frozen=True)
class Operators:
    """The implementations that a run uses."""

    logits_process: Callable[..., None] = logits_process_torch
    survivors: Callable[..., None] = survivors_torch
    draw: Callable[..., None] = draw_torch
    choose: Callable[..., None] = choose_torch
    top_tokens: Callable[..., None] = top_tokens_torch


TORCH = Operators()


@dataclass(frozen=True)
class TopList:
    ids: tuple[int, ...]
    logprobs: tuple[float, ...]


@dataclass(frozen=True)
class Choice:
    """What was chosen for one row. `token` is a valid id even when `valid` is false."""

    token: int
    logprob: float
    valid: bool
    top_tokens: TopList | None


def choices_of(sampled: SampledTokens) -> list[Choice]:
    """Of a record on the host."""
    found = []
    columns = (sampled.tokens, sampled.logprobs, sampled.valid, sampled.num_top)
    for row, (token, logprob, valid, number) in enumerate(zip(*(c.tolist() for c in columns), strict=True)):
        lists = (sampled.top_ids[row, :number].tolist(), sampled.top_logprobs[row, :number].tolist())
        found.append(Choice(token, logprob, valid > 0, TopList(*map(tuple, lists)) if number else None))
    return found


def asking(prompt: Sequence[int] = (1,), min_new_tokens: int = 0, top_n: int = 0, **parameters: object) -> Request:
    """A request of which only what sampling looks at matters."""
    return Request(
        id=0,
        row=0,
        input_ids=np.array(prompt),
        parameters=NextTokenChooserParameters(min_new_tokens=min_new_tokens, **parameters),  # type: ignore[arg-type]
        slots=(),
        top_n_tokens=top_n,
    )


@dataclass
class Run:
    """Tensors of one run, poisoned before it. Row i of the state serves batch position i unless `rows` says else."""

    logits: Tensor
    requests: Sequence[Request]
    generated: int = 0
    eos_token_ids: Sequence[int] = ()
    allowed: Mapping[int, Sequence[int]] = field(default_factory=dict)
    """The ids that a batch position may choose, of those that have a mask."""
    operators: Operators = TORCH

    def __post_init__(self) -> None:
        device, (batch, vocab) = self.logits.device, self.logits.shape
        self.state = SamplingState(batch, vocab, device, self.eos_token_ids)
        self.state.admit(range(batch), self.requests)
        self.masks = MaskPool(1 + len(self.allowed), vocab, device)
        if self.allowed:
            slots = range(1, len(self.allowed) + 1)
            written = zip(slots, self.allowed.values(), strict=True)
            self.masks.write(
                [MaskWrite(slot, MaskForm.ONLY, np.array(list(ids), dtype=np.int64)) for slot, ids in written]
            )
            self.state.use_masks(list(self.allowed), slots)

        def poisoned(*shape: int) -> Tensor:
            return torch.full(shape, torch.nan, device=device)

        self.batch = SamplingBatch(
            logits=self.logits,
            scores=poisoned(batch, vocab),
            rows=torch.arange(batch, device=device),
            last_token=torch.tensor([int(request.input_ids[-1]) for request in self.requests], device=device),
            generated=torch.full((batch,), self.generated, device=device),
            first_id=0,
        )
        self.rules = SamplingRules(self.state.eos_token_ids, self.masks.bits, self.state.window_masks, GAMMA, DELTA)
        self.statistics = SplitStatistics.of(poisoned(5, batch, num_splits(vocab)).view(torch.int32))
        self.statistics.best_id.fill_(-1)
        self.bounds = poisoned(batch, 4)
        self.sampled = SampledTokens.of(torch.full((batch, SampledTokens.WIDTH), -7, dtype=torch.int32, device=device))

    def process(self) -> "Run":
        self.operators.logits_process(self.batch, self.state.columns, self.rules, self.statistics)
        return self

    def filter(self) -> "Run":
        self.operators.survivors(self.batch, self.state.columns, self.statistics, self.bounds)
        return self

    def choose(self) -> "Run":
        columns, statistics = self.state.columns, self.statistics
        self.operators.draw(self.batch, columns, statistics, self.bounds)
        self.operators.choose(
            SplitStatistics.of(statistics.record.unsqueeze(0)), self.batch.rows, columns, self.sampled
        )
        return self

    def report(self) -> "Run":
        self.operators.top_tokens(self.batch, self.state.columns, self.statistics, self.bounds, self.sampled)
        return self

    def all(self) -> "Run":
        """Every operator, in order."""
        return self.process().filter().choose().report()

    @property
    def processed(self) -> Tensor:
        """The processed scores of every row, float32 [N, vocab], also of those that need not write them."""
        written = self.state.columns.ints[:, Ints.FLAGS] & Flags.SCORES != 0
        return torch.where(written.unsqueeze(1), self.batch.scores, self.logits.float())

    @property
    def u(self) -> Tensor:
        """Distances below the best, float32 [N, vocab]."""
        return distance(self.processed, self.statistics.best.amax(1), self.state.columns.floats[:, Floats.TEMPERATURE])

    @property
    def kept(self) -> Tensor:
        """Survivors, bool [N, vocab]."""
        return survives(self.u, self.bounds)


def filtered(logits: Tensor, requests: Iterable[Request], operators: Operators = TORCH) -> Tensor:
    """Survivors of the filters, bool [N, vocab]."""
    return Run(logits, list(requests), operators=operators).process().filter().kept


def processed(logits: Tensor, requests: Iterable[Request], **options: object) -> Tensor:
    """Processed scores, float32 [N, vocab]."""
    return Run(logits.clone(), list(requests), **options).process().processed  # type: ignore[arg-type]


def triton_operators() -> Operators:
    """Those of the Triton kernels."""
    return Operators(logits_process_triton, survivors_triton, draw_triton, choose_triton, top_tokens_triton)


EVERYTHING = {
    "do_sample": True,
    "temperature": 0.8,
    "top_k": 300,
    "top_p": 0.95,
    "typical_p": 0.9,
    "min_p": 0.001,
    "repetition_penalty": 1.2,
    "frequency_penalty": 0.25,
    "presence_penalty": -0.5,
    "watermark": True,
    "logit_bias": ((2, 3.0), (0, -2.0)),
}


def mixture() -> list[Request]:
    """Each parameter alone, all together, and none."""
    alone = [asking([1, 2, 2], **{name: value}) for name, value in EVERYTHING.items() if name != "do_sample"]
    sampled = [
        asking([3, 3], do_sample=True, seed=2**64 - 5),
        asking(do_sample=True, seed=7, temperature=2.5),
        asking(do_sample=True, top_k=1),
        asking(do_sample=True, top_p=0.3, top_n=20),
        asking([5, 1], min_new_tokens=3, top_n=3, seed=9, **EVERYTHING),
    ]
    return [asking(), *alone, *sampled, asking(min_new_tokens=3), asking(top_n=4)]


def runs(logits: Tensor, requests: Sequence[Request], **options: object) -> tuple[Run, Run]:
    """The same in torch and in Triton."""
    made = [
        Run(logits.clone(), requests, operators=operators, **options).all()  # type: ignore[arg-type]
        for operators in (Operators(), triton_operators())
    ]
    return made[0], made[1]


def assert_alike(torch_run: Run, triton_run: Run) -> None:
    """Every output of the one is that of the other, up to rounding where it is a float."""
    torch.testing.assert_close(triton_run.processed, torch_run.processed, equal_nan=True)
    torch.testing.assert_close(triton_run.statistics.best, torch_run.statistics.best, equal_nan=True)
    sound = torch_run.sampled.valid > 0
    assert torch.equal(triton_run.sampled.valid, torch_run.sampled.valid)
    torch.testing.assert_close(triton_run.bounds[sound], torch_run.bounds[sound])
    assert torch.equal(triton_run.kept[sound], torch_run.kept[sound])
    assert torch.equal(triton_run.sampled.tokens, torch_run.sampled.tokens)
    torch.testing.assert_close(triton_run.sampled.logprobs, torch_run.sampled.logprobs, equal_nan=True)
    assert torch.equal(triton_run.sampled.num_top, torch_run.sampled.num_top)
    for row, number in enumerate(torch_run.sampled.num_top.tolist()):
        ours, expected = (run.sampled for run in (triton_run, torch_run))
        assert torch.equal(ours.top_ids[row, :number], expected.top_ids[row, :number])
        torch.testing.assert_close(
            ours.top_logprobs[row, :number], expected.top_logprobs[row, :number], atol=1e-5, rtol=0
        )


FILTERS = [
    {"top_k": 50},
    {"top_k": 5000},
    {"top_k": 10**6},
    {"top_p": 1e-6},
    {"top_p": 0.9},
    {"top_p": 0.9999},
    {"typical_p": 0.2},
    {"typical_p": 0.95},
    {"min_p": 0.01},
    {"top_k": 4000, "top_p": 0.7, "typical_p": 0.5, "min_p": 0.5},
]


def filters_of(filters: Iterable[dict[str, object]]) -> list[Request]:
    """Sampling requests with these filters."""
    return [asking(do_sample=True, seed=i, top_n=5, **each) for i, each in enumerate(filters)]
