"""Time of sampling one token for each row of a batch, from logits to the advanced state, in a CUDA graph.

Vocabulary of Llama 3.1. The logits rotate over buffers larger than the L2 cache, as they come from a GEMM.
The fraction of copy bandwidth counts one read of the logits, which is what greedy rows need. "peaked" logits have a
standard deviation of 4, and top-p 0.9 keeps hundreds of tokens; of "flat" ones, with 1, it keeps most.
"""

from collections.abc import Iterator

import numpy as np
import torch

from text_generation_kernels import advance_state
from text_generation_server.config.server import WatermarkConfig
from text_generation_server.distributed import TensorParallelGroup
from text_generation_server.engine.mask_pool import MaskPool
from text_generation_server.engine.requests import NextTokenChooserParameters, Request
from text_generation_server.engine.sampling import Sampler
from text_generation_server.engine.sampling_state import SamplingState
from text_generation_server.layers.weights import VocabularyShard

from .bar import Bar, bandwidth_row
from .timing import Call, Plan, Row

KINDS = {
    "greedy": {},
    "temperature": {"do_sample": True, "temperature": 0.7},
    "top-p 0.9": {"do_sample": True, "top_p": 0.9},
    "top-k 50": {"do_sample": True, "top_k": 50},
    "penalties and top-p 0.9": {
        "do_sample": True,
        "top_p": 0.9,
        "repetition_penalty": 1.1,
        "frequency_penalty": 0.1,
    },
    "typical-p 0.9": {"do_sample": True, "typical_p": 0.9},
    "greedy, 5 alternatives": {"top_n": 5},
}
SCALES = {"flat": 1.0, "peaked": 4.0}


def rows(plan: Plan, ceiling: float) -> Iterator[Row]:
    """One row for each kind, shape of the logits and batch."""
    vocab, batches = (1000, (1, 2)) if plan.dry_run else (128_256, (1, 16, 64, 256))
    for kind in KINDS:
        searches = kind not in ("greedy", "temperature")
        for logits, scale in SCALES.items() if searches else [("flat", SCALES["flat"])]:
            for batch in batches:
                num_bytes = batch * vocab * plan.dtype.itemsize
                call = prepare(plan, batch, vocab, kind, scale, plan.buffers(num_bytes))
                yield {
                    "kind": kind,
                    "logits": logits,
                    "batch": batch,
                    "vocab": vocab,
                    **bandwidth_row(plan, num_bytes, call, ceiling),
                }


def prepare(plan: Plan, batch: int, vocab: int, kind: str, scale: float, buffers: int) -> Call:
    """A step of `batch` rows of one kind, on one of the buffers."""
    parameters = dict(KINDS[kind])
    top_n = int(parameters.pop("top_n", 0))
    state = SamplingState(batch, vocab, plan.device, [])
    asked = [
        Request(
            row,
            row,
            np.array([1, 2, 3]),
            NextTokenChooserParameters(seed=row, **parameters),  # type: ignore[arg-type]
            (),
            top_n_tokens=top_n,
        )
        for row in range(batch)
    ]
    state.admit(range(batch), asked)
    group, whole = TensorParallelGroup(0, 1, plan.device), VocabularyShard.of(vocab, 0, 1)
    sampler = Sampler(state, MaskPool(2, vocab, plan.device), WatermarkConfig(), whole, group)
    index = torch.arange(batch, device=plan.device)
    last, length, generated = (torch.ones(batch, dtype=torch.int64, device=plan.device) for _ in range(3))
    logits = plan.normal(buffers, batch, vocab, std=scale)

    def call(buffer: int) -> None:
        sampled = sampler(logits[buffer], index, last, generated, False)
        advance_state(sampled.tokens, index, last, length, generated, state.columns)

    return call


BARS = {"sampling": Bar("sampling a token for each row of a batch", rows)}
