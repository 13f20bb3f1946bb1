"""A loaded model whose linear layers add what an adapter's rank pages say, beside matrices of any format: the slow and
plain way, to compare others with.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from support.loading import CPU
from text_generation_server.adapters import BaseModel, ModelTensors, read_adapter
from text_generation_server.config.implementation import read_model_config
from text_generation_server.config.model import ModelConfig
from text_generation_server.distributed import TensorParallelGroup
from text_generation_server.layers.weights import (
    Activations,
    ActivationScheme,
    Checkpoint,
    ExpertShard,
    ExpertSite,
    Linear,
    LowRankPages,
    NormWeights,
    Site,
    changed_of,
    low_rank_pages,
)
from text_generation_server.layers.weights.linear import activated
from text_generation_server.layers.weights.low_rank import raw
from text_generation_server.models import CausalLM
from text_generation_server.weights import SafetensorsSource

UNITS = 16


@dataclass(frozen=True)
class Adapted:
    """See `Linear`."""

    base: Linear
    pages: LowRankPages

    @property
    def bias(self) -> Tensor | None:
        return self.base.bias

    @property
    def wants(self) -> ActivationScheme | None:
        return self.base.wants

    @property
    def outputs(self) -> int:
        return self.base.outputs

    @property
    def nbytes(self) -> int:
        return self.base.nbytes

    @property
    def site(self) -> Site | None:
        return self.base.site

    def matmul(self, x: Activations, block: int | None = None) -> Tensor:
        # Whoever reads a norm's input first normalises it.
        plain, pages = x.x, self.pages
        out = self.base.matmul(x, block).float()
        assert self.site is not None
        for first, end, part in self.site.ranges():
            for a, b in self._written():
                inner = plain.float() @ a[part].float().t() * pages.scales[part]
                out[:, first:end] += inner @ b[first:end].float().t()
        return (out if pages.row_factors is None else out * pages.row_factors).to(plain.dtype)

    def _written(self) -> Iterator[tuple[Tensor, Tensor]]:
        """A and B of each page."""
        site, factors = self.pages.site, [*self.pages.b.values()]
        for first in range(0, self.pages.rank, UNITS):
            a = torch.empty(len(site.modules), UNITS, site.own_inputs, dtype=factors[0].dtype)
            b = torch.empty(site.outputs, UNITS, dtype=factors[0].dtype)
            self.pages.write_a(first, raw(a))
            self.pages.write_b(first, raw(b))
            yield a, b

    def apply(self, x: Activations, block: int | None = None) -> Tensor:
        out = self.matmul(x, block)
        return out if self.bias is None else out + self.bias

    def split_k(self, x: Activations) -> Tensor:
        return self.matmul(x)

    def add(self, x: Activations, residual: Tensor) -> Tensor:
        return residual.add_(self.apply(x))

    def gated(
        self, x: Activations, activation: str, wants: ActivationScheme | None, block: int | None = None
    ) -> Activations:
        return activated(self.apply(x, block), activation, wants, block)


def adapt(model: CausalLM, folder: Path, adapter: Path, group: TensorParallelGroup) -> None:
    """Gives the layers of `model`, which was loaded from `folder`, the factors of an adapter."""
    config = read_model_config(folder)
    assert isinstance(config, ModelConfig)
    files = SafetensorsSource(folder, torch.float32, CPU, twins=config.names.others)
    checkpoint = Checkpoint.of(files, config.decoder, config.names, group, config.schemes)
    base = BaseModel(files, ModelTensors.of(config.decoder, config.names, files))
    changes = read_adapter(adapter, base).changes
    found = list(_linears(model))
    taken: set[str] = set()
    for _, _, linear in found:
        taken |= set() if linear.site is None else changed_of(linear.site, changes, linear.bias is not None)
    assert taken == set(changes)
    made: dict[int, Adapted] = {}
    for owner, name, linear in found:
        if linear.site is None or (pages := low_rank_pages(checkpoint, linear.site, changes)) is None:
            continue
        if pages.bias is not None and id(linear) not in made:
            # Some layers hold the tensor itself.
            linear.bias.add_(pages.bias)
        object.__setattr__(owner, name, made.setdefault(id(linear), Adapted(linear, pages)))


def write_factors(
    folder: Path, linears: Iterable[Linear], norms: Iterable[NormWeights] = (), experts: Iterable[ExpertSite] = ()
) -> int:
    """Writes an adapter of every matrix of these layers that has a site, and of every matrix of these experts, with
    random factors, and random weights in place of these norms; returns how many.
    """
    folder.mkdir()
    generator = torch.Generator().manual_seed(3)
    tensors: dict[str, Tensor] = {}

    def add(module: str, outputs: int, inputs: int, rank: int = 3) -> None:
        name = f"base_model.model.{module}"
        tensors[f"{name}.lora_A.weight"] = torch.randn(rank, inputs, generator=generator) * 0.1
        tensors[f"{name}.lora_B.weight"] = torch.randn(outputs, rank, generator=generator) * 0.1

    for linear in linears:
        for block in linear.site.blocks if linear.site is not None else ():
            add(block.name, block.size, linear.site.inputs)
    for site in experts:
        _add_experts(site.shard, add)
    for norm in norms:
        assert norm.stored is not None
        name = f"base_model.model.{norm.stored.name}"
        tensors[f"{name}.weight"] = torch.rand(norm.weight.shape, generator=generator) + 0.5
        if norm.bias is not None:
            tensors[f"{name}.bias"] = torch.randn(norm.bias.shape, generator=generator) * 0.1
    save_file(tensors, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 3, "lora_alpha": 4}))
    return len(tensors) // 2


def _add_experts(shard: ExpertShard, add: Callable[[str, int, int, int], None]) -> None:
    """Adds factors of every expert that has matrices of its own, the routed ones and the shared one; some have three
    units, others more than a page.
    """
    spec, names, hidden = shard.spec, shard.checkpoint.names, shard.hidden
    networks = [(tuple(shard.name(each) for each in names.shared(spec.gated)), spec.shared_inner)]
    if names.experts_layout == "each":
        every = (tuple(shard.name(each, expert) for each in names.experts(spec.gated)) for expert in shard.experts)
        networks += [(each, spec.inner) for each in every]
    for number, (network, inner) in enumerate(networks):
        for module in dict.fromkeys(network[:-1]) if inner else ():
            add(module, inner * network[:-1].count(module), hidden, 3 if number else 17)
        if inner:
            add(network[-1], hidden, inner, 3)


def linears_of(model: CausalLM) -> list[Linear]:
    """All linear layers of a model."""
    return [linear for _, _, linear in _linears(model)]


def _linears(root: Any) -> Iterator[tuple[Any, str, Any]]:
    """Every attribute of the model that is a linear layer."""
    seen: set[int] = set()
    stack = [root]
    while stack:
        each = stack.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        if isinstance(each, list | tuple):
            stack += each
        elif type(each).__module__.startswith("text_generation_server."):
            for name, value in list(vars(each).items()):
                if hasattr(value, "site") and hasattr(value, "matmul"):
                    yield each, name, value
                else:
                    stack.append(value)
