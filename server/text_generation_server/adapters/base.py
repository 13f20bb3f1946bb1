"""What an adapter has to fit: the tensors of a model, as its checkpoint stores them."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from ..config.names import TensorNames
from ..config.spec import DecoderSpec, MoeSpec
from ..weights import SafetensorsSource, Slice
from .resolve import KnownNames

_SAMPLED_ROWS = 256


@dataclass(frozen=True)
class ModelTensors:
    """What is known of a model of ours beyond its tensors."""

    spec: DecoderSpec
    names: TensorNames
    """With the layout in which experts are stored."""
    prefix: str
    """The prefix of all names but the head."""

    @classmethod
    def of(cls, spec: DecoderSpec, names: TensorNames, source: SafetensorsSource) -> "ModelTensors":
        """Of the model whose tensors `source` has."""
        names = names.as_stored(len(spec.layers), source.has)
        return cls(spec, names, names.prefix(source.has))

    @property
    def head(self) -> str:
        """The module of the LM head."""
        return self.names.heads.get(self.prefix, self.names.head)

    @property
    def embedding(self) -> str:
        """The module of the input embedding."""
        return f"{self.prefix}{self.names.embedding}"

    def layer_of(self, module: str) -> int | None:
        """Returns the number of the layer that a module belongs to, if it is in one; of those that one stored layer
        has, the first.
        """
        pattern = re.escape(f"{self.prefix}{self.names.layer}").replace(r"\{\}", r"(\d+)")
        found = re.match(pattern, module)
        layer = int(found[1]) * self.names.parts if found else None
        return layer if layer is not None and layer < len(self.spec.layers) else None

    def experts_of(self, module: str) -> tuple[int, MoeSpec] | None:
        """Returns the number and the mixture of the layer that `module` belongs to, if it has one."""
        layer = self.layer_of(module)
        moe = None if layer is None else self.spec.layers[layer].moe
        return None if layer is None or moe is None else (layer, moe)

    def inside(self, layer: int, name: str) -> str:
        """Returns the whole name of a tensor of a layer."""
        return f"{self.prefix}{self.names.inside(layer, name)}"


@dataclass(frozen=True)
class BaseModel:
    """The model that an adapter is read for. Without a `decoder`, it runs through Transformers."""

    source: SafetensorsSource
    decoder: ModelTensors | None = None

    def tied_to(self, name: str) -> str:
        """Returns the tensor that is read for `name`: that of the embedding for a head that shares it."""
        decoder = self.decoder
        if decoder is not None and decoder.spec.head.tied and name == f"{decoder.head}.weight":
            return f"{decoder.embedding}.weight"
        return name

    def shape(self, name: str) -> tuple[int, ...] | None:
        """Returns the shape of a tensor; None: the checkpoint has it in no such form, because it is quantised."""
        stored = self.tied_to(name)
        return self.source.shape(stored) if self.source.has(stored) else None

    def is_transposed(self, name: str) -> bool:
        """Whether the matrix `name` is stored [inputs, outputs]."""
        decoder = self.decoder
        return decoder is not None and decoder.names.transposed and decoder.layer_of(name) is not None

    def known_names(self) -> KnownNames:
        """Returns the names of tensors, and of everything that has tensors; as the checkpoint has them, and as
        Transformers renames them.
        """
        names = self.source.names()
        if self.decoder is not None and self.decoder.spec.head.tied:
            names.append(f"{self.decoder.head}.weight")
        return _known(tuple(names))

    def holds(self, name: str, tensor: Tensor) -> bool:
        """Whether the tensor `name` has the rows of `tensor`, as far as a sample of them tells."""
        stored = self.tied_to(name)
        if not self.source.has(stored):
            return True
        count = len(tensor)
        rows: Sequence[int] = range(0, count, max(1, count // _SAMPLED_ROWS))
        return all(_is_same(self.source.raw(stored, Slice(0, row, row + 1))[0].cpu(), tensor[row]) for row in rows)


def _is_same(a: Tensor, b: Tensor) -> bool:
    """Whether the numbers are the same in the narrower of both types: either may have been cast."""
    narrow = min((a.dtype, b.dtype), key=lambda dtype: (dtype.itemsize, dtype != torch.bfloat16))
    return torch.equal(a.to(narrow), b.to(narrow))


@lru_cache(maxsize=2)
def _known(names: tuple[str, ...]) -> KnownNames:
    """Returns what `BaseModel.known_names` does. Adapters of one model share it: there are names of all experts."""
    known: dict[str, str] = {}
    for name in names:
        while name and name not in known:
            known[name] = name
            name = name.rpartition(".")[0]
    return KnownNames({**{_renamed(name): name for name in known}, **known})


def _renamed(name: str) -> str:
    """Returns the name that classes of Transformers give a module of a mixture, whose files have an older one."""
    return name.replace(".block_sparse_moe.", ".mlp.").replace(".block_sparse_moe", ".mlp")
