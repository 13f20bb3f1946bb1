"""Reads the tensors of a class from a checkpoint, under their names on the hub."""

# Switches of the library have names with an underscore.
# pyright: reportPrivateUsage=false

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import (
    Concatenate,
    MergeModulelist,
    WeightConverter,
    WeightRenaming,
    rename_source_key,
)

from ...config.fallback import unsupported
from ...config.families import OTHER_PARTS, TEXT_PREFIXES
from ...config.quantisation import BESIDE, Schemes
from ...errors import ModelFilesError
from ...layers.weights import Matrices, QuantisedReader, RowBlock, reader_of
from ...weights import Slice, WeightSource
from .parallel import Cut, general, local_shape
from .skeleton import layers_of

logger = logging.getLogger(__name__)

_UNREAD = ("*rotary_emb.inv_freq", "*.attn.bias", "*.attn.masked_bias", "*.attention.bias", "*.attention.masked_bias")
"""Patterns of tensors that older versions of Transformers stored though nothing needs them."""

_UNWRAPPING = tuple(WeightRenaming(f"^{re.escape(before)}", alone) for before, alone in TEXT_PREFIXES.items())
_PREDICTING_LAYERS = ("num_nextn_predict_layers", "num_mtp_layers")
_OF_PREDICTION = re.compile(r"\.(eh_proj|enorm|hnorm|shared_head)\.")


@dataclass
class Stored:
    """What a tensor of the class is made of."""

    parts: list[list[str]] = field(default_factory=list[list[str]])
    """One stored tensor; or for each tensor that is concatenated (gate, up) those of all experts, in order. Of a matrix
    whose codes have other names, that which it would have with 16 bits.
    """
    is_stack: bool = False


