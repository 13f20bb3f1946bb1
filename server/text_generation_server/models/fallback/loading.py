"""Loading of a served class from its configuration and weights."""

# Switches of the library have names with an underscore.
# pyright: reportPrivateUsage=false

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from text_generation_kernels import KV_CODES

from ...config.fallback import FallbackConfig, unsupported
from ...config.kv_cache import QuantisedKvCache
from ...config.spec import HeadSpec
from ...distributed import TensorParallelGroup
from ...layers.infer import CacheShape, Head
from ...layers.weights import (
    Dense,
    Linear,
    PrefillCopies,
    RowBlock,
    Site,
    VocabularyShard,
    load_quantised_head,
    padded_rows,
    reader_of,
    stacked_rows,
    vocabulary_shard,
)
from ...weights import WeightSource
from .attention import ServedAttention, Step
from .checkpoint import ClassCheckpoint
from .checks import check_kv_cache, try_out
from .dry_run import DryRun
from .expert_weights import read_experts
from .experts import ServedExperts
from .gated import GatedNetwork, ServedGated
from .linear import Merged, MergedLinear, ServedHead, ServedLinear
from .model import FallbackModel
from .norm import ServedNorm, recognise
from .parallel import Sharding
from .rotation import Rotation, redirect
from .skeleton import decoder_name

logger = logging.getLogger(__name__)


def load_fallback(
    config: FallbackConfig,
    group: TensorParallelGroup,
    source: WeightSource,
    dtype: torch.dtype,
    device: torch.device,
    kv_cache: QuantisedKvCache | None = None,
) -> FallbackModel:
    """Reads this rank's shard of the model. `kv_cache` is the type of its quantised KV cache, or None. Raises
    UnsupportedModel, ConfigurationError or ModelFilesError, before it reads a tensor where that is possible.
    """
    model, sharding, seen = try_out(config, group, dtype)
    check_kv_cache(config, kv_cache, seen)
    codes = None if kv_cache is None else KV_CODES[kv_cache]
    builder = _Builder(model, config, group, source, sharding, seen, device, PrefillCopies(dtype), codes)
    return builder.build(decoder_name(model))


