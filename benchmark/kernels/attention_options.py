"""Bar of attention with options and head sizes of other families: correctness on the device, and times.

Each row is one variant of `decode_attention` (64 requests of 8,192) or `prefill_attention` (one prompt of 8,192), whose
slots are scattered. `error` is how far a smaller call of the same variant is from the formula in float64, `torch_error`
how far the torch implementation is in the same type. After the last row the bar raises RuntimeError where the first
exceeds twice the second, or a result is not finite. `times_plain`: the time as a ratio to the variant without options.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

import text_generation_kernels as kernels
from text_generation_kernels import AttentionOptions
from text_generation_kernels.attention.decode_attention import decode_attention_torch
from text_generation_kernels.attention.prefill_attention import prefill_attention_torch

from .bar import Bar
from .pool import Context, filled
from .timing import Plan, Row, seconds_per_call

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


@dataclass(frozen=True)
class Batch:
    """Requests with as many new tokens each, which are the last of their contexts."""

    q: Tensor
    cache: kernels.KvCache
    context: Context
    scale: float
    options: AttentionOptions

    def call(self, decode: Callable[..., None], prefill: Callable[..., None], out: Tensor) -> None:
        """Decodes where there is one new token of each request."""
        decodes = self.context.q_len == 1
        operator, context = (decode, self.context.decode) if decodes else (prefill, self.context.prefill)
        operator(self.q, self.cache, context, self.scale, out, False, self.options)

    def run(self, out: Tensor) -> None:
        """The operators."""
        self.call(kernels.decode_attention, kernels.prefill_attention, out)

    def run_torch(self, out: Tensor) -> None:
        """Their torch implementations."""
        self.call(decode_attention_torch, prefill_attention_torch, out)


def make(plan: Plan, names: str, head_dim: int, shape: tuple[int, int, int], window: int) -> Batch:
    """`shape` is the number of requests, and the new tokens and the context of each."""
    batch, q_len, kv_len = shape
    heads = 2 * KV_HEADS if head_dim == 256 else 4 * KV_HEADS
    context = Context.of(plan, [q_len] * batch, kv_len - q_len)
    options = AttentionOptions(
        window=window if "window" in names else 0,
        softcap=50.0 if "softcap" in names else 0.0,
        sinks=torch.randn(heads, device=plan.device) if "sinks" in names else None,
        slopes=torch.exp2(-8 * torch.rand(heads, device=plan.device)) if "slopes" in names else None,
    )
    q, cache = plan.normal(batch * q_len, heads, head_dim), filled(plan, context.slots, KV_HEADS, head_dim)
    return Batch(q, cache, context, head_dim**-0.5, options)


def formula(batch: Batch) -> Tensor:
    """Float64, one request at a time."""
    options, context, pieces = batch.options, batch.context, []
    keys = torch.arange(context.kv_len, device=batch.q.device)
    distances = keys - keys[context.kv_len - context.q_len :, None]
    seen = (distances <= 0) & (distances > -(options.window or context.kv_len + 1))
    stored = batch.cache.k, batch.cache.v
    for q, slots in zip(batch.q.split(context.q_len), context.table.long(), strict=True):
        k, v = (each[slots].double().repeat_interleave(q.shape[1] // KV_HEADS, dim=1) for each in stored)
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


def rows(plan: Plan, _ceiling: float) -> Iterator[Row]:
    """One row for each operator, head size and options."""
    timed = {"decode": (64, 1, 8192), "prefill": (1, 8192, 8192)}
    checked = {"decode": (5, 1, 1300), "prefill": (2, 300, 1300)}
    if plan.dry_run:
        timed, checked = {"decode": (2, 1, 9), "prefill": (1, 5, 9)}, {"decode": (3, 1, 7), "prefill": (2, 4, 7)}
    failed: list[str] = []
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
    if failed:
        raise RuntimeError("; ".join(failed))


BARS = {"attention_options": Bar("attention with options, beside float64 and itself without", rows)}
