"""Attention with the options and head sizes of other families: correctness on the device, and times with and without.

    python benchmark/kernels/attention_options.py [--dry-run] > benchmark/results/attention_options.json

Each row is one variant of `decode_attention` (64 requests of 8,192) or `prefill_attention` (one prompt of 8,192), whose
slots are scattered. `error` is how far a smaller call of the same variant is from the formula in float64, `torch_error`
how far the torch implementation is in the same type: the script ends with 1 where the first exceeds twice the second,
or where a result is not finite. `times_plain` is the time as a ratio to the variant without options.
"""

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from _pool import filled
from _timing import Plan, Row, report, seconds_per_call
from torch import Tensor

import text_generation_kernels as kernels
from text_generation_kernels import AttentionOptions
from text_generation_kernels.attention.decode_attention import decode_attention_torch
from text_generation_kernels.attention.prefill_attention import prefill_attention_torch

KV_HEADS = 8
WINDOW = 4096
OPTIONS = {
    64: ["", "window", "sinks", "window sinks"],  # gpt-oss
    80: [""],
    96: ["", "window"],  # Phi-3
    128: ["", "window", "softcap", "sinks", "slopes"],
    192: [""],
    256: ["", "window", "softcap", "window softcap"],  # Gemma 2
}
failed: list[str] = []


@dataclass(frozen=True)
class Batch:
    """Requests with `q_len` new tokens each, the last of `kv_len`, and their scattered slots.

    What a call needs stands here before it: kernels may read lengths while the previous kernel still runs.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    table: Tensor
    rows: Tensor
    starts: Tensor
    kv_lens: Tensor
    q_len: int
    kv_len: int
    scale: float
    options: AttentionOptions

    def call(self, decode: Callable[..., None], prefill: Callable[..., None], out: Tensor, *options: object) -> None:
        """Decodes where there is one new token of each request."""
        context = (self.q, self.k, self.v, self.table, self.rows)
        if self.q_len == 1:
            decode(*context, self.kv_lens, self.kv_len, self.scale, out, False, *options)
        else:
            prefill(*context, self.starts, self.kv_lens, self.q_len, self.scale, out, False, *options)

    def run(self, out: Tensor) -> None:
        """The operators."""
        self.call(kernels.decode_attention, kernels.prefill_attention, out, self.options)

    def run_torch(self, out: Tensor) -> None:
        """Their torch implementations."""
        self.call(decode_attention_torch, prefill_attention_torch, out, *self.options.arguments())


def make(plan: Plan, names: str, head_dim: int, shape: tuple[int, int, int], window: int) -> Batch:
    """`shape` is the number of requests, and `q_len` and `kv_len` of each."""
    batch, q_len, kv_len = shape
    heads = 2 * KV_HEADS if head_dim == 256 else 4 * KV_HEADS
    data = {"dtype": plan.dtype, "device": plan.device}
    q = torch.empty(batch * q_len, heads, head_dim, **data).normal_()
    cache = filled(plan, batch * kv_len, KV_HEADS, head_dim)
    table = torch.randperm(batch * kv_len, device=plan.device).int().view(batch, kv_len)
    rows = torch.arange(batch, device=plan.device)
    starts = torch.arange(batch + 1, device=plan.device, dtype=torch.int32) * q_len
    kv_lens = torch.full((batch,), kv_len, device=plan.device, dtype=torch.int32)
    options = AttentionOptions(
        window=window if "window" in names else 0,
        softcap=50.0 if "softcap" in names else 0.0,
        sinks=torch.randn(heads, device=plan.device) if "sinks" in names else None,
        slopes=torch.exp2(-8 * torch.rand(heads, device=plan.device)) if "slopes" in names else None,
    )
    return Batch(q, cache.k, cache.v, table, rows, starts, kv_lens, q_len, kv_len, head_dim**-0.5, options)


def formula(batch: Batch) -> Tensor:
    """Float64, one request at a time."""
    options, pieces = batch.options, []
    keys = torch.arange(batch.kv_len, device=batch.q.device)
    distances = keys - keys[batch.kv_len - batch.q_len :, None]
    seen = (distances <= 0) & (distances > -(options.window or batch.kv_len + 1))
    for q, slots in zip(batch.q.split(batch.q_len), batch.table.long(), strict=True):
        k, v = (cache[slots].double().repeat_interleave(q.shape[1] // KV_HEADS, dim=1) for cache in (batch.k, batch.v))
        scores = torch.einsum("qhd,khd->hqk", q.double(), k) * batch.scale
        if options.softcap:
            scores = options.softcap * (scores / options.softcap).tanh()
        if options.slopes is not None:
            scores = scores + options.slopes.double()[:, None, None] * distances
        exponentials = scores.masked_fill(~seen, float("-inf")).exp()
        total = exponentials.sum(dim=-1, keepdim=True)
        if options.sinks is not None:
            total = total + options.sinks.double().exp()[:, None, None]
        pieces.append(torch.einsum("hqk,khd->qhd", exponentials / total, v))
    return torch.cat(pieces)


def errors(batch: Batch) -> tuple[float, float]:
    """Largest distance from the formula, of the operator and of torch."""
    out, torch_out = (torch.full_like(batch.q, float("nan")) for _ in range(2))
    batch.run(out)
    batch.run_torch(torch_out)
    expected = formula(batch)
    return (out.double() - expected).abs().max().item(), (torch_out.double() - expected).abs().max().item()


def rows(plan: Plan, ceiling: float) -> Iterator[Row]:  # noqa: ARG001 - times are compared with each other
    """One row for each operator, head size and options."""
    timed = {"decode": (64, 1, 8192), "prefill": (1, 8192, 8192)}
    checked = {"decode": (5, 1, 1300), "prefill": (2, 300, 1300)}
    if plan.dry_run:
        timed, checked = {"decode": (2, 1, 9), "prefill": (1, 5, 9)}, {"decode": (3, 1, 7), "prefill": (2, 4, 7)}
    for head_dim, all_names in OPTIONS.items():
        for operator, shape in timed.items():
            plain = 0.0
            for names in all_names:
                # The window of the check ends within the prefix, within chunks and splits of it.
                error, torch_error = errors(make(plan, names, head_dim, checked[operator], 5 if plan.dry_run else 333))
                form = f"{operator} {head_dim} {names}".strip()
                if not error <= 2 * torch_error + 1e-5:
                    failed.append(f"{form}: error {error}, of torch {torch_error}")
                batch = make(plan, names, head_dim, shape, 5 if plan.dry_run else WINDOW)
                out = torch.empty_like(batch.q)
                seconds = seconds_per_call(plan, lambda _, batch=batch, out=out: batch.run(out), 1)
                plain = plain or seconds
                yield {
                    "form": form,
                    "microseconds": seconds * 1e6,
                    "times_plain": seconds / plain,
                    "error": error,
                    "torch_error": torch_error,
                }


if __name__ == "__main__":
    report("attention_options", __doc__.splitlines()[0], rows)
    if failed:
        sys.exit("\n".join(failed))
