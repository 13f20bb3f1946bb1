"""Bar of adapters: the GEMM of the base alone and with `lora_shrink` and `lora_expand`.

Layers of Llama 3.1 8B, and adapters of rank 16 unless the row says otherwise, one for every `tokens / adapters` tokens.
Where the base leaves split-K partials, expand writes one more, as in a model; otherwise it adds to the outputs.
Matrices and pages rotate, so none is in the cache. `floor_microseconds` is what the pages in use, the inputs and the
outputs that shrink and expand touch take at the bandwidth of an H200; `tables_microseconds` what the host takes.
"""

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

import text_generation_kernels as kernels

from .bar import FLOOR_BANDWIDTH, Bar, grid
from .matmul import LLAMA_8B, Shapes, gemm_of, make_weights
from .timing import Plan, Row, seconds_per_call

PARTS = {"qkv": (4096, 5120, 6144), "gate_up": (14336, 28672)}
"""Where the ranges of outputs end, of layers that have several."""
SIZES = [
    *grid(tokens=(1,), adapters=(1,), rank=(16, 64)),
    *grid(tokens=(64,), adapters=(1, 8, 64), rank=(16, 64)),
    *grid(tokens=(2048,), adapters=(1, 8, 64), rank=(16,)),
]
DRY_SIZES = grid(tokens=(1, 8), adapters=(1, 8), rank=(16,))
DRY_SHAPES: Shapes = {"dry": (48, 32)}
MANY_TOKENS = 512
"""Tiles have 64 tokens from here on."""
MOST_MATRICES, TABLE_CALLS = 16, 50


@dataclass(frozen=True)
class Layer:
    """Matrices of the base and pages of adapters, several of each, and the tables of one step."""

    weights: Tensor
    a: Tensor
    b: Tensor
    scale: Tensor
    part_of_block: Tensor | None
    order: Tensor
    tiles: Tensor
    work: Tensor
    v: Tensor
    x: Tensor
    tables_seconds: float

    @classmethod
    def of(cls, plan: Plan, name: str, outputs: int, inputs: int, tokens: int, adapters: int, rank: int) -> "Layer":
        """Random ones."""
        weights = make_weights(plan, outputs, inputs, MOST_MATRICES)
        ends = PARTS.get(name, (outputs,))
        ranges = [(first, end, part) for part, (first, end) in enumerate(zip((0, *ends), ends, strict=False))]
        pages = adapters * (rank // kernels.RANK_UNITS)
        a = plan.normal(len(weights), pages, len(ends), kernels.RANK_UNITS, inputs, std=0.02)
        b = plan.normal(len(weights), pages, outputs, kernels.RANK_UNITS, std=0.02)
        tile_tokens = 64 if tokens >= MANY_TOKENS else kernels.TILE_TOKENS
        of_adapter = kernels.AdapterPages.of(np.arange(pages).reshape(adapters, -1).tolist())
        sizes = kernels.TableSizes.of(tokens, adapters, rank // kernels.RANK_UNITS, tile_tokens)
        chosen = np.arange(tokens) * adapters // tokens
        seconds, tables = _timed(lambda: kernels.adapter_tables(chosen, of_adapter, sizes))
        order, tiles, work = (torch.from_numpy(each).to(plan.device) for each in tables)
        x = plan.normal(tokens, inputs)
        v = kernels.empty_shrunk(x, a[0], work, tile_tokens)
        blocks = kernels.part_of_blocks(ranges, outputs, plan.device) if len(ends) > 1 else None
        scale = torch.ones(pages, len(ends), device=plan.device)
        return cls(weights, a, b, scale, blocks, order, tiles, work, v, x, seconds)

    @property
    def num_bytes(self) -> int:
        """Bytes that the adapters must move: pages and inputs read, outputs written or read and written."""
        partial = kernels.linear_splits(self.x, self.weights[0]) > 1
        of_output = 4 if partial else 2 * self.x.element_size()
        return self.a[0].nbytes + self.b[0].nbytes + self.x.nbytes + len(self.x) * self.weights.shape[1] * of_output

    def run(self, index: int, with_adapters: bool) -> None:
        """The layer once, with the matrix and the pages of an index."""
        x, weight = self.x, self.weights[index]
        splits = kernels.linear_splits(x, weight)
        if splits == 1:
            out = x.new_empty(len(x), len(weight))
            gemm_of(len(x))(x, weight, out)
        else:
            partials = x.new_empty(splits + with_adapters, len(x), len(weight), dtype=torch.float32)
            kernels.linear_split_k(x, weight, partials[:splits])
            out = partials[-1]
        if with_adapters:
            tables = (self.order, self.tiles, self.work)
            kernels.lora_shrink(x, self.a[index], self.scale, *tables, self.v)
            kernels.lora_expand(self.v, self.b[index], self.part_of_block, *tables, out, splits == 1)


def _timed(build: Callable[[], kernels.AdapterTables]) -> tuple[float, kernels.AdapterTables]:
    """Median time, and the result."""
    times = []
    for _ in range(TABLE_CALLS):
        begin = time.perf_counter()
        tables = build()
        times.append(time.perf_counter() - begin)
    return statistics.median(times), tables


def rows(plan: Plan, _ceiling: float) -> Iterator[Row]:
    """One row for each layer and size."""
    for name, (outputs, inputs) in (DRY_SHAPES if plan.dry_run else LLAMA_8B).items():
        for size in DRY_SIZES if plan.dry_run else SIZES:
            tokens, adapters, rank = (int(value) for value in size.values())
            if adapters > tokens:
                continue
            layer = Layer.of(plan, name, outputs, inputs, tokens, adapters, rank)
            base, both = (
                seconds_per_call(plan, lambda index, on=on, layer=layer: layer.run(index, on), len(layer.weights))
                for on in (False, True)
            )
            yield {"matrix": name, "outputs": outputs, "inputs": inputs, **size} | {
                "base_microseconds": base * 1e6,
                "microseconds": both * 1e6,
                "added_microseconds": (both - base) * 1e6,
                "floor_microseconds": layer.num_bytes / FLOOR_BANDWIDTH * 1e6,
                "tables_microseconds": layer.tables_seconds * 1e6,
            }


BARS = {"lora": Bar("layers with adapters, beside their base alone", rows)}
