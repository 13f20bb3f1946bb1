"""Inputs of the causal convolution of layers with a recurrent state."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from text_generation_kernels import Runs


class Run(NamedTuple):
    """New tokens of a request."""

    tokens: int
    past: int = 0
    """Tokens of the request before them."""
    padding: bool = False
    """It is nobody's: its `kv_lens` is 0."""

    @property
    def continued(self) -> bool:
        """Whether there are any."""
        return self.past > 0


LENGTHS = [1, 2, 3, 4, 63, 64, 65, 130]
CHUNKS = [
    *(Run(tokens) for tokens in LENGTHS),
    Run(5, padding=True),
    Run(0, 9),
    *(Run(tokens, 1 + tokens % 4) for tokens in LENGTHS),
    Run(0, padding=True),
]
DECODES = [Run(1), Run(1, 1), Run(1, padding=True), Run(1, 2), Run(1, 3), Run(1, 70), Run(1, padding=True)]

Operator = Callable[[Tensor, Tensor, Tensor | None, Tensor, Runs, Tensor, bool], None]


@dataclass(frozen=True)
class Convolution:
    """Runs of a step, and what the operator must make of them. All that belongs to no run is NaN, and must stay so:
    tokens of others before and after the runs, rows of nobody, and rows of requests that have not begun.
    """

    x: Tensor
    weight: Tensor
    bias: Tensor | None
    state: Tensor
    rows: Tensor
    starts: Tensor | None
    kv_lens: Tensor
    expected: Tensor
    """[tokens, channels] float64"""
    expected_state: Tensor
    silu: bool = True

    @classmethod
    def of(
        cls,
        runs: Sequence[Run],
        channels: int,
        taps: int,
        dtype: torch.dtype,
        device: str = "cpu",
        bias: bool = True,
        silu: bool = True,
    ) -> "Convolution":
        """Chunks, after two tokens of others. The weight has its channels side by side where there is no bias."""
        torch.manual_seed(0)
        starts = list(accumulate((run.tokens for run in runs), initial=2))
        x, state = _nothing(starts[-1] + 3, channels + 16)[:, 8:-8], _nothing(len(runs) + 3, taps - 1, channels)
        x, state = x.to(device, dtype), state.to(device, dtype)
        weight = torch.randn(channels, taps) if bias else torch.randn(taps, channels).t()
        made = cls(
            x=x,
            weight=weight.to(device, dtype),
            bias=torch.randn(channels).to(device, dtype) if bias else None,
            state=state,
            rows=torch.randperm(len(runs) + 3)[: len(runs)].to(device),
            starts=torch.tensor(starts, dtype=torch.int32, device=device),
            kv_lens=torch.tensor([0 if each.padding else each.tokens + each.past for each in runs]).int().to(device),
            expected=_nothing(*x.shape).to(device, torch.float64),
            expected_state=state.clone(),
            silu=silu,
        )
        for run, row, start in zip(runs, made.rows.tolist(), starts, strict=False):
            if not run.padding:
                made._fill(run, row, start)
        return made

    @classmethod
    def of_decodes(
        cls, channels: int, taps: int, dtype: torch.dtype, device: str = "cpu", silu: bool = True
    ) -> "Convolution":
        """`DECODES`, with tokens of others after them."""
        made = cls.of(DECODES, channels, taps, dtype, device, silu=silu)
        return replace(made, x=made.x[2:], starts=None, expected=made.expected[2:])

    def _fill(self, run: Run, row: int, start: int) -> None:
        """Makes a request up, and computes it as a whole."""
        channels, taps = self.weight.shape
        inputs = torch.randn(run.past + run.tokens, channels).to(self.x)
        padded = functional.pad(inputs, (0, 0, taps - 1, 0))
        self.x[start : start + run.tokens] = inputs[run.past :]
        if run.past:
            self.state[row] = padded[run.past : run.past + taps - 1]
        if run.past or run.tokens:
            self.expected_state[row] = padded[run.past + run.tokens :]
        bias = None if self.bias is None else self.bias.double()
        weight = self.weight.double()[:, None]
        sums = functional.conv1d(padded.double().t()[None], weight, bias, groups=channels)[0].t()
        self.expected[start : start + run.tokens] = (sums / (1 + (-sums).exp()) if self.silu else sums)[run.past :]

    def run(self, operator: Operator) -> tuple[Tensor, Tensor]:
        """The result, and the state after it."""
        tokens, channels = self.x.shape
        # With other data between tokens.
        out, state = self.x.new_full((tokens, channels + 8), float("nan"))[:, :channels], self.state.clone()
        runs = Runs(self.rows, self.starts, self.kv_lens, tokens)
        operator(self.x, self.weight, self.bias, state, runs, out, self.silu)
        return out, state

    def check(self, operator: Operator, reference: Operator) -> None:
        """At most twice as far from the formula as the reference, and the same state to the bit."""
        (out, state), (near, _) = self.run(operator), self.run(reference)
        assert torch.equal(out.isnan(), self.expected.isnan())
        error, limit = ((each.double() - self.expected).abs().nan_to_num().max() for each in (out, near))
        assert error <= 2 * limit + 1e-5
        torch.testing.assert_close(state, self.expected_state, atol=0, rtol=0, equal_nan=True)


def _nothing(*shape: int) -> Tensor:
    return torch.full(shape, float("nan"))


def check_cuts(operator: Operator, dtype: torch.dtype, device: str = "cpu") -> None:
    """A request gets the same bits as one run and as many, of which those of one token are decodes."""
    whole = Convolution.of([Run(113)], 40, 4, dtype, device)
    expected, state = whole.run(operator)
    out, begin, piece = torch.zeros_like(expected[2:-3]), 0, whole.x[2:-3]
    pool = torch.full_like(state, float("nan"))
    for tokens in (1, 1, 2, 3, 1, 4, 17, 1, 1, 1, 1, 63, 16, 1):
        kv_lens = whole.kv_lens.new_tensor([begin + tokens])
        starts = None if tokens == 1 else torch.tensor([0, tokens], dtype=torch.int32, device=device)
        cut = slice(begin, begin + tokens)
        runs = Runs(whole.rows, starts, kv_lens, tokens)
        operator(piece[cut], whole.weight, whole.bias, pool, runs, out[cut], True)
        begin += tokens
    assert begin == len(out)
    assert torch.equal(out, expected[2:-3])
    assert torch.equal(pool[whole.rows], state[whole.rows])
