"""Inputs of the gated delta rule."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import torch
from torch import Tensor

from text_generation_kernels import Runs

from .convolution import Run

LENGTHS = [1, 2, 63, 64, 65, 130]
CHUNKS = [
    *(Run(tokens) for tokens in LENGTHS),
    Run(5, padding=True),
    Run(0, 9),
    *(Run(tokens, 1 + tokens % 4) for tokens in LENGTHS),
    Run(0, padding=True),
]
SHORT = [Run(3), Run(1, 2), Run(2, padding=True), Run(0, 9), Run(4, 70), Run(0, padding=True)]
UNTOUCHED = -77.0
DECODES = [Run(1), Run(1, 1), Run(1, padding=True), Run(1, 70), Run(1, padding=True)]

Operator = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Runs, Tensor, bool, int], None]


@dataclass(frozen=True)
class Delta:
    """Runs of a step, and what the operator must make of them. What must not be read is NaN: tokens of no run, and
    states of requests that have not begun. What must not be written is `UNTOUCHED`.
    """

    qkv: Tensor
    gates: Tensor
    rate: Tensor
    bias: Tensor
    state: Tensor
    rows: Tensor
    starts: Tensor | None
    kv_lens: Tensor
    max_len: int
    expected: Tensor
    """[tokens, heads, value_dim] float64"""
    expected_state: Tensor
    """[rows, heads, key_dim, value_dim] float64"""
    most_beta: int = 1

    @classmethod
    def of(
        cls,
        runs: Sequence[Run],
        heads: int,
        key_heads: int,
        key_dim: int,
        value_dim: int,
        dtype: torch.dtype,
        device: str = "cpu",
        decay: float = 1.0,
        corrected: float = 0.0,
        alike: float = 0.0,
        most_beta: int = 1,
    ) -> "Delta":
        """Chunks, after two tokens of others. `decay` makes g larger or smaller, `corrected` moves beta towards 1, and
        `alike`, up to 1, makes the keys of all tokens the same.
        """
        torch.manual_seed(0)
        starts = list(accumulate((run.tokens for run in runs), initial=2))
        tokens, rows = starts[-1] + 3, len(runs) + 3
        width, keys = 2 * key_heads * key_dim + heads * value_dim, key_heads * key_dim
        qkv, gates = torch.randn(tokens, width + 16), torch.randn(tokens, 2 * heads + 5)
        qkv[:, keys : 2 * keys] = alike * qkv[:1, keys : 2 * keys] + (1 - alike) * qkv[:, keys : 2 * keys]
        gates[:, :heads] += corrected
        made = cls(
            # With other data between tokens.
            qkv=qkv.to(device, dtype)[:, :width],
            gates=gates.to(device, dtype)[:, : 2 * heads],
            rate=torch.linspace(-1, 1, heads).to(device) + torch.tensor(decay).log().to(device),
            bias=torch.linspace(-3, 0, heads).to(device),
            state=torch.full((rows, heads, key_dim, value_dim), UNTOUCHED, device=device),
            rows=torch.randperm(rows)[: len(runs)].to(device),
            starts=torch.tensor(starts, dtype=torch.int32, device=device),
            kv_lens=torch.tensor([0 if each.padding else each.tokens + each.past for each in runs]).int().to(device),
            max_len=max((run.tokens for run in runs), default=0),
            expected=torch.full((tokens, heads, value_dim), UNTOUCHED, dtype=torch.float64, device=device),
            expected_state=torch.full((rows, heads, key_dim, value_dim), UNTOUCHED).double().to(device),
            most_beta=most_beta,
        )
        used = torch.zeros(tokens, dtype=torch.bool)
        for run, row, start in zip(runs, made.rows.tolist(), starts, strict=False):
            if not run.padding:
                made._expect(run, row, start)
                used[start : start + run.tokens] = True
        for each in (made.qkv, made.gates):
            each[~used.to(device)] = float("nan")
        return made

    @classmethod
    def of_decodes(
        cls, heads: int, key_heads: int, key_dim: int, value_dim: int, dtype: torch.dtype, device: str = "cpu"
    ) -> "Delta":
        """`DECODES`, with tokens of others after them."""
        made = cls.of(DECODES, heads, key_heads, key_dim, value_dim, dtype, device)
        return replace(made, qkv=made.qkv[2:], gates=made.gates[2:], starts=None, expected=made.expected[2:])

    def _expect(self, run: Run, row: int, start: int) -> None:
        """Makes a state up where the request has begun, and computes the formula."""
        key_dim = self.state.shape[2]
        self.state[row] = torch.randn(self.state.shape[1:]) if run.past else float("nan" if run.tokens else UNTOUCHED)
        state = self.state[row].double() if run.past else torch.zeros_like(self.expected_state[row])
        for token in range(start, start + run.tokens):
            q, k, v = self._vectors(self.qkv[token].double())
            b, a = self.gates[token].double().chunk(2)
            decay = (-self.rate.double().exp() * (1 + (a + self.bias.double()).exp()).log()).exp()
            beta = self.most_beta / (1 + (-b).exp())
            state = decay[:, None, None] * state
            wrong = v - torch.einsum("hk,hkv->hv", k, state)
            state = state + torch.einsum("h,hk,hv->hkv", beta, k, wrong)
            self.expected[token] = torch.einsum("hk,hkv->hv", q, state) / key_dim**0.5
        if run.past or run.tokens:
            self.expected_state[row] = state

    def _vectors(self, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Normalised query and key of each head, and its value."""
        _, heads, key_dim, value_dim = self.state.shape
        q, k = qkv[: -heads * value_dim].view(2, -1, key_dim)
        q, k = (each / (each.square().sum(dim=1, keepdim=True) + 1e-6).sqrt() for each in (q, k))
        key_head = torch.arange(heads, device=qkv.device) * len(q) // heads
        return q[key_head], k[key_head], qkv[-heads * value_dim :].view(heads, value_dim)

    def run(self, operator: Operator, deterministic: bool = False, max_len: int | None = None) -> tuple[Tensor, Tensor]:
        """The result, and the state after it."""
        out, state = torch.full_like(self.expected, UNTOUCHED, dtype=self.qkv.dtype), self.state.clone()
        runs = Runs(self.rows, self.starts, self.kv_lens, self.max_len if max_len is None else max_len)
        operator(self.qkv, self.gates, self.rate, self.bias, state, runs, out, deterministic, self.most_beta)
        return out, state

    def check(self, operator: Operator, deterministic: bool = False, max_len: int | None = None) -> None:
        """As near to the formula as float32 and the rounding of results allow. With blocks of tokens all operands of
        GEMM results are rounded as well.
        """
        out, state = self.run(operator, deterministic, max_len)
        eps = torch.finfo(out.dtype).eps
        in_blocks = eps > 1e-6 and not deterministic and self.starts is not None and (max_len or self.max_len) > 16
        check_close(out, self.expected, 3 * eps if in_blocks else eps)
        check_close(state, self.expected_state, 3 * eps if in_blocks else 0.0)