class ClassCheckpoint:
    """The tensors of one model as a rank reads them."""

    def __init__(
        self,
        model: PreTrainedModel,
        source: WeightSource,
        cuts: dict[str, Cut],
        tied: Iterable[str],
        schemes: Schemes,
        is_part: bool = False,
    ) -> None:
        """`tied` names the tensors that share another tensor's memory; `is_part` says that the files are of a model
        that has this one as its text. Raises ModelFilesError for missing or unknown tensors, before any is read, and
        UnsupportedModel for a layout that is not read.
        """
        self.matrices = Matrices(source, schemes=schemes)
        self._source = source
        self._cuts = cuts
        self._is_part = is_part
        self._wide = _wide_patterns(model)
        self._stored: dict[str, Stored] = {}
        self._dequantised: set[str] = set()
        self._linears = {f"{name}.weight" for name, module in model.named_modules() if type(module) is nn.Linear}
        needed = set(cuts) - set(tied)
        if names := source.names():
            self._find(model, names, needed, set(tied))

    def read(self, name: str) -> Tensor:
        """The part of a tensor that this rank holds, with 16 or 32 bits. Raises ModelFilesError."""
        cut, stored = self._cuts[name], self.stored(name)
        dtype = torch.float32 if self.is_wide(name) else None
        if stored.is_stack:
            return self._stack(name, stored.parts, cut)
        first = stored.parts[0][0]
        if self.has_codes(name):
            self._dequantised.add(general(name))
            weight = self._dense(module_of(first), (cut.whole[0], cut.whole[1]), cut)
            return weight if dtype is None else weight.to(dtype)
        return self._part(first, cut, dtype)

    def module(self, name: str) -> str:
        """Under which name a linear layer of the class is stored."""
        return module_of(self.stored(f"{name}.weight").parts[0][0])

    def stored(self, name: str) -> Stored:
        """What a tensor of the class is made of; random weights have the names of the class."""
        return self._stored.get(name) or Stored([[name]])

    def cut(self, name: str) -> Cut:
        """The part of a tensor of the class that this rank holds."""
        return self._cuts[name]

    def has_codes(self, name: str) -> bool:
        """Whether the weight `name` of a linear layer is stored quantised."""
        return name in self._linears and self._has_codes(module_of(self.stored(name).parts[0][0]))

    def is_wide(self, name: str) -> bool:
        """Whether the class keeps a tensor in float32."""
        return any(re.search(rf"(^|\.){each}(\.|$)", name) for each in self._wide)

    def warn_dequantised(self) -> None:
        """Names the matrices that are kept with 16 bits though they are stored with fewer, so that nobody wonders where
        memory goes.
        """
        if self._dequantised:
            logger.warning(
                "some quantised matrices are kept with 16 bits, as no kernel of ours computes them",
                extra={"matrices": sorted(self._dequantised)},
            )

    def _has_codes(self, module: str) -> bool:
        reader = reader_of(self.matrices, module)
        return not self.matrices.makes_quantised and isinstance(reader, QuantisedReader) and reader.has_codes(module)

    def _dense(self, module: str, shape: tuple[int, int], cut: Cut) -> Tensor:
        """Of a stored matrix the part that this rank holds, with 16 bits. `cut`: of this, or of a stack of such."""
        reader = reader_of(self.matrices, module)
        dim = cut.dim - (len(cut.whole) - 2)
        if cut.ranges and dim == 1:
            return reader.dense_columns(module, shape, cut.ranges[0])
        # Of parts that are concatenated each is a matrix of its own here.
        spans = cut.ranges[:1] if len(cut.whole) > len(shape) else cut.ranges
        return reader.dense_rows(RowBlock(module, shape[0], spans or ((0, shape[0]),)), shape[1])

    def _part(self, name: str, cut: Cut, dtype: torch.dtype | None) -> Tensor:
        if not cut.ranges:
            return self._source.read(name, cut.whole, dtype=dtype)
        parts = [self._source.read(name, cut.whole, Slice(cut.dim, *each), dtype) for each in cut.ranges]
        return parts[0] if len(parts) == 1 else torch.cat(parts, cut.dim)

    def _stack(self, name: str, parts: Sequence[Sequence[str]], cut: Cut) -> Tensor:
        """[experts, parts * rows, columns] of matrices that are stored one by one."""
        _, rows, columns = cut.whole
        shape = (rows // len(parts), columns)
        tensor = self._source.empty(local_shape(cut))
        for target, names in zip(tensor.chunk(len(parts), dim=1), parts, strict=True):
            for expert, each in enumerate(names):
                target[expert] = self._dense(module_of(each), shape, cut)
            if self._has_codes(module_of(names[0])):
                self._dequantised.add(general(name))
        return tensor

    def _find(self, model: PreTrainedModel, names: Iterable[str], needed: set[str], tied: set[str]) -> None:
        conversions = [*(_UNWRAPPING if self._is_part else ()), *get_model_conversion_mapping(model)]
        renamings = [each for each in conversions if isinstance(each, WeightRenaming)]
        converters = [each for each in conversions if isinstance(each, WeightConverter)]
        state = dict(model.state_dict())
        unknown: list[str] = []
        found: set[str] = set()

        @cache
        def renamed(stored: str) -> tuple[str, str | None]:
            return rename_source_key(stored, renamings, converters, model.base_model_prefix, state)

        for tensor in sorted(names, key=_natural):
            stored = self._weight_of(tensor, lambda each: renamed(each)[0])
            if stored in found:
                continue
            found.add(stored)
            name, pattern = renamed(stored)
            if name not in needed:
                if name not in tied:
                    unknown.append(stored)
                continue
            converter = next((each for each in converters if pattern in each.source_patterns), None)
            self._add(model, name, stored, pattern, converter)
        self._refuse_one_tensor(type(model).__name__, unknown, lambda each: renamed(each)[0])
        _refuse_missing(needed - set(self._stored))
        self._check_numbers()
        patterns = model._keys_to_ignore_on_load_unexpected or []
        beside = BESIDE if self.matrices.schemes.method else ()
        unread = (*_UNREAD, *beside, *(OTHER_PARTS if self._is_part else ()))
        beyond = set(_predicting(model, unknown))
        _refuse_unknown(
            [
                name
                for name in unknown
                if name not in beyond
                and not any(fnmatchcase(name, each) for each in unread)
                and not any(re.search(each, name) for each in patterns)
            ]
        )

    def _check_numbers(self) -> None:
        """Of experts that are stored one by one."""
        stacks = {name: stored.parts for name, stored in self._stored.items() if stored.is_stack}
        for name, parts in stacks.items():
            experts = self._cuts[name].whole[0]
            if wrong := next((names for names in parts if len(names) != experts), None):
                raise ModelFilesError(
                    f"`{wrong[0]}` and those like it are {len(wrong)} tensors; config.json asks for {experts}"
                )
            if not all(parts):
                raise ModelFilesError(f"of `{name}` the tensors of one matrix of each expert are missing")

    def _weight_of(self, tensor: str, renamed: Callable[[str], str]) -> str:
        """Of a stored tensor that belongs to a quantised matrix, such as its scales, the name that the matrix would
        have with 16 bits; of others their own name.
        """
        if not self.matrices.schemes.method or self.matrices.schemes.online:
            return tensor
        if renamed(tensor) in self._cuts:
            return tensor
        owners = (f"{module}.weight" for module in _prefixes(tensor))
        return next((name for name in owners if self._is_matrix(renamed(name))), tensor)

    def _refuse_one_tensor(self, model: str, unknown: Iterable[str], renamed: Callable[[str], str]) -> None:
        """Scales of a stack of experts are of codes that no reader of ours takes apart."""
        stacks = tuple(name for name in self._cuts if len(self._cuts[name].whole) == 3)
        for name in unknown:
            if self.matrices.schemes.method and renamed(name).startswith(stacks):
                raise unsupported(
                    model,
                    f"`{name}` is of experts that {self.matrices.schemes.method!r} quantised in one tensor a layer, "
                    "which is not read: use the 16-bit checkpoint with --quantize fp8 or eetq",
                )

    def _is_matrix(self, name: str) -> bool:
        """Whether a tensor of the class may be quantised: the weight of a linear layer, or of experts."""
        return name in self._linears or (name in self._cuts and len(self._cuts[name].whole) == 3)

    def _add(
        self, model: PreTrainedModel, name: str, stored: str, pattern: str | None, converter: WeightConverter | None
    ) -> None:
        found = self._stored.setdefault(name, Stored())
        if converter is None or pattern is None:
            found.parts.append([stored])
            if len(found.parts) > 1:
                raise ModelFilesError(f"`{found.parts[0][0]}` and `{stored}` both are tensor `{name}` of the model")
            return
        operations = [type(each) for each in converter.operations]
        is_stack = operations in ([MergeModulelist], [MergeModulelist, Concatenate]) and stored.endswith(".weight")
        if not is_stack or len(self._cuts[name].whole) != 3:
            raise unsupported(type(model).__name__, f"its checkpoints hold `{stored}` in a layout that is not read")
        found.is_stack = True
        if not found.parts:
            found.parts = [[] for _ in converter.source_patterns]
        found.parts[converter.source_patterns.index(pattern)].append(stored)


def module_of(weight: str) -> str:
    """Name of the module that a stored weight belongs to."""
    return weight.removesuffix(".weight")


def _prefixes(name: str) -> Iterator[str]:
    """Modules that may have a tensor of this name, the innermost first."""
    while "." in name:
        name = name.rpartition(".")[0]
        yield name


def _natural(name: str) -> list[str | int]:
    """Returns the key by which names sort with their numbers in numerical order."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]


def _wide_patterns(model: PreTrainedModel) -> set[str]:
    """Returns patterns of the modules that the class keeps in float32."""
    strict = set(model._keep_in_fp32_modules_strict or ())
    return strict | set(model._keep_in_fp32_modules or ()) if model.dtype == torch.float16 else strict


def _predicting(model: PreTrainedModel, names: Iterable[str]) -> Iterator[str]:
    """Those of layers behind the last one that guess further tokens, which nobody serves: the configuration counts
    such layers, or they have the matrix or norms that join the embedding of a token to hidden states.
    """
    settings, last = model.config.get_text_config(), layers_of(model)
    counts = (getattr(settings, key, None) for key in _PREDICTING_LAYERS)
    count = max((each for each in counts if isinstance(each, int)), default=0)
    layers: dict[int, list[str]] = {}
    for name in names:
        if (found := re.search(r"(?:^|\.)layers\.(\d+)\.", name)) and int(found[1]) >= last:
            layers.setdefault(int(found[1]), []).append(name)
    for number, own in layers.items():
        if number < last + count or any(_OF_PREDICTION.search(each) for each in own):
            yield from own


def _refuse_missing(names: set[str]) -> None:
    if names:
        raise ModelFilesError(
            f"{len(names)} tensors of the model are in none of its safetensors files, such as `{min(names)}`: fetch "
            "all files of the model, or correct `tie_word_embeddings` in config.json"
        )


def _refuse_unknown(names: list[str]) -> None:
    if names:
        raise ModelFilesError(
            f"{len(names)} tensors of the model folder belong to no part of its class, such as `{names[0]}`: "
            "config.json does not fit the weights, or they are of another class"
        )
