"""Inputs of Kimi delta attention."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from text_generation_kernels import Runs

from .convolution import Run
from .delta import DECODES, UNTOUCHED, check_close

Operator = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Runs, Tensor, bool, float], None]


@dataclass(frozen=True)
class KimiDelta:
    """Runs of a step, and what the operator must make of them; see `Delta`."""

    inputs: tuple[Tensor, Tensor, Tensor, Tensor, Tensor]
    """qkv, betas, gates, rate and bias."""
    state: Tensor
    runs: Runs
    expected: Tensor
    """[tokens, heads, value_dim] float64"""
    expected_state: Tensor
    """[rows, heads, key_dim, value_dim] float64"""
    least: float = 0.0

    @classmethod
    def of(
        cls,
        runs: Sequence[Run],
        heads: int,
        key_dim: int,
        value_dim: int,
        dtype: torch.dtype,
        device: str = "cpu",
        decay: float = 1.0,
        corrected: float = 0.0,
        alike: float = 0.0,
        least: float = 0.0,
        decodes: bool = False,
    ) -> "KimiDelta":
        """Chunks, after two tokens of others, or `decodes`. `decay`, `corrected` and `alike` are those of `Delta`."""
        torch.manual_seed(0)
        starts = list(accumulate((run.tokens for run in runs), initial=0 if decodes else 2))
        tokens, rows, keys = starts[-1] + 3, len(runs) + 3, heads * key_dim
        # With other data between tokens.
        qkv, betas = torch.randn(tokens, 2 * keys + heads * value_dim + 16), torch.randn(tokens, heads + 5) + corrected
        gates = torch.randn(tokens, keys + 8)
        qkv[:, keys : 2 * keys] = alike * qkv[:1, keys : 2 * keys] + (1 - alike) * qkv[:, keys : 2 * keys]
        inputs = (
            qkv.to(device, dtype)[:, :-16],
            betas.to(device, dtype)[:, :heads],
            gates.to(device, dtype)[:, :keys],
            torch.linspace(-1, 1, heads).to(device) + torch.tensor(decay).log().to(device),
            torch.linspace(-3, 0, keys).view(heads, key_dim).to(device),
        )
        kv_lens = torch.tensor([0 if each.padding else each.tokens + each.past for each in runs]).int().to(device)
        starts_tensor = None if decodes else torch.tensor(starts, dtype=torch.int32, device=device)
        longest = max((run.tokens for run in runs), default=0)
        made = cls(
            inputs,
            torch.full((rows, heads, key_dim, value_dim), UNTOUCHED, device=device),
            Runs(torch.randperm(rows)[: len(runs)].to(device), starts_tensor, kv_lens, longest),
            torch.full((tokens, heads, value_dim), UNTOUCHED, dtype=torch.float64, device=device),
            torch.full((rows, heads, key_dim, value_dim), UNTOUCHED).double().to(device),
            least,
        )
        used = torch.zeros(tokens, dtype=torch.bool)
        for run, row, start in zip(runs, made.runs.rows.tolist(), starts, strict=False):
            if not run.padding:
                made._expect(run, row, start)
                used[start : start + run.tokens] = True
        for each in inputs[:3]:
            each[~used.to(device)] = float("nan")
        return made

    @classmethod
    def of_decodes(
        cls, heads: int, key_dim: int, value_dim: int, dtype: torch.dtype, device: str = "cpu"
    ) -> "KimiDelta":
        """`DECODES`, with tokens of others after them."""
        return cls.of(DECODES, heads, key_dim, value_dim, dtype, device, decodes=True)

    def _expect(self, run: Run, row: int, start: int) -> None:
        """Makes a state up where the request has begun, and computes the formula."""
        qkv, betas, gates, rate, bias = (each.double() for each in self.inputs)
        _, heads, key_dim, value_dim = self.state.shape
        self.state[row] = torch.randn(self.state.shape[1:]) if run.past else float("nan" if run.tokens else UNTOUCHED)
        state = self.state[row].double() if run.past else torch.zeros_like(self.expected_state[row])
        for token in range(start, start + run.tokens):
            q, k = qkv[token, : 2 * heads * key_dim].view(2, heads, key_dim)
            q, k = (each / (each.square().sum(dim=1, keepdim=True) + 1e-6).sqrt() for each in (q, k))
            v = qkv[token, 2 * heads * key_dim :].view(heads, value_dim)
            opened, speed = gates[token].view(heads, key_dim) + bias, rate.exp()[:, None]
            fall = -speed * (1 + opened.exp()).log()
            if self.least:
                fall = self.least / (1 + (-speed * opened).exp())
            state = fall.exp()[:, :, None] * state
            wrong = v - torch.einsum("hk,hkv->hv", k, state)
            state = state + torch.einsum("h,hk,hv->hkv", 1 / (1 + (-betas[token]).exp()), k, wrong)
            self.expected[token] = torch.einsum("hk,hkv->hv", q, state) / key_dim**0.5
        if run.past or run.tokens:
            self.expected_state[row] = state

    def run(self, operator: Operator, deterministic: bool = False) -> tuple[Tensor, Tensor]:
        """The result, and the state after it."""
        out, state = torch.full_like(self.expected, UNTOUCHED, dtype=self.inputs[0].dtype), self.state.clone()
        operator(*self.inputs, state, self.runs, out, deterministic, self.least)
        return out, state

    def check(self, operator: Operator, deterministic: bool = False) -> None:
        """As near to the formula as `Delta.check` asks."""
        out, state = self.run(operator, deterministic)
        eps = torch.finfo(out.dtype).eps
        in_blocks = eps > 1e-6 and not deterministic and self.runs.starts is not None and self.runs.max_len > 16
        check_close(out, self.expected, 3 * eps if in_blocks else eps)
        check_close(state, self.expected_state, 3 * eps if in_blocks else 0.0)


def check_cuts(
    operator: Operator, dtype: torch.dtype, sizes: tuple[int, int, int], tokens: int, cuts: Sequence[int],
    device: str = "cpu",
) -> None:  # fmt: skip
    """Where a run is cut, whatever is beside it, and as decodes: the same bits, if they are to be."""
    whole = KimiDelta.of([Run(tokens, 3), Run(2)], *sizes, dtype, device)
    expected, expected_state = whole.run(operator, deterministic=True)
    row, out, state = whole.runs.rows[:1], torch.full_like(expected, float("nan")), whole.state.clone()
    for begin, end in zip([0, *cuts], [*cuts, tokens], strict=True):
        kv_lens = torch.tensor([3 + end], dtype=torch.int32, device=device)
        # A single token comes as a decode.
        starts = torch.tensor([0, end - begin], dtype=torch.int32, device=device) if end - begin > 1 else None
        part = slice(2 + begin, 2 + end)
        of_model = (*(each[part] for each in whole.inputs[:3]), *whole.inputs[3:])
        operator(*of_model, state, Runs(row, starts, kv_lens, end - begin), out[part], True, 0.0)
    assert torch.equal(out[2 : 2 + tokens], expected[2 : 2 + tokens])
    assert torch.equal(state[row], expected_state[row])
