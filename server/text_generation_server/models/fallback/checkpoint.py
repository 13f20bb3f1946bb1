"""Reads the tensors of a class from a checkpoint, under their names on the hub."""

# Switches of the library have names with an underscore.
# pyright: reportPrivateUsage=false

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

import torch
from torch import Tensor
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
from ...errors import ModelFilesError
from ...weights import SafetensorsSource, Slice, WeightSource
from .parallel import Cut, local_shape

_UNREAD = ("*rotary_emb.inv_freq", "*.attn.bias", "*.attn.masked_bias", "*.attention.bias", "*.attention.masked_bias")
"""Patterns of tensors that older versions of Transformers stored though nothing needs them."""


@dataclass
class _Stored:
    """The stored tensors of which a tensor of the class is made."""

    parts: list[list[str]] = field(default_factory=list[list[str]])
    """One stored tensor; or, for each tensor that is concatenated (gate, up), the tensors of all experts, in order."""
    is_stack: bool = False


class ClassCheckpoint:
    """The tensors of one model as a rank reads them."""

    def __init__(self, model: PreTrainedModel, source: WeightSource, cuts: dict[str, Cut], tied: Iterable[str]) -> None:
        """`tied` names the tensors that share another tensor's memory. Raises ModelFilesError for missing or unknown
        tensors, before any is read, and UnsupportedModel for a layout that is not read.
        """
        self._source = source
        self._cuts = cuts
        self._wide = _wide_patterns(model)
        self._stored: dict[str, _Stored] = {}
        needed = set(cuts) - set(tied)
        if isinstance(source, SafetensorsSource):
            self._find(model, source.names(), needed, set(tied))

    def read(self, name: str) -> Tensor:
        """Reads this rank's shard of a tensor. Raises ModelFilesError."""
        cut = self._cuts[name]
        dtype = torch.float32 if any(re.search(rf"(^|\.){each}(\.|$)", name) for each in self._wide) else None
        stored = self._stored.get(name)
        if stored is not None and stored.is_stack:
            return self._stack(stored.parts, cut)
        return self._part(name if stored is None else stored.parts[0][0], cut, dtype)

    def _part(self, name: str, cut: Cut, dtype: torch.dtype | None) -> Tensor:
        if not cut.ranges:
            return self._source.read(name, cut.whole, dtype=dtype)
        parts = [self._source.read(name, cut.whole, Slice(cut.dim, *each), dtype) for each in cut.ranges]
        return parts[0] if len(parts) == 1 else torch.cat(parts, cut.dim)

    def _stack(self, parts: Sequence[Sequence[str]], cut: Cut) -> Tensor:
        """Stacks matrices that are stored one by one into [experts, parts * rows, columns]."""
        experts, rows, columns = cut.whole
        shape = (rows // len(parts), columns)
        tensor = self._source.empty(local_shape(cut))
        for target, names in zip(tensor.chunk(len(parts), dim=1), parts, strict=True):
            if len(names) != experts:
                raise ModelFilesError(
                    f"`{names[0]}` and those like it are {len(names)} tensors; config.json asks for {experts}"
                )
            for expert, name in enumerate(names):
                part = Slice(cut.dim - 1, *cut.ranges[0]) if cut.ranges else None
                target[expert] = self._source.read(name, shape, part)
        return tensor

    def _find(self, model: PreTrainedModel, names: Iterable[str], needed: set[str], tied: set[str]) -> None:
        conversions = get_model_conversion_mapping(model)
        renamings = [each for each in conversions if isinstance(each, WeightRenaming)]
        converters = [each for each in conversions if isinstance(each, WeightConverter)]
        state = dict(model.state_dict())
        unknown: list[str] = []
        for stored in sorted(names, key=_natural):
            name, pattern = rename_source_key(stored, renamings, converters, model.base_model_prefix, state)
            if name not in needed:
                if name not in tied:
                    unknown.append(stored)
                continue
            converter = next((each for each in converters if pattern in each.source_patterns), None)
            self._add(model, name, stored, pattern, converter)
        _refuse_missing(needed - set(self._stored))
        patterns = model._keys_to_ignore_on_load_unexpected or []
        _refuse_unknown(
            [
                name
                for name in unknown
                if not any(fnmatchcase(name, each) for each in _UNREAD)
                and not any(re.search(each, name) for each in patterns)
            ]
        )

    def _add(
        self, model: PreTrainedModel, name: str, stored: str, pattern: str | None, converter: WeightConverter | None
    ) -> None:
        found = self._stored.setdefault(name, _Stored())
        if converter is None or pattern is None:
            found.parts.append([stored])
            if len(found.parts) > 1:
                raise ModelFilesError(f"`{found.parts[0][0]}` and `{stored}` both are tensor `{name}` of the model")
            return
        operations = [type(each) for each in converter.operations]
        if operations not in ([MergeModulelist], [MergeModulelist, Concatenate]) or len(self._cuts[name].whole) != 3:
            raise unsupported(type(model).__name__, f"its checkpoints hold `{stored}` in a layout that is not read")
        found.is_stack = True
        if not found.parts:
            found.parts = [[] for _ in converter.source_patterns]
        found.parts[converter.source_patterns.index(pattern)].append(stored)


def _natural(name: str) -> list[str | int]:
    """Returns the key by which names sort with their numbers in numerical order."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]


def _wide_patterns(model: PreTrainedModel) -> set[str]:
    """Returns patterns of the modules that the class keeps in float32."""
    strict = set(model._keep_in_fp32_modules_strict or ())
    return strict | set(model._keep_in_fp32_modules or ()) if model.dtype == torch.float16 else strict


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