def check_close(got: Tensor, expected: Tensor, limit: float) -> None:
    """`limit`: of errors, relative to the largest number. NaN is never close."""
    untouched = expected == UNTOUCHED
    assert got[untouched].eq(UNTOUCHED).all()
    error, largest = (each.masked_fill(untouched, 0).abs().max() for each in (got.double() - expected, expected))
    assert error <= (limit + 5e-5) * largest


def check_cuts(
    operator: Operator, dtype: torch.dtype, sizes: tuple[int, int, int, int], tokens: int, cuts: Sequence[int],
    device: str = "cpu",
) -> None:  # fmt: skip
    """Where a run is cut, whatever is beside it, and as decodes: the same bits, if they are to be."""
    whole = Delta.of([Run(tokens, 3), Run(2)], *sizes, dtype, device)
    expected, expected_state = whole.run(operator, deterministic=True)
    row, out, state = whole.rows[:1], torch.full_like(expected, float("nan")), whole.state.clone()
    for begin, end in zip([0, *cuts], [*cuts, tokens], strict=True):
        kv_lens = torch.tensor([3 + end], dtype=torch.int32, device=device)
        # A single token comes as a decode.
        starts = torch.tensor([0, end - begin], dtype=torch.int32, device=device) if end - begin > 1 else None
        part = slice(2 + begin, 2 + end)
        of_model = (whole.qkv[part], whole.gates[part], whole.rate, whole.bias)
        operator(*of_model, state, Runs(row, starts, kv_lens, end - begin), out[part], True, 1)
    assert torch.equal(out[2 : 2 + tokens], expected[2 : 2 + tokens])
    assert torch.equal(state[row], expected_state[row])
