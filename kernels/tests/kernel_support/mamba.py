"""Inputs of the recurrences of Mamba 1 and 2 and of RG-LRU, and what their formulas make of them in float64."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import torch
from torch import Tensor

from kernel_support.convolution import Run
from kernel_support.graphs import run_in_graph
from text_generation_kernels import LruDynamics, Runs, ScanDynamics, SpaceDynamics

LENGTHS = [1, 2, 63, 64, 65, 130]
ALONE = [Run(1), Run(1, 1), Run(1, padding=True), Run(1, 1), Run(1), Run(1, padding=True)]
"""For `decodes`."""
BEFORE = 2
"""Tokens of others before the first run."""
FEW = 3e-5
"""Of error that every result may have: sums in another order."""


def runs_of(lengths: Sequence[int]) -> list[Run]:
    """Fresh and continued runs, with padding and a run without tokens among them."""
    continued = [Run(tokens, 1) for tokens in lengths]
    return [*map(Run, lengths), Run(5, padding=True), Run(0, 1), *continued, Run(0, padding=True)]


@dataclass(frozen=True)
class Recurrence:
    """Runs of a step, and what an operator must make of them. All that belongs to no run is NaN, and must stay so:
    tokens of others before and after the runs, rows of nobody, and rows of requests that have not begun.
    """

    inputs: tuple[Tensor, ...]
    """By token."""
    dynamics: LruDynamics | ScanDynamics | SpaceDynamics
    state: Tensor
    rows: Tensor
    starts: Tensor | None
    kv_lens: Tensor
    max_len: int
    out: Tensor
    expected: Tensor
    """Of `out`, float64."""
    expected_state: Tensor
    """float64"""

    def run(self, operator: Callable[..., None], *arguments: bool) -> tuple[Tensor, Tensor]:
        """The result, and the state after it. `arguments` come last."""
        out, state = self.out.clone(), self.state.clone()
        runs = Runs(self.rows, self.starts, self.kv_lens, self.max_len)
        operator(*self.inputs, self.dynamics, state, runs, out, *arguments)
        return out, state

    def check(self, operator: Callable[..., None], *arguments: bool, rounded: bool = False) -> None:
        """Nothing else is touched, and results are right but for their rounding; or, where an operator has `rounded`
        what it multiplies, but for twice the rounding of the largest.
        """
        for found, expected in zip(self.run(operator, *arguments), (self.expected, self.expected_state), strict=True):
            unit = torch.finfo(self.out.dtype if rounded else found.dtype).eps
            close = 2 * unit * expected.nan_to_num().abs().max().item() if rounded else FEW
            torch.testing.assert_close(found.double(), expected, atol=close, rtol=unit + FEW, equal_nan=True)

    @property
    def decodes(self) -> "Recurrence":
        """Runs of one token each, as decodes: without the tokens before them."""
        inputs = tuple(each[BEFORE:] for each in self.inputs)
        out, expected = self.out[BEFORE:], self.expected[BEFORE:]
        return replace(self, inputs=inputs, starts=None, max_len=1, out=out, expected=expected)

    def with_one_step(self) -> "Recurrence":
        """The same of `state_space` where one row of zeros is that of time steps of all tokens. It needs bounds of time
        steps that leave no choice.
        """
        x, dt, *others = self.inputs
        row = dt.new_zeros(dt.shape[1]).as_strided(dt.shape, (0, 1))
        return replace(self, inputs=(x, row, *others))


class _Step:
    """Where runs lie, and random tensors for them."""

    def __init__(self, runs: Sequence[Run], dtype: torch.dtype, device: str) -> None:
        torch.manual_seed(0)
        self._runs = runs
        self._starts = list(accumulate((run.tokens for run in runs), initial=BEFORE))
        self._rows = torch.randperm(len(runs) + 3)[: len(runs)]
        self._like = torch.empty(0, dtype=dtype, device=device)

    @property
    def bounds(self) -> Iterator[tuple[int, int, int, bool]]:
        """First token, the one past the last, row, and whether it is continued, of each run with something to do."""
        for run, start, row in zip(self._runs, self._starts, self._rows.tolist(), strict=False):
            if run.tokens and not run.padding:
                yield start, start + run.tokens, row, run.continued

    def weight(self, *shape: int) -> Tensor:
        return torch.randn(shape).to(self._like.device)

    def tokens(self, *size: int) -> Tensor:
        """NaN where no run is."""
        made = torch.full((self._starts[-1] + 3, *size), float("nan"))
        for first, end, _, _ in self.bounds:
            made[first:end] = torch.randn(end - first, *size)
        return made.to(self._like)

    def states(self, *size: int) -> Tensor:
        """NaN where no run goes on."""
        made = torch.full((len(self._runs) + 3, *size), float("nan"))
        for _, _, row, continued in self.bounds:
            if continued:
                made[row] = torch.randn(size)
        return made.to(self._like.device)

    def finish(
        self,
        inputs: tuple[Tensor, ...],
        dynamics: LruDynamics | ScanDynamics | SpaceDynamics,
        state: Tensor,
        advance: Callable[[Tensor, int], tuple[Tensor, Tensor]],
    ) -> Recurrence:
        """`advance`: the formula for one token, of a state and the number of the token; the state after it, and what
        comes out.
        """
        expected, expected_state = torch.full(inputs[0].shape, float("nan")).to(state).double(), state.double()
        for first, end, row, continued in self.bounds:
            current = expected_state[row] if continued else torch.zeros_like(expected_state[row])
            for token in range(first, end):
                current, expected[token] = advance(current, token)
            expected_state[row] = current
        device, continued = state.device, [9 if run.continued else 0 for run in self._runs]
        kv_lens = [0 if run.padding else run.tokens + past for run, past in zip(self._runs, continued, strict=True)]
        return Recurrence(
            inputs=inputs,
            dynamics=dynamics,
            state=state,
            rows=self._rows.to(device),
            starts=torch.tensor(self._starts, dtype=torch.int32, device=device),
            kv_lens=torch.tensor(kv_lens, dtype=torch.int32, device=device),
            max_len=max(run.tokens for run in self._runs),
            out=torch.full_like(expected, float("nan"), dtype=self._like.dtype),
            expected=expected,
            expected_state=expected_state,
        )


def scan(runs: Sequence[Run], channels: int, n: int, dtype: torch.dtype, device: str = "cpu") -> Recurrence:
    """Of `selective_scan`. z, b and c are slices, as of fused GEMMs."""
    step = _Step(runs, dtype, device)
    a_log, d, bias = step.weight(channels, n) - 1, step.weight(channels), step.weight(channels) - 2
    x, dt, z = step.tokens(channels), step.tokens(channels), step.tokens(2 * channels)[:, channels:]
    b, c = step.tokens(8 + 2 * n)[:, 8:].split(n, dim=1)
    wide = [each.double() for each in (x, dt, b, c, z, a_log, d, bias)]

    def advance(state: Tensor, token: int) -> tuple[Tensor, Tensor]:
        x, dt, b, c, z = (each[token] for each in wide[:5])
        a_log, d, bias = wide[5:]
        time = (1 + (dt + bias).exp()).log()
        state = (time[:, None] * -a_log.exp()).exp() * state + torch.outer(time * x, b)
        return state, (state @ c + d * x) * z / (1 + (-z).exp())

    return step.finish((x, dt, b, c, z), ScanDynamics(a_log, d, bias), step.states(channels, n), advance)


def space(
    runs: Sequence[Run],
    heads: int,
    p: int,
    groups: int,
    n: int,
    dtype: torch.dtype,
    device: str = "cpu",
    low: float = 0.0,
    high: float = float("inf"),
) -> Recurrence:
    """Of `state_space`. x, b and c are slices of one tensor, dt of another."""
    step = _Step(runs, dtype, device)
    a_log, d, bias = step.weight(heads) - 1, step.weight(heads), step.weight(heads) - 2
    mixed = step.tokens(heads * p + 2 * groups * n)
    x, b, c = mixed.split((heads * p, groups * n, groups * n), dim=1)
    x, b, c = x.unflatten(1, (heads, p)), b.unflatten(1, (groups, n)), c.unflatten(1, (groups, n))
    dt = step.tokens(heads + 8)[:, 8:]
    wide = [each.double() for each in (x, dt, b, c, a_log, d, bias)]

    def advance(state: Tensor, token: int) -> tuple[Tensor, Tensor]:
        x, dt, b, c = (each[token] for each in wide[:4])
        a_log, d, bias = wide[4:]
        b, c = (each.repeat_interleave(heads // groups, dim=0) for each in (b, c))
        time = (1 + (dt + bias).exp()).log().clamp(low, high)
        state = (time * -a_log.exp()).exp()[:, None, None] * state + torch.einsum("h,hp,hn->hpn", time, x, b)
        return state, torch.einsum("hpn,hn->hp", state, c) + d[:, None] * x

    return step.finish((x, dt, b, c), SpaceDynamics(a_log, d, bias, low, high), step.states(heads, p, n), advance)


def lru(runs: Sequence[Run], blocks: int, width: int, dtype: torch.dtype, device: str = "cpu") -> Recurrence:
    """Of `gated_lru`. x and z are slices of one tensor."""
    step, channels = _Step(runs, dtype, device), blocks * width
    rate, bias = -step.weight(channels).abs(), step.weight(2, channels)
    z, x = step.tokens(2 * channels).split(channels, dim=1)
    gates, begins = step.tokens(2 * channels), {first for first, _, _, continued in step.bounds if not continued}
    wide = [each.double() for each in (x, gates, z)]
    rates, biases = rate.double(), bias.double()

    def advance(state: Tensor, token: int) -> tuple[Tensor, Tensor]:
        x, gates, z = (each[token] for each in wide)
        opened = (gates.view(blocks, 2, width).transpose(0, 1).flatten(1) + biases).sigmoid()
        decay = (rates * opened[0]).exp()
        kept = 1.0 if token in begins else (1 - decay**2).sqrt()
        state = decay * state + kept * opened[1] * x
        return state, state * torch.nn.functional.gelu(z, approximate="tanh")

    inputs = (x, gates, z)
    return step.finish(inputs, LruDynamics(rate, bias, width), step.states(channels), advance)


def check_cuts(operator: Callable[..., None], whole: Recurrence, *arguments: bool) -> None:
    """A request of 113 tokens gets the same bits as one run and as many, of which those of one token are decodes."""
    expected, state = whole.run(operator, *arguments)
    pool, out, begin = torch.full_like(state, float("nan")), whole.out.clone(), 0
    for tokens in (1, 1, 2, 3, 1, 4, 17, 1, 1, 1, 1, 63, 16, 1):
        cut = slice(BEFORE + begin, BEFORE + begin + tokens)
        begin += tokens
        kv_lens = whole.kv_lens.new_tensor([begin])
        starts = None if tokens == 1 else kv_lens.new_tensor([0, tokens])
        runs = Runs(whole.rows, starts, kv_lens, tokens)
        operator(*(each[cut] for each in whole.inputs), whole.dynamics, pool, runs, out[cut], *arguments)
    assert begin == 113
    torch.testing.assert_close(out, expected, atol=0, rtol=0, equal_nan=True)
    assert torch.equal(pool[whole.rows], state[whole.rows])


def check_graph(operator: Callable[..., None], captured: Recurrence, replayed: Recurrence, *arguments: bool) -> None:
    """A graph of one step computes another with as many tokens and runs."""
    inputs = zip(captured.inputs, replayed.inputs, strict=True)
    expected, found = run_in_graph(operator, captured, replayed, inputs, *arguments)
    torch.testing.assert_close(found, expected, atol=0, rtol=0, equal_nan=True)
