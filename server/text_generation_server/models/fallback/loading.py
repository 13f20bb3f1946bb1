"""Loading of a served class from its configuration and weights."""

# Switches of the library have names with an underscore.
# pyright: reportPrivateUsage=false

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ...config.fallback import FallbackConfig, unsupported
from ...config.spec import HeadSpec
from ...distributed import TensorParallelGroup
from ...layers.infer import CacheShape, Head
from ...layers.weights import Dense, VocabularyShard, padded_rows, vocabulary_shard
from ...weights import WeightSource
from .attention import ServedAttention, Step
from .checkpoint import ClassCheckpoint
from .checks import try_out
from .dry_run import DryRun
from .experts import ServedExperts
from .gated import GatedNetwork, ServedGated
from .linear import Merged, MergedLinear, ServedHead, ServedLinear
from .model import FallbackModel
from .norm import ServedNorm, recognise
from .parallel import Sharding
from .rotation import Rotation, redirect
from .skeleton import decoder_name


def load_fallback(
    config: FallbackConfig, group: TensorParallelGroup, source: WeightSource, dtype: torch.dtype, device: torch.device
) -> FallbackModel:
    """Reads this rank's shard of the model. Raises UnsupportedModel, ConfigurationError or ModelFilesError, before it
    reads a tensor where that is possible.
    """
    model, sharding, seen = try_out(config, group, dtype)
    return _Builder(model, group, source, sharding, seen, device).build(decoder_name(model))


class _Builder:
    """Replaces modules of the class by ours, with their weights."""

    def __init__(
        self,
        model: PreTrainedModel,
        group: TensorParallelGroup,
        source: WeightSource,
        sharding: Sharding,
        seen: DryRun,
        device: torch.device,
    ) -> None:
        self._model = model
        self._group = group
        self._sharding = sharding
        self._seen = seen
        self._device = device
        self._head_name = _head_name(model)
        self._tied = _tied(model)
        self._checkpoint = ClassCheckpoint(model, source, sharding.cuts, self._tied)

    def build(self, path: str) -> FallbackModel:
        model, step = self._model, Step()
        self._read_head()
        done: set[str] = set()
        for network in self._seen.networks:
            self._read_network(network)
            done |= {network.gate, network.up, network.down}
        for names in self._seen.linears:
            self._read_linears([name for name in names if name not in done])
        self._read_rest()
        self._swap_norms()
        self._to_device()
        caches = self._serve(step)
        return FallbackModel(model, path, step, caches)

    def _serve(self, step: Step) -> list[CacheShape]:
        caches: list[CacheShape] = []
        rotation = Rotation()
        for index, call in enumerate(self._seen.calls):
            attention, module = ServedAttention(index, call, step, rotation), self._model.get_submodule(call.module)
            module.served_by = attention  # type: ignore[assignment]
            if self._seen.rotated_by_attention:
                redirect(module, rotation)
            caches.append(attention.cache)
        for name in self._seen.experts:
            module = self._model.get_submodule(name)
            group = self._group if name in self._sharding.summed else None
            module.served_by = ServedExperts(module, group)  # type: ignore[assignment]
        return caches

    def _read_head(self) -> None:
        """Reads this rank's vocabulary shard of the head, from the embedding where both are tied."""
        spec_size = self._model.config.get_text_config().vocab_size
        name, read = self._head_name, self._checkpoint.read
        head = self._model.get_submodule(name)
        vocabulary = VocabularyShard.of(spec_size, self._group.rank, self._group.world_size)
        start, stop, padding = vocabulary_shard(spec_size, self._group.rank, self._group.world_size)
        tied_to = self._tied.get(f"{name}.weight")
        weight = read(tied_to or f"{name}.weight")
        if tied_to is not None:
            self._set(tied_to, weight)
        part = padded_rows(weight[start:stop], padding)
        bias = None
        if getattr(head, "bias", None) is not None:
            bias = padded_rows(read(f"{name}.bias")[start:stop], padding)
        linear = Dense(part if tied_to else part.clone(), bias)
        self._model.set_submodule(name, ServedHead(Head(HeadSpec(), linear, vocabulary), self._group))

    def _read_network(self, network: GatedNetwork) -> None:
        gate_up = Merged([self._linear(network.gate), self._linear(network.up)])
        self._model.set_submodule(network.path, ServedGated(gate_up, network.activation, self._served(network.down)))

    def _read_linears(self, names: Sequence[str]) -> None:
        """Reads the matrices that read one tensor."""
        plain = [name for name in names if name not in self._sharding.summed]
        for name in names:
            if name not in plain or len(plain) == 1:
                self._model.set_submodule(name, self._served(name))
        if len(plain) > 1:
            merged = Merged([self._linear(name) for name in plain])
            for index, name in enumerate(plain):
                self._model.set_submodule(name, MergedLinear(merged, index))

    def _served(self, name: str) -> ServedLinear:
        return ServedLinear(self._linear(name), self._group if name in self._sharding.summed else None)

    def _linear(self, name: str) -> Dense:
        module = self._model.get_submodule(name)
        bias = None
        # One rank adds the bias of all-reduced outputs.
        if getattr(module, "bias", None) is not None and not (name in self._sharding.summed and self._group.rank):
            bias = self._checkpoint.read(f"{name}.bias")
        return Dense(self._checkpoint.read(f"{name}.weight"), bias)

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