class _Builder:
    """Replaces modules of the class by ours, with their weights."""

    def __init__(
        self,
        model: PreTrainedModel,
        config: FallbackConfig,
        group: TensorParallelGroup,
        source: WeightSource,
        sharding: Sharding,
        seen: DryRun,
        device: torch.device,
        copies: PrefillCopies,
        codes: torch.dtype | None,
    ) -> None:
        self._model = model
        self._codes = codes
        self._group = group
        self._sharding = sharding
        self._seen = seen
        self._device = device
        self._head_name = _head_name(model)
        self._tied = _tied(model)
        self._copies = copies
        self._checkpoint = ClassCheckpoint(model, source, sharding.cuts, self._tied, config.schemes, config.has_media)

    def build(self, path: str) -> FallbackModel:
        model, step = self._model, Step()
        self._read_head()
        done: set[str] = set()
        for network in self._seen.networks:
            self._read_network(network)
            done |= {network.gate, network.up, network.down}
        for names in self._seen.linears:
            self._read_linears([name for name in names if name not in done])
        for name in self._seen.experts:
            self._read_experts(name)
        self._read_rest()
        self._checkpoint.warn_dequantised()
        self._swap_norms()
        self._to_device()
        caches = self._serve(step)
        if self._seen.copies_numbers:
            logger.warning(
                "%s copies numbers to the device in every step: CUDA graphs cannot hold its steps, which take longer",
                type(model).__name__,
            )
        return FallbackModel(model, path, step, caches, self._copies, is_captured=not self._seen.copies_numbers)

    def _serve(self, step: Step) -> list[CacheShape]:
        caches: list[CacheShape] = []
        rotation = Rotation()
        for index, call in enumerate(self._seen.calls):
            attention = ServedAttention(index, call, step, rotation, self._codes)
            module = self._model.get_submodule(call.module)
            module.served_by = attention  # type: ignore[assignment]
            if self._seen.rotated_by_attention:
                redirect(module, rotation)
            caches.append(attention.cache)
        return caches

    def _read_experts(self, name: str) -> None:
        module = self._model.get_submodule(name)
        group = self._group if name in self._sharding.summed else None
        matrices = read_experts(self._checkpoint, module, name, adds_bias=group is None or group.rank == 0)
        module.served_by = ServedExperts(module, *matrices, group)  # type: ignore[assignment]
        # Their numbers have moved.
        module._parameters.clear()

    def _read_head(self) -> None:
        """Reads this rank's vocabulary shard of the head, from the embedding where both are tied."""
        spec_size = self._model.config.get_text_config().vocab_size
        vocabulary = VocabularyShard.of(spec_size, self._group.rank, self._group.world_size)
        head = Head(HeadSpec(), self._head(spec_size), vocabulary)
        self._model.set_submodule(self._head_name, ServedHead(head, self._group))

    def _head(self, vocab_size: int) -> Linear:
        name, read = self._head_name, self._checkpoint.read
        head = self._model.get_submodule(name)
        start, stop, padding = vocabulary_shard(vocab_size, self._group.rank, self._group.world_size)
        tied_to = self._tied.get(f"{name}.weight")
        has_bias = getattr(head, "bias", None) is not None
        if tied_to is None and self._checkpoint.has_codes(f"{name}.weight"):
            module, shape = self._checkpoint.module(name), self._checkpoint.cut(f"{name}.weight").whole
            rows = start, stop
            matrices = self._checkpoint.matrices
            return load_quantised_head(matrices, module, (shape[0], shape[1]), rows, padding, has_bias)
        weight = read(tied_to or f"{name}.weight")
        if tied_to is not None:
            self._set(tied_to, weight)
        part = padded_rows(weight[start:stop], padding)
        bias = padded_rows(read(f"{name}.bias")[start:stop], padding) if has_bias else None
        return Dense(part if tied_to else part.clone(), bias)

    def _read_network(self, network: GatedNetwork) -> None:
        gate_up = self._rows([network.gate, network.up])
        self._model.set_submodule(network.path, ServedGated(gate_up, network.activation, self._served(network.down)))

    def _read_linears(self, names: Sequence[str]) -> None:
        """Matrices that read the same tensor."""
        merged = [name for name in names if name not in self._sharding.summed and not self._is_plain(name)]
        for name in names:
            if name not in merged or len(merged) == 1:
                self._model.set_submodule(name, self._served(name))
        if len(merged) > 1:
            sizes = [self._model.get_submodule(name).out_features for name in merged]
            linear = Merged(self._rows(merged), cast("list[int]", sizes))
            for index, name in enumerate(merged):
                self._model.set_submodule(name, MergedLinear(linear, index))

    def _served(self, name: str) -> ServedLinear:
        return ServedLinear(self._linear(name), self._group if name in self._sharding.summed else None)

    def _linear(self, name: str) -> Linear:
        if self._is_plain(name):
            return Dense(self._checkpoint.read(f"{name}.weight"), self._bias([name]))
        cut = self._checkpoint.cut(f"{name}.weight")
        if not cut.ranges or cut.dim == 0:
            return self._rows([name])
        module, matrices = self._checkpoint.module(name), self._checkpoint.matrices
        linear = reader_of(matrices, module).columns(module, (cut.whole[0], cut.whole[1]), cut.ranges[0])
        block = RowBlock(module, cut.whole[0], ((0, cut.whole[0]),))
        site = Site((block,), cut.whole[1], cut.ranges[0], adds_bias=self._group.rank == 0)
        return self._noted(replace(linear, bias=self._bias([name]), site=site))

    def _rows(self, names: Sequence[str]) -> Linear:
        """Outputs of this rank, of matrices that read one tensor, one below the other."""
        checkpoint = self._checkpoint
        cuts = [checkpoint.cut(f"{name}.weight") for name in names]
        blocks = [
            RowBlock(checkpoint.module(name), cut.whole[0], cut.ranges or ((0, cut.whole[0]),))
            for name, cut in zip(names, cuts, strict=True)
        ]
        return self._noted(stacked_rows(checkpoint.matrices, blocks, cuts[0].whole[1], self._bias(names)))

    def _noted(self, linear: Linear) -> Linear:
        self._copies.note(linear)
        return linear

    def _is_plain(self, name: str) -> bool:
        """Whether a matrix is read in a type of its own, or never quantised: the choice of experts hangs on little, so
        that `--quantize` leaves alone what stands beside them.
        """
        beside = {path.rpartition(".")[0] for path in self._seen.experts}
        is_router = name.rpartition(".")[0] in beside and self._checkpoint.matrices.makes_quantised
        return is_router or self._checkpoint.is_wide(f"{name}.weight")

    def _bias(self, names: Sequence[str]) -> Tensor | None:
        """Of matrices one below the other; zeros where one of them has none."""
        biases: list[Tensor] = []
        has_any = False
        for name in names:
            module = self._model.get_submodule(name)
            # Of results that are summed, one rank adds it.
            if getattr(module, "bias", None) is not None and not (name in self._sharding.summed and self._group.rank):
                biases.append(self._checkpoint.read(f"{name}.bias"))
                has_any = True
            else:
                rows = cast("int", module.out_features)
                biases.append(self._checkpoint.matrices.source.empty((rows,)).zero_())
        return torch.cat(biases) if has_any else None

    def _read_rest(self) -> None:
        """Reads the weights of everything that the class computes itself."""
        done = set(self._tied.values()) & {self._tied.get(f"{self._head_name}.weight")}
        for name in self._model.state_dict():
            if name in self._sharding.cuts and name not in self._tied and name not in done:
                self._set(name, self._checkpoint.read(name))

    def _set(self, name: str, tensor: Tensor) -> None:
        path, _, attribute = name.rpartition(".")
        module = self._model.get_submodule(path)
        if attribute in module._buffers:
            module._buffers[attribute] = tensor
        else:
            setattr(module, attribute, nn.Parameter(tensor, requires_grad=False))

    def _swap_norms(self) -> None:
        for name, module in list(self._model.named_modules()):
            if (variant := recognise(module)) is not None:
                self._model.set_submodule(name, ServedNorm(module.get_parameter("weight"), variant))

    def _to_device(self) -> None:
        """Moves what no checkpoint has to the device. Raises UnsupportedModel where a tensor is left without values."""
        for name, module in self._model.named_modules():
            for key, buffer in module._buffers.items():
                if buffer is not None:
                    module._buffers[key] = buffer.to(self._device)
            for key, value in list(vars(module).items()):
                if isinstance(value, Tensor):
                    setattr(module, key, value.to(self._device))
            for key, tensor in (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)):
                if tensor.device.type == "meta":
                    raise unsupported(type(self._model).__name__, f"nothing says what `{name}.{key}` holds")


def _head_name(model: PreTrainedModel) -> str:
    head = model.get_output_embeddings()
    name = next((name for name, module in model.named_modules() if module is head), "")
    if not name or type(head) is not nn.Linear:
        raise unsupported(type(model).__name__, "its head is not one matrix")
    return name


def _tied(model: PreTrainedModel) -> dict[str, str]:
    """Returns the names of tied tensors, each with the name of the tensor whose memory it shares."""
    first: dict[int, str] = {}
    tied: dict[str, str] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if first.setdefault(id(parameter), name) != name:
            tied[name] = first[id(parameter)]
    return tied
